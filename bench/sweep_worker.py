"""One environment of the function `sweep`, in a process of its own: sweeps so many times, and prints what each took.

AWS_ENDPOINT_URL=http://127.0.0.1:PORT python -m bench.sweep_worker EVENT TIMES"""

import json
import resource
import sys
import time
import urllib.request
from dataclasses import dataclass
from os import environ

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


def main() -> int:
    event, times = json.loads(sys.argv[1]), int(sys.argv[2])
    out, sys.stdout = sys.stdout, sys.stderr  # what the function logs is not ours
    import sweep

    told = []
    for _ in range(times):
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
        told.append({"wall_s": wall, "cpu_s": busy, "peak_bytes": peak, "counts": counts, "error": error, **seen})
    print(json.dumps(told), file=out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
