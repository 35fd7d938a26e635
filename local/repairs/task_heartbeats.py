"""Let a task that waits for a callback fail when no heartbeat has come for its HeartbeatSeconds.

MiniStack records SendTaskHeartbeat and never looks at it: a task with `.waitForTaskToken` waits for its TimeoutSeconds,
by default for a day. AWS fails it with States.HeartbeatTimeout once HeartbeatSeconds have passed since the task began,
or since the last heartbeat.
"""

import threading
import time
from typing import Any

from ministack.services import stepfunctions

LOOK_EVERY_S = 0.2


def apply() -> None:
    stock_invoke, stock_heartbeat = stepfunctions._invoke_with_callback, stepfunctions._send_task_heartbeat
    beats: dict[str, float] = {}

    def send_heartbeat(data: dict[str, Any]) -> Any:
        beats[data.get("taskToken", "")] = time.monotonic()
        return stock_heartbeat(data)

    def invoke(resource: str, input_data: Any, token: str, state: dict[str, Any]) -> Any:
        limit_s, ended = float(state.get("HeartbeatSeconds") or 0), threading.Event()

        def watch() -> None:
            while not ended.wait(LOOK_EVERY_S):
                info = stepfunctions._task_tokens.get(token)
                if info and time.monotonic() - beats[token] > limit_s:
                    info["error"] = {"Error": "States.HeartbeatTimeout", "Cause": ""}
                    info["event"].set()
                    return

        beats[token] = time.monotonic()
        if limit_s:
            threading.Thread(target=watch, daemon=True).start()
        try:
            return stock_invoke(resource, input_data, token, state)
        finally:
            ended.set()
            beats.pop(token, None)

    stepfunctions._send_task_heartbeat = send_heartbeat
    stepfunctions._invoke_with_callback = invoke
