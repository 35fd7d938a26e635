"""Causes faults in the fake from outside: `inject(endpoint_url, "kill", TrainingJobName="run-1")`."""

import json
import urllib.error
import urllib.request
from typing import Any

# Loopback traffic must not go through a proxy that the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class InjectionRefused(Exception):
    """The request is not valid; the message has the reason."""


def inject(endpoint_url: str, fault: str, **fields: Any) -> dict[str, Any]:
    """`fields` go into the request as they are; see README.md for each fault's."""
    request = urllib.request.Request(
        endpoint_url,
        data=json.dumps({"Fault": fault, **fields}).encode(),
        headers={"X-Amz-Target": "SageMaker.LocalInject", "Content-Type": "application/x-amz-json-1.1"},
        method="POST",
    )
    try:
        with _OPENER.open(request, timeout=300) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        raise InjectionRefused(json.load(error).get("message", str(error))) from error
