"""A training script without training, and an agent in a few lines: says hello, finds its job slow, saves when asked.

It goes on until the file UNTIL exists, if one is named.
"""

import os
import signal
import sys
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import boto3
from counting_script import ATTEMPT, BASE, SLOWDOWN, save

from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import (
    CommandKind,
    Durability,
    Report,
    ReportKind,
    make_command_key,
    make_report_key,
    read_command,
    serialize,
)
from rerail.model.manifest_signature import make_signature
from rerail.model.signatures import VARIABLE, sign

RUN = os.environ.get("RERAIL_RUN") or os.environ["TRAINING_JOB_NAME"]
SLOW_AT, STEPS, SECONDS = 20, int(os.environ["STEPS"]), 0.1 * SLOWDOWN
DURABILITY = Durability(os.environ.get("DURABILITY", "local"))
UNTIL = Path(os.environ.get("UNTIL", "/"))
s3, mailbox = boto3.client("s3"), os.environ["MAILBOX"]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
known: set[str] = set()


def report(kind: ReportKind, **said) -> None:
    job, id = os.environ["TRAINING_JOB_NAME"], f"a{ATTEMPT}-{kind}"
    report = Report(id, RUN, ATTEMPT, job, kind, datetime.now(UTC), **said)
    name = make_report_key(RUN, id)
    s3.put_object(Bucket=mailbox, Key=name, Body=sign(serialize(report), name=name, key=os.environ[VARIABLE]))


def asked() -> str:
    """The id of a wish for a checkpoint that was not heard before."""
    try:
        text = s3.get_object(Bucket=mailbox, Key=make_command_key(RUN))["Body"].read()
    except s3.exceptions.NoSuchKey:
        return ""
    command = read_command(text, run=RUN)
    news = command.attempt == ATTEMPT and command.kind is CommandKind.CHECKPOINT and command.id not in known
    known.add(command.id)
    return command.id if news else ""


def upload(folder: Path) -> None:
    """What writes to S3 by itself does not wait for SageMaker's copy."""
    for file in sorted(folder.iterdir()):
        s3.upload_file(str(file), os.environ["BUCKET"], f"{RUN}/{folder.name}/{file.name}")


report(ReportKind.HELLO)
for step in count(int(os.environ.get("RERAIL_RESUME_STEP", "0")) + 1):
    time.sleep(SECONDS)
    print(f"rerail step={step} loss={1 / step:.9g}", flush=True)
    if ATTEMPT == 1 and step == SLOW_AT:
        report(
            ReportKind.FINDINGS,
            findings=(Finding(Kind.THROUGHPUT_DROP, Level.INTERVENE, step, step, "four times slower"),),
        )
    if command := asked():
        report(ReportKind.ACKNOWLEDGED, command=command)
        save(step, reason="emergency", sign=lambda manifest: make_signature(manifest, key=os.environ[VARIABLE]))
        folder = BASE / "checkpoints" / f"step-{step:09d}"
        if DURABILITY is Durability.REMOTE:
            upload(folder)
        report(ReportKind.CHECKPOINT, command=command, step=step, durability=DURABILITY, path=str(folder))
    if step >= STEPS and ATTEMPT > 1 and UNTIL.exists():  # the first attempt is to be stopped, however slow the machine
        break
