"""An AWS that answers as it is told to, from a table of operations, refusals among them; it knows nothing else."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from cli.place import Place

Answer = Mapping[str, Any] | Exception | Callable[..., Any]
OUTPUTS = {
    "TableName": "Runs",
    "BusName": "rerail",
    "SignalsQueueUrl": "https://sqs/1/signals",
    "FiledReportsQueueUrl": "https://sqs/1/reports",
    "CommandQueueUrl": "https://sqs/1/commands",
    "MailboxBucket": "mailbox",
    "PolicyPrefix": "/rerail/policies",
    "PauseParameter": "/rerail/switch",
    "PageTopicArn": "arn:aws:sns:eu-west-1:1:page",
    "InformTopicArn": "arn:aws:sns:eu-west-1:1:inform",
    "SuperviseFunctionName": "supervise",
    "SweepFunctionName": "sweep",
    "NotifyFunctionName": "notify",
}


def refused(code: str, message: str = "", operation: str = "Some") -> ClientError:
    """The error that boto3 raises for AWS's code."""
    return ClientError({"Error": {"Code": code, "Message": message or code}}, operation)


def denied(permission: str) -> ClientError:
    """As AWS words it."""
    return refused(
        "AccessDenied", f"User: arn:aws:iam::1:user/me is not authorized to perform: {permission} on resource: x"
    )


class Cloud:
    """Answers by `service.operation`; each may be an error, or a function of the request."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def answer(self, name: str, request: dict[str, Any]) -> Any:
        self.asked.append((name, request))
        found = self.answers[name]
        if isinstance(found, Exception):
            raise found
        return found(**request) if callable(found) else found


class Client:
    """One service of it."""

    def __init__(self, cloud: Cloud, service: str) -> None:
        self._cloud, self._service = cloud, service
        self.meta = type("Meta", (), {"region_name": "eu-west-1"})

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return lambda **request: self._cloud.answer(f"{self._service}.{operation}", request)

    def get_paginator(self, operation: str) -> Any:
        def paginate(**request: Any) -> Iterator[Any]:
            request.pop("PaginationConfig", None)
            yield self._cloud.answer(f"{self._service}.{operation}", request)

        return type("Paginator", (), {"paginate": staticmethod(paginate)})


class Deployed(Place):
    """A deployment in that AWS."""

    def __init__(self, cloud: Cloud, *, is_local: bool = False, **outputs: str) -> None:
        super().__init__("stack Rerail in eu-west-1", {**OUTPUTS, **outputs}, is_local)
        object.__setattr__(self, "cloud", cloud)

    def client(self, service: str) -> Any:
        return Client(self.cloud, service)  # type: ignore[attr-defined]
