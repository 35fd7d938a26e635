"""The memory on DynamoDB: all of a decision or nothing, the sparse index, and who is whose job."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from botocore.exceptions import ClientError

from rerail.aws.clients import client
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.hyperpod import DynamoClusters
from rerail.aws.records import READ_BATCH
from rerail.hyperpod.clusters import ClusterRecord
from rerail.model.causes import Cause
from rerail.model.errors import Conflict
from rerail.model.run import Attempt, Incident, JobStatus, Run, RunState, StateChange, TimelineEntry
from tests.aws.places import TABLE

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
RUN = Run("gpt", "default", RunState.WATCHING, NOON, (Attempt(1, "gpt"),), version=1)
REQUEST = {"TrainingJobName": "gpt", "Tags": [{"Key": "team", "Value": "nlp"}], "RoleArn": "arn:…"}


def an_entry(version: int, reason: str = "because") -> TimelineEntry:
    return TimelineEntry("gpt", version, NOON, RunState.WATCHING, RunState.WAITING, reason, inputs={"step": 60})


@pytest.fixture
def runs(table) -> DynamoRuns:
    return DynamoRuns(table)


def everything() -> list[dict]:
    return client("dynamodb").scan(TableName=TABLE)["Items"]


def test_what_is_saved_is_loaded(runs):
    """The run, its request, its timeline and the names of its jobs."""
    runs.save(RUN, an_entry(1), REQUEST)
    assert runs.load("gpt") == RUN
    assert runs.request("gpt") == REQUEST
    assert runs.timeline("gpt") == [an_entry(1)]
    assert runs.run_of("gpt") == "gpt"


@pytest.mark.parametrize("count", [2, 50, 400])
def test_a_rebuilt_run_owns_the_jobs_of_its_first_and_its_newest_attempts(runs, count):
    """The event of an earlier attempt's job comes after that of the newest: it must not become a run of its own."""
    attempts = (Attempt(1, "gpt"), *(Attempt(n, f"gpt-a{n:03d}") for n in range(2, count + 1)))
    runs.save(replace(RUN, attempts=attempts))
    assert {runs.run_of(attempt.job_name) for attempt in (attempts[0], *attempts[1:][-50:])} == {"gpt"}


def test_a_missing_run_or_owner_is_none(runs):
    assert runs.load("gpt") is None
    assert runs.run_of("gpt") is None


def test_times_in_a_request_become_text(runs):
    """SageMaker's descriptions hold times; a request that kept one stays storable."""
    runs.save(RUN, request={"At": NOON})
    assert runs.request("gpt") == {"At": "2026-01-31T12:00:00+00:00"}
    with pytest.raises(TypeError, match="a request contains a set, which JSON cannot represent"):
        runs.save(replace(RUN, version=2), request={"At": {1}})


def test_a_run_is_begun_once(runs):
    runs.save(RUN)
    with pytest.raises(Conflict, match="run gpt has another version than 0"):
        runs.save(RUN)


@pytest.mark.parametrize("version", [2, 4, 9])
def test_a_decision_on_an_old_run_is_refused_whole(runs, version):
    """The stored run is at version 2, so only version 3 may follow: no half of the decision is kept."""
    runs.save(RUN, an_entry(1), REQUEST)
    runs.save(replace(RUN, version=2))
    before = everything()
    successor = replace(RUN, attempts=(*RUN.attempts, Attempt(2, "gpt-a002")), version=version)
    with pytest.raises(Conflict):
        runs.save(successor, an_entry(version), {"other": "request"})
    assert everything() == before
    runs.save(replace(successor, version=3))
    assert runs.run_of("gpt-a002") == "gpt"


def test_a_second_version_of_nothing_is_refused(runs):
    """A run that was deleted by hand does not come back as a torso."""
    with pytest.raises(Conflict):
        runs.save(replace(RUN, version=2))
    assert everything() == []


@pytest.mark.parametrize(
    "write",
    [
        lambda table: DynamoRuns(table).save(RUN),
        lambda table: DynamoRuns(table).ignore("gpt", "no checkpoints", until=NOON),
        lambda table: DynamoClusters(table).keep(ClusterRecord("pod", version=1), until=NOON),
    ],
    ids=["a-run", "a-job-to-ignore", "a-cluster"],
)
def test_other_errors_are_no_conflicts(table, write):
    """A table that is not there is for the operator, not for another try."""
    with pytest.raises(ClientError, match="ResourceNotFound"):
        write("nowhere")


def test_open_runs_are_those_that_the_sweep_must_ask_about(runs):
    """Ended runs leave the index with the very write that ends them; a released one comes back."""
    many = [replace(RUN, id=f"run-{n}", attempts=(Attempt(1, f"run-{n}"),)) for n in range(30)]
    for run in many:
        runs.save(run)
    assert sorted(name for name, _ in runs.open_runs()) == sorted(run.id for run in many)

    over = replace(many[0], state=RunState.HELD, version=2)
    runs.save(over)
    assert len(list(runs.open_runs())) == 29
    runs.save(replace(over, state=RunState.WATCHING, version=3))
    assert replace(over, state=RunState.WATCHING, version=3) in dict(runs.open_runs()).values()


def test_a_held_run_whose_job_lives_stays_open(runs):
    """It has ended for us, but its job burns money: the sweep goes on asking."""
    runs.save(replace(RUN, state=RunState.HELD, attempts=(Attempt(1, "gpt", status=JobStatus.IN_PROGRESS),)))
    assert [name for name, _ in runs.open_runs()] == ["gpt"]


def test_every_run_there_is(runs):
    runs.save(RUN, an_entry(1), REQUEST)
    runs.save(replace(RUN, id="old", state=RunState.COMPLETED, attempts=(Attempt(1, "old"),)))
    runs.ignore("stranger", "no tag", until=NOON)
    assert sorted(name for name, run in runs.all_runs() if run) == ["gpt", "old"]


def test_a_timeline_reads_from_the_first_day(runs):
    """Oldest first, also past the ninth entry, and only this run's."""
    for version in range(1, 13):
        runs.save(replace(RUN, version=version), an_entry(version))
    runs.save(replace(RUN, id="gpt-2", attempts=(Attempt(1, "gpt-2"),)), replace(an_entry(1), run="gpt-2"))
    assert [entry.version for entry in runs.timeline("gpt")] == list(range(1, 13))


def test_a_decision_without_a_reason_leaves_no_entry(runs):
    runs.save(RUN)
    assert runs.timeline("gpt") == []


def test_an_ignored_job_is_known_until_it_expires(runs):
    """The first time is news, the second is not. DynamoDB deletes it days after the time that it was told."""
    until = datetime.now(UTC) + timedelta(hours=1)
    assert runs.ignore("late", "it has no tag", until=NOON)
    assert runs.find_unknown_jobs(["late"]) == {"late"} and not runs.is_ignored("late")
    assert runs.ignore("late", "it has no tag", until=until)
    assert runs.find_unknown_jobs(["late"]) == set()
    client("dynamodb").delete_item(TableName=TABLE, Key={"pk": {"S": "job#late"}, "sk": {"S": "job"}})
    assert runs.ignore("stranger", "it has no tag", until=until)
    assert not runs.ignore("stranger", "it has no tag", until=until)
    assert runs.run_of("stranger") is None
    assert runs.find_unknown_jobs(["stranger", "new"]) == {"new"}
    assert runs.is_ignored("stranger") and not runs.is_ignored("new")
    (item,) = everything()
    assert item["expires"] == {"N": str(int(until.timestamp()))}


def test_the_arrival_of_an_event_is_kept_until_it_expires(runs):
    """`rerail deploy` waits for this item; no run is open by it."""
    runs.confirm_delivery("ab" * 16, until=NOON)
    key = {"pk": {"S": "check#" + "ab" * 16}, "sk": {"S": "check"}}
    item = client("dynamodb").get_item(TableName=TABLE, Key=key)["Item"]
    assert item["expires"] == {"N": str(int(NOON.timestamp()))}
    assert list(runs.open_runs()) == list(runs.all_runs()) == []


def test_a_runs_own_job_cannot_be_ignored(runs):
    """Whoever asks late finds that it is taken."""
    runs.save(RUN)
    assert not runs.ignore("gpt", "no tag", until=NOON)
    assert runs.run_of("gpt") == "gpt" and not runs.is_ignored("gpt")


def test_an_ignored_job_can_be_adopted_after_all(runs):
    """A tag that was added later counts: the run takes the job, and it no longer expires."""
    runs.ignore("gpt", "it has no tag", until=NOON)
    runs.save(RUN)
    assert runs.run_of("gpt") == "gpt"
    assert not [item for item in everything() if "expires" in item]


def test_unknown_jobs_are_found_in_any_number(runs):
    """More names than one BatchGetItem takes, and none at all."""
    names = [f"job-{n}" for n in range(2 * READ_BATCH + 7)]
    runs.save(RUN)
    assert runs.find_unknown_jobs([*names, "gpt"]) == set(names)
    assert runs.find_unknown_jobs([]) == set()
    assert runs.find_unknown_jobs(["gpt", "gpt"]) == set()


def run_with_attempts(count: int) -> Run:
    """Return a run whose attempts each lost a node, with an incident for each."""
    attempts = tuple(
        Attempt(
            number,
            f"gpt-a{number:03d}",
            status=JobStatus.FAILED,
            created_at=NOON + timedelta(hours=number),
            failure_reason=f"InternalServerError: request {sha256(str(number).encode()).hexdigest()}",
            fingerprint=sha256(f"f{number}".encode()).hexdigest()[:16],
            last_step=number * 977,
        )
        for number in range(1, count + 1)
    )
    incidents = tuple(
        Incident(
            attempt.number,
            "job_failed",
            attempt.number,
            Cause.INFRASTRUCTURE,
            f"attempt {attempt.number} failed: infrastructure; relaunching from step {attempt.last_step}",
            attempt.failure_reason,
            NOON + timedelta(hours=attempt.number),
            NOON + timedelta(hours=attempt.number, seconds=40),
        )
        for attempt in attempts
    )
    return replace(RUN, attempts=attempts, incidents=incidents)


def test_a_long_run_fits_into_one_item(runs):
    """DynamoDB takes 400 KB; a run on thousands of machines has hundreds of attempts."""
    run = run_with_attempts(1500)
    runs.save(run, an_entry(1), REQUEST)
    assert runs.load("gpt") == run
    assert dict(runs.open_runs())["gpt"] == run
    (item,) = (item for item in everything() if item["sk"]["S"] == "run")
    assert len(item["doc"]["B"]) < 300_000


@pytest.mark.threat("T28")
def test_a_run_that_is_too_large_is_recorded_without_its_earlier_texts(runs):
    """Errors that do not compress, and a bus that takes no events: the run is still recorded."""
    run = run_with_attempts(200)
    noise = "".join(sha256(f"n{number}".encode()).hexdigest() for number in range(14_000))
    changes = tuple(
        StateChange(str(n), None, RunState.HELD, NOON, n, 1, noise[n * 900 : n * 900 + 900]) for n in range(950)
    )
    run = replace(run, unpublished=changes)
    runs.save(run)
    loaded = runs.load("gpt")
    assert (loaded.current, loaded.incidents[-1]) == (run.current, run.incidents[-1])
    assert loaded.unpublished == changes[-100:]
    assert [attempt.job_name for attempt in loaded.attempts] == [attempt.job_name for attempt in run.attempts]
    assert loaded.attempts[0].failure_reason == ""
    assert dict(runs.open_runs())["gpt"] == loaded


def test_a_long_request_and_a_long_entry_are_compressed(runs):
    """A hundred hyperparameters that JSON makes six times as long, and a folder of thousands of checkpoints."""
    request = {"HyperParameters": {f"p{number}": "é" * 2500 for number in range(100)}}
    entry = replace(an_entry(1), signal={"checkpoints": [f"s3://bucket/a/checkpoint-{n}/" for n in range(30_000)]})
    runs.save(RUN, entry, request)
    assert runs.request("gpt") == request
    assert runs.timeline("gpt") == [entry]


def test_an_entry_that_is_too_large_is_recorded_without_its_signal(runs):
    """Names that do not compress: the decision is recorded, with its reason and its actions."""
    names = [sha256(str(number).encode()).hexdigest() for number in range(20_000)]
    entry = replace(an_entry(1), signal={"checkpoints": names}, actions=({"type": "StopJob"},))
    runs.save(RUN, entry)
    assert runs.timeline("gpt") == [replace(entry, signal={}, inputs={})]
    runs.save(replace(RUN, version=2), replace(entry, version=2, actions=tuple({"name": name} for name in names)))
    assert runs.timeline("gpt")[-1].actions == ()
    assert runs.timeline("gpt")[-1].reason == entry.reason
