"""One environment of the function `sweep`, in a process of its own: an event a line, and a line of what it took.

AWS_ENDPOINT_URL=http://127.0.0.1:PORT python -m bench.sweep_worker < EVENTS"""

import json
import resource
import sys
import time
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from os import environ
from typing import Any

FUNCTION = "Rerail-Sweep"


@dataclass
class Context:
    """What Lambda tells a function of itself."""

    function_name: str = FUNCTION
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = f"arn:aws:lambda:eu-west-1:123456789012:function:{FUNCTION}"
    aws_request_id: str = "52fdfc07-2182-454f-963f-5f0f9a621d72"

    def get_remaining_time_in_millis(self) -> int:
        return 120_000


def swept(event: dict[str, Any]) -> dict[str, Any]:
    """One invocation, asked for in this moment: what it counted, and what it took."""
    import sweep

    if "share" in event:
        event["share"]["asked_at"] = datetime.now(UTC).isoformat()
    wall, busy = time.perf_counter(), time.process_time()
    error = ""
    try:
        counts = sweep.handler(event, Context())
    except Exception as failure:  # a sweep that fails is a finding of the bench, and not its end
        counts, error = {}, f"{type(failure).__name__}: {failure}"
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    with urllib.request.urlopen(f"{environ['AWS_ENDPOINT_URL']}/-/counts") as answer:  # nosec B310: on loopback
        seen = json.load(answer)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"wall_s": wall, "cpu_s": busy, "peak_bytes": peak, "counts": counts, "error": error, **seen}


def main() -> int:
    out, sys.stdout = sys.stdout, sys.stderr  # what the function logs is not ours
    for line in sys.stdin:
        print(json.dumps(swept(json.loads(line))), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
