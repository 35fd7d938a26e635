"""An upgrade finds what older versions have stored, and a roll-back what a newer one has: nothing of it is lost.

`data/records/<name>/` holds what a version has stored, written by its own code (recording.py) and named by its commit:
`runs`, timeline `entries`, the detectors' `memories`, the account's `launches`, the mailbox's `mail`, checkpoints'
`manifests`, the deployed `policies` and `messages` that wait in the queue. A folder once added is never changed. If a
test here fails, an upgrade fails in accounts: give the new field a default, or raise the schema and read both.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rerail.decisions.decide import decide
from rerail.detection.evaluate import RunDetection
from rerail.messages import messages
from rerail.messages.messages import JobStateChanged
from rerail.model import mailbox, signals
from rerail.model.checkpoints import read_manifest
from rerail.model.codec import SCHEMA, BadRecord, dumps, loads
from rerail.model.former_names import translate
from rerail.model.policy import Policy, parse_policy
from rerail.model.rate_limit import Launches, LaunchRequest, admit
from rerail.model.run import Job, JobStatus, LaunchCheck, Run, RunState, TimelineEntry
from tests.fakes import World

RECORDS = Path(__file__).parent / "data" / "records"
# What the version of schema 1 called the pause, in a record of a run.
FORMER_PAUSE = '"kill switch"'
# The names that the types of messages had.
FORMER_MESSAGES = {
    "AlarmHeard": "AlarmStateChanged",
    "CommandGiven": "CommandReceived",
    "HyperPodHeard": "ClusterEventReceived",
    "JobHeard": "JobStateChanged",
    "Stray": "UnrelatedObject",
    "TroubleFound": "FindingsReceived",
}
LATER = timedelta(hours=1)
ARN = "arn:aws:sagemaker:eu-west-1:111122223333:training-job/"


def stored(kind: str) -> list[Any]:
    """Each line of that kind of every version, as a test's parameter that says where it stands."""
    files = sorted(RECORDS.glob(f"*/{kind}.jsonl"))
    assert files, f"no {kind} are kept"
    return [
        pytest.param(line, id=f"{file.parent.name}-{number}")
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    ]


# State of detectors that moved, and that they learn again within a few rows.
RELEARNT = {"cadence"}


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield where something that was stored is not stored any more; what was empty may be left out."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name == "schema" or name in RELEARNT:
                continue
            if name in after:
                yield from lost(value, after[name], f"{path}.{name}")
            elif value not in ("", 0, None, False, [], {}):
                yield f"{path}.{name}"
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path}[]"
        for number, (item, other) in enumerate(zip(before, after, strict=False)):
            yield from lost(item, other, f"{path}[{number}]")
    elif before != after:
        yield path


def newest(run: Run) -> Any:
    """A time after everything that the run knows of."""
    ended = [time for attempt in run.attempts for time in (attempt.created_at, attempt.ended_at) if time]
    return max([run.created_at, *ended]) + LATER


@pytest.mark.parametrize(
    ("cls", "kind"), [(Run, "runs"), (TimelineEntry, "entries"), (RunDetection, "memories"), (Launches, "launches")]
)
def test_every_record_is_read_and_written_back_whole(cls: type, kind: str) -> None:
    """What an older version stored reads, and after a turn of this version it is all still there."""
    for line in (param.values[0] for param in stored(kind)):
        record = loads(cls, line)
        again = dumps(record)
        assert loads(cls, again) == record
        assert list(lost(translate(json.loads(line)), json.loads(again))) == []


@pytest.mark.parametrize(
    ("former", "present"),
    [("brake", "rate limit"), ("", None), ("kill switch", "pause"), ("later", "later"), ([], [])],
)
def test_a_former_text_is_translated_wherever_its_record_is(former: Any, present: Any) -> None:
    run = {"type": "Run", "kept_back": former}
    assert translate({"runs": [{"gpt": run}]}) == {"runs": [{"gpt": {"type": "Run", "blocked_by": present}}]}


@pytest.mark.parametrize("line", stored("runs"))
def test_a_run_of_an_older_version_is_decided_on(line: str) -> None:
    run = loads(Run, line)
    at, name = newest(run), run.current.job_name
    begun = run.current.created_at or run.created_at
    seen = [
        Job(name, ARN + name, JobStatus.IN_PROGRESS, "Training", created_at=begun),
        Job(name, ARN + name, JobStatus.COMPLETED, "Completed", created_at=begun, ended_at=at),
        Job(
            name,
            ARN + name,
            JobStatus.FAILED,
            "Failed",
            created_at=begun,
            ended_at=at,
            failure_reason="InternalServerError: once",
        ),
    ]
    received = [signals.Tick(at), signals.JobGone(at, name), *(signals.JobObserved(at, job) for job in seen)]
    for signal in received:
        after = decide(run, signal, Policy()).run
        assert after.id == run.id
        assert len(after.attempts) >= len(run.attempts)
        assert loads(Run, dumps(after)) == after


@pytest.mark.parametrize("line", [param for param in stored("runs") if FORMER_PAUSE in param.values[0]])
def test_what_an_older_version_kept_back_waits_for_the_pause(line: str) -> None:
    """A launch or a stop that waited under the pause's former name is done once the pause is lifted, and not before."""
    run = loads(Run, line)
    name, job = run.attempts[0].job_name, run.attempts[0]
    assert LaunchCheck.PAUSE in (run.blocked_by, run.proposal and run.proposal.awaits)
    world = World()
    world.clock.now = job.created_at or run.created_at
    world.sagemaker.submit(name)
    world.clock.now = newest(run) if run.blocked_by else run.proposal.asked_at if run.proposal else run.created_at
    world.checkpoints.save(step=50)
    if job.status is JobStatus.FAILED:
        world.sagemaker.fail(name, job.failure_reason)
    world.runs.records[run.id] = line
    world.runs.jobs |= {attempt.job_name: run.id for attempt in run.attempts}
    world.runs.requests[run.id] = world.sagemaker.asked[name]
    world.pause.paused = True
    world.minutes(5)
    assert list(world.sagemaker.jobs) == [name]
    world.pause.paused = False
    world.minutes(5)
    assert world.sagemaker.live() == [f"{name}-a002"]
    assert not world.run(run.id).blocked_by and world.run(run.id).proposal is None


def in_training() -> list[Any]:
    """The stored runs that wait for nothing but their job."""
    runs = [(param, loads(Run, param.values[0])) for param in stored("runs")]
    return [
        param
        for param, run in runs
        if run.state is RunState.WATCHING and not (run.pending or run.observe_only or run.proposal or run.stop)
        if run.policy == "default" and run.current.status is JobStatus.IN_PROGRESS
    ]


@pytest.mark.parametrize("line", in_training())
def test_a_job_that_dies_after_an_upgrade_is_answered(line: str) -> None:
    """The whole loop over an older record: the failure is heard, decided, recorded, and a successor made in time."""
    run = loads(Run, line)
    name, world = run.current.job_name, World()
    world.clock.now = run.current.created_at or run.created_at
    world.sagemaker.submit(name)
    world.clock.now = newest(run)
    world.runs.records[run.id] = line
    world.runs.jobs |= {attempt.job_name: run.id for attempt in run.attempts}
    world.runs.requests[run.id] = world.sagemaker.asked[name]
    world.sagemaker.fail(name, "InternalServerError: we encountered an internal error")
    world.supervisor().handle(JobStateChanged(name))
    assert world.run(run.id).version > run.version
    world.minutes(20)
    after = world.run(run.id)
    assert after.state is RunState.HELD or len(after.attempts) == len(run.attempts) + 1
    assert after.incidents[: len(run.incidents)] or not run.incidents


@pytest.mark.parametrize("line", stored("launches"))
def test_the_rate_limit_keeps_its_count(line: str) -> None:
    launches = loads(Launches, line)
    at = max(launches.at.values())
    after, admission = admit(launches, LaunchRequest("another"), at=at, limit=100_000, window=timedelta(hours=1))
    assert admission.granted
    assert set(after.at) >= {name for name, then in launches.at.items() if at - then < timedelta(hours=1)}


@pytest.mark.parametrize("line", stored("mail"))
def test_mail_of_an_older_agent_is_read(line: str) -> None:
    """A container lives for weeks with the agent that it was built with."""
    mail = json.loads(line)
    text, run = mail["text"].encode(), mail["key"].split("/")[1]
    match mail["key"].split("/")[2]:
        case "command.json":
            read: Any = mailbox.read_command(text, run=run)
        case "heartbeat.json":
            read = mailbox.read_heartbeat(text, run=run)
        case _:
            read = mailbox.read_report(text, run=run, id=mailbox.run_of_report(mail["key"])[1])
    assert list(lost(translate(json.loads(text)), json.loads(mailbox.serialize(read)))) == []


def test_an_agent_of_the_version_before_understands_commands_and_is_understood() -> None:
    """Jobs keep the agent that they started with: fields are written under their former names too."""
    at = datetime(2026, 1, 31, tzinfo=UTC)
    command = json.loads(mailbox.serialize(mailbox.Command("c1", "gpt", 1, mailbox.CommandKind.TRAIN, at)))
    assert (command["wish"], command["kind"]) == ("train", "train")
    report = mailbox.Report("r1", "gpt", 1, "gpt", mailbox.ReportKind.ACKNOWLEDGED, at)
    written = json.loads(mailbox.serialize(report))
    assert (written["told"], written["kind"]) == ("heard", "acknowledged")
    former = json.dumps({name: value for name, value in written.items() if name != "kind"}).encode()
    assert mailbox.read_report(former, run="gpt", id="r1") == report


@pytest.mark.parametrize("line", stored("manifests"))
def test_a_checkpoint_of_an_older_agent_can_be_resumed_from(line: str) -> None:
    """Its manifest reads, and the checkpoint is whole."""
    kept = json.loads(line)
    checkpoint = read_manifest(kept["text"], uri=f"s3://bucket/{kept['folder']}", sizes=kept["sizes"])
    table = json.loads(kept["text"])
    assert checkpoint.is_whole
    assert (checkpoint.step, checkpoint.attempt, checkpoint.health) == (
        table["step"],
        table["attempt"],
        table["health"],
    )


@pytest.mark.parametrize("line", stored("policies"))
def test_a_deployed_policy_of_an_older_version_is_read(line: str) -> None:
    """Between the first and the last resource of an update, new code reads the parameter as it was."""
    policy = json.loads(line)
    assert parse_policy(policy["text"], name=policy["name"])


@pytest.mark.parametrize("line", stored("messages"))
def test_a_message_in_the_queue_survives_an_upgrade(line: str) -> None:
    """What was sent before the update is understood after it, as what it was."""
    message = json.loads(line)
    assert type(messages.parse_message(message["text"])).__name__ == FORMER_MESSAGES.get(
        message["reads_as"], message["reads_as"]
    )


@pytest.mark.parametrize("kind", ["runs", "entries", "memories", "launches"])
def test_a_record_of_a_newer_schema_is_refused_and_kept(kind: str) -> None:
    """After a roll-back: one clear error that says what to do, and not a guess."""
    cls = {"runs": Run, "entries": TimelineEntry, "memories": RunDetection, "launches": Launches}[kind]
    newer = json.dumps({**json.loads(stored(kind)[0].values[0]), "schema": SCHEMA + 1})
    with pytest.raises(BadRecord, match="deploy the version that wrote it"):
        loads(cls, newer)


def test_a_roll_back_leaves_a_newer_run_as_it_is() -> None:
    """The older code neither changes nor loses it, and every message about it fails, which pages."""
    world = World().adopt()
    newer = json.dumps({**json.loads(world.runs.records["gpt"]), "schema": SCHEMA + 1})
    world.runs.records["gpt"] = newer
    world.sagemaker.fail("gpt", "InternalServerError")
    with pytest.raises(BadRecord):
        world.supervisor().handle(JobStateChanged("gpt"))
    assert world.runs.records["gpt"] == newer
    assert set(world.sagemaker.jobs) == {"gpt"}
