"""Begin to read a log with an empty page, as CloudWatch Logs may at any time.

MiniStack's first page of GetLogEvents has the first lines. On AWS a page "might only be partially full, or even empty":
a log ends where the same token comes back.
"""

import json
from typing import Any

from ministack.services import cloudwatch_logs

FIRST = "first"


def apply() -> None:
    stock = cloudwatch_logs._get_log_events

    def get_log_events(request: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        token = request.get("nextToken")
        asked = {name: value for name, value in request.items() if name != "nextToken" or value != FIRST}
        status, headers, body = stock(asked)
        if token is None and status == 200:
            empty = {"events": [], "nextForwardToken": FIRST, "nextBackwardToken": FIRST}
            body = json.dumps(json.loads(body) | empty).encode()
        return status, headers, body

    cloudwatch_logs._get_log_events = get_log_events
