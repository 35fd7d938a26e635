"""What `rerail show` says of a run's machines: where it went, what is kept, and what SageMaker mended."""

import io
from datetime import UTC, datetime

from rich.console import Console

from cli.runs import describe_machines, make_attempts_table
from rerail.model.actions import Machines
from rerail.model.machines import WarmPool
from rerail.model.run import Attempt, JobStatus, Run, RunState
from rerail.model.self_repairs import SelfRepair

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def a_run(**facts) -> Run:
    attempt = Attempt(1, "gpt", JobStatus.FAILED, ended_at=NOON, training_started_at=NOON, **facts)
    return Run("gpt", "default", RunState.WAITING, NOON, (attempt,))


def test_an_attempt_on_other_machines_is_shown_with_them_and_one_that_failed_with_its_gpu():
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(make_attempts_table(a_run(machines=Machines(("ml.p4de.24xlarge",), ("subnet-1",)))))
    console.print(make_attempts_table(a_run(gpu="GPU-5a1c (serial 7, driver 580.159)")))
    shown = console.export_text()
    assert "on ml.p4de.24xlarge in subnet-1" in shown and "failed on GPU-5a1c (serial 7, driver 580.159)" in shown


def test_machines_that_are_kept_are_shown_as_long_as_they_may_be_paid_for():
    kept = a_run(keep_alive_seconds=1800, pool=WarmPool("Available", 40))
    assert list(describe_machines(kept)) == ["warm pool of gpt: Available, for 30 min at most"]
    unknown = a_run(keep_alive_seconds=1800)
    assert list(describe_machines(unknown)) == ["warm pool of gpt: if SageMaker keeps one, for 30 min at most"]
    assert list(describe_machines(a_run(keep_alive_seconds=1800, pool=WarmPool("Reused", 40, "gpt-a002")))) == []
    assert list(describe_machines(a_run())) == []


def test_sagemakers_own_restarts_are_shown():
    run = a_run(self_repairs=3, repairs={SelfRepair.SPOT: 2, SelfRepair.CLUSTER: 1}, repair_seconds=900.0)
    assert list(describe_machines(run)) == [
        "restarted by SageMaker itself: spot 2, cluster 1; 15 min until it trained again"
    ]
