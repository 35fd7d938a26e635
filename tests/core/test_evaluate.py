"""The state of the detectors after relaunches and restarts in place."""

import pytest

from rerail.detection.detectors import Detectors, DetectorState
from rerail.detection.evaluate import MonitoredRun, RunDetection, resume_detection
from rerail.detection.non_finite import NonFinite
from rerail.detection.throughput_drop import ThroughputDrop
from rerail.model.metrics import Cursor
from rerail.model.policy import Policy
from rerail.model.run import Attempt, InPlaceRestart, Run, RunState
from tests.fakes import MIDNIGHT

LEARNT = Detectors(non_finite=NonFinite(recent=2), throughput_drop=ThroughputDrop(slow=7))
MEMORY = RunDetection("gpt", Cursor("gpt"), DetectorState(LEARNT))


@pytest.mark.parametrize(("before_step", "recent", "slow"), [(None, 2, 7), (400, 0, 0)])
def test_a_restart_in_place_forgets_only_what_a_rollback_makes_unreliable(before_step, recent, slow):
    order = InPlaceRestart(1, "c", "r", MIDNIGHT, MIDNIGHT, restarted_at=MIDNIGHT, before_step=before_step)
    assert resume(Attempt(1, "gpt", in_place_restarts=(order,))) == (recent, slow)


@pytest.mark.parametrize(("onset", "recent"), [(None, 2), (400, 0)])
def test_a_relaunch_forgets_the_speed_of_other_machines_and_a_rollback_all(onset, recent):
    assert resume(Attempt(1, "gpt", onset_step=onset), Attempt(2, "gpt-a002")) == (recent, 0)


def resume(*attempts: Attempt) -> tuple[int, int]:
    monitored = MonitoredRun(Run("gpt", "default", RunState.WATCHING, MIDNIGHT, attempts), Policy(), None, True)
    detectors = resume_detection(MEMORY, monitored, at=MIDNIGHT).detectors.detectors
    return detectors.non_finite.recent, detectors.throughput_drop.slow
