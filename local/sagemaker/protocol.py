"""The awsJson1.1 wire format: which operation a request names, and how an answer is written."""

import json
import uuid
from collections.abc import Mapping
from functools import cache
from typing import Any

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape

from .errors import ServiceError

TARGET_PREFIX = "SageMaker."

Response = tuple[int, dict[str, str], bytes]


@cache
def _service_model() -> ServiceModel:
    return botocore.session.Session().get_service_model("sagemaker")


@cache
def operation_model(name: str) -> OperationModel:
    return _service_model().operation_model(name)


def operation_name(headers: Mapping[str, str]) -> str:
    target = {key.lower(): value for key, value in headers.items()}.get("x-amz-target", "")
    if not target.startswith(TARGET_PREFIX):
        raise ServiceError("UnknownOperationException", f"X-Amz-Target must begin with {TARGET_PREFIX}, not '{target}'")
    return target.removeprefix(TARGET_PREFIX)


def read_request(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body or b"{}")
    except ValueError as error:
        raise ServiceError("SerializationException", f"The request body is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise ServiceError("SerializationException", "The request body must be a JSON object")
    return request


def write_answer(operation: str, answer: dict[str, Any] | None) -> Response:
    """Only members of the operation's output shape leave the house, as with the real service."""
    output = operation_model(operation).output_shape
    if output is None:
        return _response(200, b"")
    return _response(200, json.dumps(_members_only(output, answer or {})).encode())


def write_plain(answer: dict[str, Any]) -> Response:
    return _response(200, json.dumps(answer).encode())


def write_error(error: ServiceError) -> Response:
    return _response(error.status, json.dumps({"__type": error.code, "message": error.message}).encode())


def _response(status: int, body: bytes) -> Response:
    return status, {"Content-Type": "application/x-amz-json-1.1", "x-amzn-RequestId": str(uuid.uuid4())}, body


def _members_only(shape: Shape, value: Any) -> Any:
    match shape.type_name:
        case "structure":
            known = shape.members
            return {k: _members_only(known[k], v) for k, v in value.items() if k in known and v is not None}
        case "list":
            return [_members_only(shape.member, item) for item in value]
        case "map":
            return {key: _members_only(shape.value, item) for key, item in value.items()}
    return value
