"""Errors that several runs share, such as those of a broken image: few relaunches, one page, and an end for all."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.decisions.shared_errors import MARGIN, find_shareable_error, has_recovered
from rerail.messages.messages import CommandReceived, JobStateChanged, RunDue
from rerail.model.actions import Severity
from rerail.model.causes import Cause
from rerail.model.policy import Limits, Policy
from rerail.model.run import RunState
from rerail.model.signals import OperatorVerb
from tests.fakes import World

NAMES = [f"run-{number:02}" for number in range(12)]
FIFTY = [f"run-{number:02}" for number in range(50)]
BROKEN = "AlgorithmError: ValueError: the tokenizer has 32000 entries but the model 32064, exit code: 1"
MISSING = "AlgorithmError: ModuleNotFoundError: No module named 'flash_attn', exit code: 1"


@pytest.fixture
def world() -> World:
    return start(NAMES)


def start(names: list[str]) -> World:
    """Return a world in which these runs train."""
    world = World()
    for name in names:
        world.adopt(name, uri=f"s3://bucket/{name}/")
    return world


def fail(world: World, names: list[str], reason: str) -> None:
    """Fail each run's live job, one a second."""
    for job in world.sagemaker.live():
        if job[:6] in names:
            world.sagemaker.fail(job, reason)
            world.supervisor().handle(JobStateChanged(job))
            world.clock.pass_by(timedelta(seconds=1))


def relaunched(world: World) -> list[str]:
    return [
        name
        for name in sorted(world.runs.requests)
        if len(world.run(name).attempts) > 1 and world.run(name).current.exists
    ]


def test_five_of_fifty_runs_with_one_error_are_relaunched_and_one_page_is_sent():
    world = start(FIFTY)
    fail(world, FIFTY, BROKEN)
    world.minutes(5)
    tried = relaunched(world)
    assert len(tried) == 5
    world.minutes(3)
    fail(world, tried, BROKEN)
    world.minutes(120, every=timedelta(minutes=3))
    assert relaunched(world) == tried
    assert len(world.notice_titles(Severity.PAGE)) == 1
    assert {world.run(name).state for name in tried} == {RunState.HELD}
    waiting = world.run(next(name for name in FIFTY if name not in tried))
    assert waiting.state is RunState.WAITING
    assert all(name in waiting.open_incident.reason for name in tried)
    assert waiting.open_incident.reason.count("its relaunch waits") == 1
    world.minutes(120, every=timedelta(minutes=3))
    assert relaunched(world) == FIFTY


@pytest.mark.threat("T38")
@pytest.mark.parametrize("reason", [MISSING, BROKEN], ids=["held at once", "after a relaunch"])
def test_a_page_about_the_error_stands_for_all(world, reason):
    fail(world, NAMES[:3], reason)
    world.minutes(5)
    fail(world, NAMES[:3], reason)
    world.minutes(5)
    assert [world.run(name).state for name in NAMES[:3]] == [RunState.HELD] * 3
    assert len(world.notice_titles(Severity.PAGE)) == 1
    others = [notice for notice in world.bus.notices if "on-call was paged about this error of run" in notice.did]
    assert len(others) == 2


@pytest.mark.parametrize("is_released", [False, True])
def test_all_go_on_once_one_has_recovered(world, is_released):
    """It recovers by its relaunch, or once an operator has fixed the image and releases it."""
    fail(world, NAMES, BROKEN)
    world.minutes(5)
    tried = relaunched(world)
    if is_released:
        fail(world, tried, BROKEN)
        world.minutes(5)
        world.supervisor().handle(CommandReceived("1", tried[0], OperatorVerb.RELEASE, "ann", "a new image"))
        world.minutes(5)
        assert relaunched(world) == tried
    else:
        world.checkpoints.save(step=900, uri=f"s3://bucket/{tried[0]}/")
        fail(world, tried[1:], BROKEN)
    world.minutes(40)
    assert relaunched(world) == NAMES
    assert len(world.notice_titles(Severity.PAGE)) == 1


def test_a_run_has_recovered_by_its_end_a_later_checkpoint_or_the_time_it_trains(world):
    fail(world, NAMES[:1], BROKEN)
    failed_at = world.clock()
    world.minutes(5)
    run = world.run(NAMES[0])
    (incident,) = run.incidents
    later, soon = failed_at + timedelta(hours=9), world.clock()
    waits = replace(run, state=RunState.WAITING)
    untrained = replace(run, attempts=(replace(run.attempts[0], training_started_at=None), run.current))
    began = failed_at - timedelta(hours=3)
    stopped = replace(run.attempts[0], fingerprint="", training_started_at=began)
    unfailed = replace(run, attempts=(stopped, run.current))
    border = run.current.training_started_at + MARGIN
    for changed, at, expected in (
        (run, soon, False),
        (run, later, True),
        (untrained, border, False),
        (untrained, border + timedelta(seconds=1), True),
        (unfailed, border + timedelta(seconds=1), True),
        (waits, later, False),
        (replace(waits, attempts=run.attempts[:1]), later, False),
        (replace(run, state=RunState.COMPLETED), soon, True),
        (replace(waits, incidents=(replace(incident, recovered=True, closed_at=soon),)), soon, True),
        (replace(waits, incidents=(replace(incident, closed_at=soon),)), soon, False),
        (replace(waits, incidents=(replace(incident, passed_at=soon),)), soon, True),
        (replace(waits, incidents=(replace(incident, passed_at=failed_at),)), soon, False),
    ):
        assert has_recovered(changed, failed_at, at) is expected
    shared = {cause for cause in Cause if find_shareable_error(run, replace(run.attempts[0], cause=cause))}
    assert shared == {Cause.USER_CODE, Cause.DATA}


@pytest.mark.threat("T38")
@pytest.mark.parametrize(
    ("make_reason", "has_own_image"),
    [
        (lambda number: f"AlgorithmError: KeyError: 'column {chr(97 + number % 26)}{'x' * (number // 26)}'", False),
        (lambda number: "AlgorithmError: AssertionError: , exit code: 1", False),
        (lambda number: "AlgorithmError: torch._C._LinAlgError: 5, exit code: 1", False),
        (lambda number: 'AlgorithmError: ExecuteUserScriptError: ExitCode 1 ErrorMessage ""', False),
        (lambda number: "AlgorithmError: CalledProcessError: 'train.py' returned non-zero exit status 1", False),
        (lambda number: "InternalServerError: We encountered an internal error.  Please try again.", False),
        (lambda number: BROKEN, True),
    ],
    ids=["errors of their own", "a bare class", "a number", "a script", "a command", "platform", "images of their own"],
)
def test_other_failures_wait_for_nothing(world, make_reason, has_own_image):
    for number, name in enumerate(NAMES):
        if has_own_image:
            image = {"AlgorithmSpecification": {"TrainingImage": f"{name}:1"}}
            world.runs.requests[name] = {**world.runs.requests[name], **image}
        fail(world, [name], make_reason(number))
    world.minutes(10)
    assert relaunched(world) == NAMES


def test_a_run_waits_beside_a_record_that_cannot_be_read(world):
    fail(world, NAMES[:6], BROKEN)
    world.minutes(5)
    (waiting,) = set(NAMES[:6]) - set(tried := relaunched(world))
    world.runs.records |= dict.fromkeys(tried, "of another version")
    world.clock.pass_by(timedelta(minutes=10))
    world.supervisor().handle(RunDue(waiting))
    assert world.run(waiting).state is RunState.WAITING


def test_without_a_rate_limit_every_run_is_relaunched_and_pages(world):
    world.policies.by_name["default"] = Policy(limits=Limits(account_relaunches=0))
    fail(world, NAMES[:7], BROKEN)
    world.minutes(5)
    assert relaunched(world) == NAMES[:7]
    fail(world, NAMES[:7], BROKEN)
    world.minutes(5)
    assert len(world.notice_titles(Severity.PAGE)) == 7
