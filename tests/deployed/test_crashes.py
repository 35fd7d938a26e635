"""A run survives a broken AWS call in each phase; test_every_call.py breaks every call in every way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from local.pace import Pace
from tests.deployed.conftest import ASSEMBLIES
from tests.deployed.faults import scenarios
from tests.deployed.faults.faulty_aws import SCALE, SWEEPS, FaultyAws
from tests.deployed.faults.points import Plan, Point
from tests.deployed.faults.scenarios import ScenarioRun
from tests.deployed.jobs import apart, patient

pytestmark = pytest.mark.slow
SCENARIO = "with an agent"
FAULTS = (
    Point(SCENARIO, "adoption", "supervise events:PutEvents eventbridge._put for publish_change", "killed after"),
    Point(SCENARIO, "handshake", "supervise sagemaker:StopTrainingJob sagemaker.stop", "answer lost"),
    Point(SCENARIO, "recovery", "supervise sagemaker:CreateTrainingJob sagemaker._create for create", "killed after"),
    Point(SCENARIO, "completion", "notify sns:Publish sns.publish", "not reached"),
)


@pytest.fixture
def faulty(tmp_path: Path, pace: Pace) -> Iterator[FaultyAws]:
    """A local AWS of its own: its workers are killed."""
    scale, sweeps = SCALE / pace.slowdown, SWEEPS / pace.slowdown
    with apart(tmp_path / "aws", scale=scale, schedule_scale=sweeps, assemblies=ASSEMBLIES) as aws:
        yield FaultyAws(aws, tmp_path / "faults", pace, lambda policy: patient(policy, pace))


def test_a_run_survives_a_broken_call_in_each_of_its_phases(faulty: FaultyAws, monkeypatch: pytest.MonkeyPatch):
    """And what it is judged by can fail: another number of jobs, and a letter that nobody is told of."""
    dead = next(url for url in faulty.dead if "Signals" in url)
    faulty.sqs.send_message(QueueUrl=dead, MessageBody="a letter")
    scenario_run = ScenarioRun(faulty, 1, Plan(SCENARIO, FAULTS))
    found = scenario_run.execute()
    assert found.wrong == ""
    assert found.fired == {point.phase for point in FAULTS}, "each call was met, and broken"
    assert found.letters == (dead.rpartition("/")[2],), "the letter is told, since its alarm has gone off"

    def are_notified() -> bool:
        faulty.read_notices()
        return all(any(word in subject for subject in scenario_run._notices()) for word in ("relaunching", "completed"))

    faulty.account.wait("what people are told", are_notified)
    monkeypatch.setitem(scenarios.ATTEMPTS, SCENARIO, 2)  # type: ignore[arg-type]
    name = scenario_run.name
    assert list(scenario_run._of_the_jobs()) == [f"its jobs are {name}, {name}-a002, {name}-a003"]
    monkeypatch.setattr(scenarios, "ALARMED_WITHIN_S", 0.1)
    faulty.alarms.clear()
    faulty.sqs.send_message(QueueUrl=dead, MessageBody="another")
    scenario_run._settle_letters()
    assert "1 dead letters in" in found.wrong and "no alarm" in found.wrong
