"""Whoever may create jobs may give them any free name and any tag: neither makes a job part of somebody else's run."""

from datetime import timedelta
from hashlib import sha256
from random import Random

import pytest

from rerail.aws.dynamodb import DynamoRuns
from rerail.messages.messages import CommandReceived, JobStateChanged
from rerail.model.actions import Severity
from rerail.model.checkpoints import Checkpoint
from rerail.model.errors import Throttled
from rerail.model.run import Job, JobStatus, RunState
from rerail.model.signals import OperatorVerb
from rerail.model.signatures import VARIABLE
from rerail.requests.relaunch import ATTEMPT_TAG, RUN_TAG
from tests.fakes import KEY, World
from tests.threats.conftest import ANOTHER

MINUTE = timedelta(minutes=1)
NODE_LOST = "InternalServerError: We encountered an internal error.  Please try again."


def impostor(world: World, name: str = "gpt-a002", *, key: str = "", policy: str | None = "default") -> Job:
    """A stranger's job, called and tagged as if Rerail had launched it for the run gpt."""
    own = {"Environment": {VARIABLE: key}} if key else {}
    job = world.sagemaker.submit(name, policy=policy, uri="s3://strangers/elsewhere/", request=own)
    world.sagemaker.job_tags[name] |= {RUN_TAG: "gpt", ATTEMPT_TAG: name[-3:].lstrip("a0")}
    return job


@pytest.mark.threat("T4")
@pytest.mark.parametrize("key", ["", ANOTHER, KEY[:-1]], ids=["no key", "another key", "half a key"])
@pytest.mark.parametrize("name", ["gpt-a002", "gpt-a009"])
def test_a_job_that_calls_itself_an_attempt_is_not_taken_up(world, name, key):
    """The run goes on with its own job, which is not thought over; the stranger's is refused, and that is told."""
    impostor(world, name, key=key)
    world.supervisor().handle(JobStateChanged(name))
    world.minutes(5)
    run = world.run()
    assert (run.state, [attempt.job_name for attempt in run.attempts]) == (RunState.WATCHING, ["gpt"])
    assert set(world.sagemaker.live()) == {"gpt", name}
    assert f"{name}: not supervised" in [notice.title for notice in world.bus.notices]


@pytest.mark.threat("T4")
def test_a_job_of_ours_that_the_record_has_forgotten_is_taken_up(world):
    """The same name and tags with the run's key: a table restored from a backup catches up with the world."""
    impostor(world, key=KEY)
    world.supervisor().handle(JobStateChanged("gpt-a002"))
    assert world.run().current.job_name == "gpt-a002"


@pytest.mark.threat("T5")
@pytest.mark.parametrize("status", [JobStatus.IN_PROGRESS, JobStatus.FAILED, JobStatus.COMPLETED])
def test_a_name_that_is_taken_holds_the_run_and_adopts_nobody(world, status):
    """Somebody has created the successor's name before us: whatever becomes of that job is not the run's, and a human
    is paged. Once the name is free, a release goes on with the run."""
    world.checkpoints.save(step=50)
    impostor(world, policy=None)
    if status is not JobStatus.IN_PROGRESS:
        world.sagemaker.end("gpt-a002", status, NODE_LOST)
    world.lose_node(minutes=10)
    run = world.run()
    assert run.state is RunState.HELD and "another job has that name" in run.hold_reason
    assert "`aws sagemaker delete-training-job --training-job-name gpt-a002`, then release" in run.hold_advice
    assert [notice.severity for notice in world.bus.notices].count(Severity.PAGE) == 1
    assert not run.current.exists
    del world.sagemaker.jobs["gpt-a002"]
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", "the stranger's job is gone"))
    world.minutes(10)
    assert (world.run().state, world.run().current.job_name) == (RunState.WATCHING, "gpt-a002")
    assert world.sagemaker.requests["gpt-a002"]["Environment"][VARIABLE] == KEY


@pytest.mark.threat("T5")
def test_a_name_that_is_taken_while_a_launch_is_throttled_adopts_nobody(world, monkeypatch):
    """The launch is decided, and SageMaker asks us to come back later; somebody takes the name, and the job that then
    is seen under it is not ours."""
    create, refusals = world.sagemaker.create, [1, 2, 3]

    def hesitating(request):
        if not refusals:
            return create(request)
        if len(refusals) == 3:
            impostor(world, policy=None)
        refusals.pop()
        raise Throttled("Rate exceeded")

    monkeypatch.setattr(world.sagemaker, "create", hesitating)
    world.lose_node(minutes=10)
    assert world.run().state is RunState.HELD
    assert not world.run().current.exists


@pytest.mark.threat("T4")
def test_a_tag_that_names_a_run_adopts_a_job_into_no_run(world):
    """A job of any other name with the run's tags: refused, with the remedy, and the run knows nothing of it."""
    before = world.run()
    impostor(world, "finetune-002")
    world.supervisor().handle(JobStateChanged("finetune-002"))
    assert world.run() == before
    (notice,) = world.bus.notices
    assert "names a run that did not launch it; remove the tag" in notice.body


@pytest.mark.threat("T6")
def test_a_run_may_be_called_like_anothers_attempt(world):
    """A stranger's own run `gpt-a002`: a run of its own, and the name is not free for ours. Neither knows the other."""
    world.adopt("gpt-a002", uri="s3://strangers/elsewhere/")
    world.lose_node(minutes=10)
    assert world.run().state is RunState.HELD
    stranger = world.run("gpt-a002")
    assert (stranger.state, len(stranger.attempts)) == (RunState.WATCHING, 1)
    world.lose_node("gpt-a002", minutes=10)
    assert world.run("gpt-a002").current.job_name == "gpt-a002-a002"
    assert world.runs.run_of("gpt-a002-a002") == "gpt-a002"


@pytest.mark.threat("T28")
@pytest.mark.parametrize("tags", [{}, {RUN_TAG: "huge", ATTEMPT_TAG: "2"}], ids=["a job", "an attempt of a lost run"])
def test_a_job_too_large_to_record_pages_nobody(table, tags):
    """A hundred hyperparameters of the longest length that do not compress: refused once, with the remedy."""
    world = World()
    world.runs = DynamoRuns(table, lambda: world.clock().timestamp())
    letters = Random(7)
    values = ["".join(chr(letters.randrange(0x4E00, 0x9FFF)) for _ in range(2500)) for _ in range(100)]
    request = {"HyperParameters": {f"p{number}": value for number, value in enumerate(values)}}
    name = "huge-a002" if tags else "huge"
    world.sagemaker.submit(name, request=request)
    world.sagemaker.job_tags[name] |= tags
    for _ in range(5):
        assert world.supervisor().handle(JobStateChanged(name)) is None
    (notice,) = world.bus.notices
    assert (notice.severity, notice.title) == (Severity.INFORM, f"{name}: not supervised")
    assert "shorten its HyperParameters" in notice.body


@pytest.mark.threat("T28")
def test_a_folder_of_thousands_of_checkpoints_keeps_no_run_from_being_recorded(table):
    """Each decision quotes them all: the run is relaunched all the same."""
    world = World()
    world.runs = DynamoRuns(table)
    uri = "s3://sagemaker-us-east-1-111122223333/" + "experiments/" * 8
    world.adopt(uri=uri)
    for number in range(3000):
        path = f"{uri}{sha256(str(number).encode()).hexdigest()}/"
        saved = Checkpoint(path, number, 0, world.clock(), layout="hugging_face")
        world.checkpoints.saved.setdefault(uri, []).insert(0, saved)
    world.clock.pass_by(5 * MINUTE)
    world.lose_node(minutes=10)
    assert world.sagemaker.live() == ["gpt-a002"]
