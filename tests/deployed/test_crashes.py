"""AWS calls of the deployed functions broken in a run's life, one in each of its phases, as bench.crashes does."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from local.pace import Pace
from tests.deployed.conftest import ASSEMBLIES
from tests.deployed.faults import lives
from tests.deployed.faults.environment import SCALE, SWEEPS, Stage
from tests.deployed.faults.lives import Play
from tests.deployed.faults.points import Plan, Point
from tests.deployed.jobs import apart, patient

pytestmark = pytest.mark.slow
LIFE = "with an agent"
FAULTS = (
    Point(LIFE, "adoption", "supervise dynamodb:TransactWriteItems dynamodb.save", "killed after"),
    Point(LIFE, "handshake", "supervise sagemaker:StopTrainingJob sagemaker.stop", "answer lost"),
    Point(LIFE, "recovery", "supervise sagemaker:CreateTrainingJob sagemaker.create", "killed after"),
    Point(LIFE, "completion", "notify sns:Publish sns.say", "not reached"),
)


@pytest.fixture
def stage(tmp_path: Path, pace: Pace) -> Iterator[Stage]:
    """A local AWS of its own: its workers are killed."""
    scale, sweeps = SCALE / pace.slowdown, SWEEPS / pace.slowdown
    with apart(tmp_path / "aws", scale=scale, schedule_scale=sweeps, assemblies=ASSEMBLIES) as aws:
        yield Stage(aws, tmp_path / "faults", pace, lambda policy: patient(policy, pace))


def test_a_run_survives_a_broken_call_in_each_phase(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    """And what it is judged by can fail: another number of jobs, and a letter that nobody is told of."""
    dead = next(url for url in stage.dead if "Signals" in url)
    stage.sqs.send_message(QueueUrl=dead, MessageBody="a letter")
    play = Play(stage, 1, Plan(LIFE, FAULTS))
    found = play.play()
    assert found.wrong == ""
    assert found.fired == {point.phase for point in FAULTS}, "each call was met, and broken"
    assert found.letters == (dead.rpartition("/")[2],), "the letter is told, since its alarm has gone off"

    def are_told() -> bool:
        stage.hear()
        return all(any(word in subject for subject in play._told()) for word in ("relaunching", "completed"))

    stage.account.wait("what people are told", are_told)
    monkeypatch.setitem(lives.ATTEMPTS, LIFE, 2)  # type: ignore[arg-type]
    name = play.name
    assert list(play._of_the_jobs()) == [f"its jobs are {name}, {name}-a002, {name}-a003"]
    monkeypatch.setattr(lives, "ALARMED_WITHIN_S", 0.1)
    stage.alarms.clear()
    stage.sqs.send_message(QueueUrl=dead, MessageBody="another")
    play._settle_letters()
    assert "1 dead letters in" in found.wrong and "no alarm" in found.wrong
