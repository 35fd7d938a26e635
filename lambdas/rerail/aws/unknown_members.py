"""Find what SageMaker says of a job and this SDK does not know: the SDK drops it, and a relaunch would lack it.

A Lambda runtime has the SDK of its month. Looked for are members inside of a request's structures, and new structures
beside them that are named as SageMaker names what is requested, `...Config`; others may be new facts about the job.
"""

import json
from collections.abc import Iterator
from typing import Any

from rerail.requests.relaunch import UNKNOWN_MEMBERS

OPERATION, REQUEST = "DescribeTrainingJob", "CreateTrainingJob"


def install_unknown_members(client: Any) -> None:
    """Have each description of a training job list its unknown members under UNKNOWN_MEMBERS."""
    requested = client.meta.service_model.operation_model(REQUEST).input_shape.members

    def note(operation_model: Any, response_dict: Any, customized_response_dict: dict[str, Any], **_: Any) -> None:
        if response_dict["status_code"] != 200:
            return
        described = operation_model.output_shape.members
        body = json.loads(response_dict["body"])
        known = {name: value for name, value in body.items() if name in requested and name in described}
        inside = [path for name, value in known.items() for path in _find(value, described[name], name)]
        beside = [
            name
            for name, value in body.items()
            if name not in described and name.endswith("Config") and isinstance(value, dict) and value
        ]
        unknown = sorted([*inside, *beside])
        if unknown:
            customized_response_dict[UNKNOWN_MEMBERS] = unknown

    client.meta.events.register(f"before-parse.sagemaker.{OPERATION}", note)


def _find(value: Any, shape: Any, path: str) -> Iterator[str]:
    """Yield the paths of what the shape does not have."""
    if shape.type_name == "structure" and isinstance(value, dict):
        for name, part in value.items():
            if name not in shape.members:
                yield f"{path}.{name}"
            else:
                yield from _find(part, shape.members[name], f"{path}.{name}")
    elif shape.type_name == "list" and isinstance(value, list):
        for part in value:
            yield from _find(part, shape.member, path)
