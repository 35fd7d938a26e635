"""What is not watched of a run is reported once, after an agent has had the time to report."""

from datetime import timedelta

import pytest

from rerail.incident_report.facts import Facts
from rerail.incident_report.summary import make_summary
from rerail.messages.messages import JobStateChanged
from rerail.model.actions import Severity
from rerail.model.policy import Mode, Notices, Policy
from rerail.model.run import JobStatus, RunState
from tests.fakes import BUCKET, World

METRICS = ("step", "loss")


@pytest.fixture
def world() -> World:
    world = World()
    world.policies.by_name["default"] = Policy()
    return world


def submit(world: World, *, metrics: tuple[str, ...], uri: str = BUCKET) -> None:
    """Start a supervised job that defines these metrics, and let it train for half an hour."""
    world.sagemaker.defined_metrics = metrics
    world.adopt(uri=uri)
    world.minutes(30)


def titles(world: World) -> list[str]:
    return [notice.title for notice in world.bus.notices if "watched" in notice.title]


def test_a_job_with_the_tag_alone_is_reported_once_with_the_line_that_changes_it(world: World) -> None:
    submit(world, metrics=())
    (notice,) = [notice for notice in world.bus.notices if "watched" in notice.title]
    assert notice.severity is Severity.INFORM
    assert "its loss and speed are unknown" in notice.body
    assert "supervised(request)" in notice.todo
    world.minutes(120)
    assert len(titles(world)) == 1


def test_an_agent_has_time_to_report(world: World) -> None:
    world.adopt()
    world.minutes(5)
    assert not titles(world)


def test_a_job_with_metrics_and_checkpoints_is_not_reported(world: World) -> None:
    submit(world, metrics=METRICS)
    assert not titles(world)


def test_a_missing_checkpoint_folder_is_reported(world: World) -> None:
    submit(world, metrics=METRICS, uri="")
    assert titles(world) == ["gpt: not everything is watched"]
    assert "CheckpointConfig" in world.bus.notices[-1].body


@pytest.mark.parametrize("mode", [Mode.PAUSE, Mode.OBSERVE])
def test_the_mode_does_not_matter(world: World, mode: Mode) -> None:
    world.policies.by_name["default"] = Policy(mode=mode)
    submit(world, metrics=())
    assert len(titles(world)) == 1


def test_a_policy_can_turn_it_off(world: World) -> None:
    world.policies.by_name["default"] = Policy(notices=Notices(unwatched_after=timedelta()))
    submit(world, metrics=())
    assert not titles(world)


@pytest.mark.parametrize(
    ("metrics", "values", "headline"),
    [
        (METRICS, {}, "Completed without a metric row: check its log"),
        (METRICS, {"step": 0.0}, "Completed: nothing to do"),
        (METRICS, {"accuracy": 0.9}, "Completed: nothing to do"),
        (("accuracy",), {}, "Completed: nothing to do"),
    ],
)
def test_a_run_that_completes_without_a_metric_row_is_reported(
    world: World, metrics: tuple[str, ...], values: dict[str, float], headline: str
) -> None:
    """Not where its metrics are not Rerail's, and no decision depends on it."""
    world.sagemaker.defined_metrics = metrics
    world.adopt()
    world.sagemaker.end("gpt", JobStatus.COMPLETED, metrics=values)
    world.supervisor().handle(JobStateChanged("gpt"))
    summary, (*_, notice) = make_summary(Facts(world.run(), world.clock())), world.bus.notices
    assert (world.run().state, summary["headline"], notice.severity) == (RunState.COMPLETED, headline, Severity.INFORM)
    is_silent = "check" in headline
    assert ("`rerail logs gpt` shows whether it trained" in summary["happened"]) is is_silent
    assert notice.title == f"gpt: completed{' without a metric row' * is_silent}"
