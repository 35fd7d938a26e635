"""A training script without training, and an agent in a few lines: says hello, beats, saves when it is asked to.

Told so by the bench it finds that its loss is no number, as its agent's detectors would."""

import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from typing import Any

from marks import (  # type: ignore[import-not-found]
    ATTEMPT,
    BASE,
    RUN,
    SECONDS,
    STEPS_A_SAVE,
    is_requested,
    live,
    mark,
)
from signed import send  # type: ignore[import-not-found]

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Phase
from rerail.model.mailbox import (
    CommandKind,
    Durability,
    Heartbeat,
    Report,
    ReportKind,
    make_command_key,
    make_heartbeat_key,
    make_report_key,
    read_command,
    serialize,
)
from rerail.model.manifest_signature import make_signature
from rerail.model.signatures import VARIABLE, sign

JOB, MAILBOX = os.environ["TRAINING_JOB_NAME"], os.environ["MAILBOX"]
LOOK_EVERY = 5
known: set[str] = set()


def s3(verb: str, key: str, body: bytes | None = None) -> bytes | None:
    """Send a request to the mailbox; return None if there is no such object."""
    status, content, _ = send(verb, MAILBOX, key, body)
    return content if status == 200 else None


def put(name: str, message: Report | Heartbeat) -> None:
    s3("PUT", name, sign(serialize(message), name=name, key=os.environ[VARIABLE]))


def report(what: ReportKind, **said: Any) -> None:
    id = f"a{ATTEMPT}-{what}"
    put(make_report_key(RUN, id), Report(id, RUN, ATTEMPT, JOB, what, datetime.now(UTC), **said))


def heartbeat(step: int) -> None:
    at = datetime.now(UTC)
    put(make_heartbeat_key(RUN), Heartbeat(RUN, ATTEMPT, JOB, at, Phase.STEP, step, at, 1 / step, SECONDS))


def asked() -> str:
    """The id of a wish for a checkpoint that was not heard before."""
    text = s3("GET", make_command_key(RUN))
    if text is None:
        return ""
    command = read_command(text, run=RUN)
    news = command.attempt == ATTEMPT and command.kind is CommandKind.CHECKPOINT and command.id not in known
    known.add(command.id)
    return command.id if news else ""


def save(step: int, *, reason: str = "periodic") -> None:
    """Files first, manifest last."""
    folder = BASE / "checkpoints" / f"step-{step:09d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.pt").write_bytes(f"{RUN} {step}".encode())
    files = [{"name": "model.pt", "bytes": len(f"{RUN} {step}")}]
    saved_at = datetime.now(UTC).isoformat()
    manifest = {"schema": 1, "attempt": ATTEMPT, "step": step, "saved_at": saved_at, "reason": reason, "files": files}
    partial = folder / "manifest.json.tmp"
    partial.write_text(json.dumps({**manifest, "signature": make_signature(manifest, key=os.environ[VARIABLE])}))
    partial.rename(folder / "manifest.json")
    mark("saved", step)


def main() -> None:
    live()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    step, found = int(os.environ.get("RERAIL_RESUME_STEP", "0")), False
    mark("from", step)
    report(ReportKind.HELLO)
    while not is_requested("finish"):
        step += 1
        time.sleep(SECONDS)
        if step % STEPS_A_SAVE == 0:
            print(f"rerail step={step} loss={1 / step:.9g}", flush=True)
            save(step)
            heartbeat(step)
        if not found and is_requested("trouble"):
            found = True
            mark("found", step)
            report(
                ReportKind.FINDINGS,
                findings=(Finding(Kind.NON_FINITE, Level.INTERVENE, step, step, "the loss is nan"),),
            )
        if step % LOOK_EVERY == 0 and (command := asked()):
            report(ReportKind.ACKNOWLEDGED, command=command)
            save(step, reason="emergency")
            path = str(BASE / "checkpoints" / f"step-{step:09d}")
            report(ReportKind.CHECKPOINT, command=command, step=step, durability=Durability.LOCAL, path=path)
    mark("finished", step)


if __name__ == "__main__":
    main()
