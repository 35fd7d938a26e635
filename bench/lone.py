"""A function alone in its interpreter, or what it is set beside: what `bench.cold` starts again and again.

    python -S -P bench/lone.py WHAT NAME TAPE OUT

It imports nothing before it is asked to but what it cannot do without, for that is what is measured, and writes the CPU
seconds since the interpreter began to OUT. AWS answers from the tape: a list of calls with their recorded answers.
"""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WARM_UP, ROUNDS = 20, 100


def main(what: str, name: str, tape: str, out: str) -> None:
    if what == "import":
        __import__(name)
        found = [time.process_time()]
    elif what == "client":
        import boto3

        boto3.Session().client(name)
        found = [time.process_time()]
    else:
        found = EVENTS[what](name, *_recorded(tape))
    with open(out, "w") as file:
        file.write(" ".join(map(str, found)))


def _recorded(tape: str) -> tuple[Any, Any, list[dict[str, Any]]]:
    import pickle

    with open(tape, "rb") as file:
        event, context, calls = pickle.load(file)  # nosec B301: written by bench.cold a moment ago
    _answer_from(calls)
    return event, context, calls


def _first(name: str, event: Any, context: Any, calls: list[dict[str, Any]]) -> list[float]:
    """The function loaded as in Lambda, and its first event handled: when it was ready, and when it was done."""
    handler = _checked(__import__(name).handler)
    ready = time.process_time()
    handler(event, context)
    return [ready, time.process_time()]


def _first_bare(name: str, event: Any, context: Any, calls: list[dict[str, Any]]) -> list[float]:
    """The same calls by the SDK alone."""
    ask = _bare(calls)
    ready = time.process_time()
    ask()
    return [ready, time.process_time()]


def _warm(name: str, event: Any, context: Any, calls: list[dict[str, Any]]) -> list[float]:
    """An event handled, and its calls made bare, in turns: CPU seconds of each, and seconds of each; the least."""
    # Policies are read once, and believed for a minute.
    handler, ask = _checked(__import__(name).handler), _bare([call for call in calls if call["service"] != "ssm"])
    cpu: list[list[float]] = [[], []]
    wall: list[list[float]] = [[], []]
    for number in range(WARM_UP + ROUNDS):
        for which, act in enumerate((lambda: handler(event, context), ask)):
            began, began_cpu = time.perf_counter(), time.process_time()
            act()
            if number >= WARM_UP:
                cpu[which].append(time.process_time() - began_cpu)
                wall[which].append(time.perf_counter() - began)
    middle = ROUNDS // 2
    return [*(sorted(times)[middle] for times in cpu), *(sorted(times)[middle] for times in wall)]


EVENTS = {"first": _first, "first bare": _first_bare, "warm": _warm}


def _checked(handler: Callable[[Any, Any], Any]) -> Callable[[Any, Any], None]:
    """A function that could not handle its event is not measured."""

    def checked(event: Any, context: Any) -> None:
        answer = handler(event, context)
        if isinstance(answer, dict) and answer.get("batchItemFailures"):
            raise RuntimeError("the function hands its message back; does the tape lack an answer?")

    return checked


def _bare(calls: list[dict[str, Any]]) -> Callable[[], None]:
    """The recorded calls, to be made again by plain clients of boto3."""
    import boto3
    from botocore.exceptions import ClientError

    session = boto3.Session()
    clients = {service: session.client(service) for service in dict.fromkeys(call["service"] for call in calls)}
    asked = [(getattr(clients[call["service"]], call["method"]), call["parameters"]) for call in calls]

    def ask() -> None:
        for method, parameters in asked:
            try:
                answer = method(**parameters)
            except ClientError:
                continue
            if "Body" in answer:
                answer["Body"].read()

    return ask


def _answer_from(calls: list[dict[str, Any]]) -> None:
    """Every client that is made from now on has its answers from the tape: of the very same request, or else the next
    one of the same operation."""
    from io import BytesIO

    import botocore.handlers
    from botocore.awsrequest import AWSResponse

    class Raw(BytesIO):
        def stream(self, **_: Any) -> Any:
            yield self.read()

    same = {}
    others: dict[str, list[Any]] = {}
    for call in calls:
        same[call["request"]] = call["answer"]
        others.setdefault(call["operation"], []).append(call["answer"])

    def answer(request: Any, event_name: str, **_: Any) -> Any:
        operation = event_name.removeprefix("before-send.")
        found = same.get((request.method, request.url, request.body))
        if found is None:
            if operation not in others:
                raise LookupError(f"the tape has no answer to {operation}; record it anew")
            waiting = others[operation]
            waiting.append(waiting.pop(0))
            found = waiting[-1]
        status, headers, body = found
        return AWSResponse(request.url, status, headers, Raw(body))

    botocore.handlers.BUILTIN_HANDLERS.append(("before-send", answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
