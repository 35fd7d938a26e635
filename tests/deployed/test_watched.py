"""The deployed sweep at work on CloudWatch metrics: six runs at once, each with a fault that only metrics show."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from rerail.model.policy import Policy
from rerail.model.run import Run
from rerail.requests.relaunch import POLICY_TAG
from tests.deployed.jobs import LOSSES, Account, patient

pytestmark = pytest.mark.slow
# Each fault: what the detectors must say of it, and the cause that the job is relaunched for, if it is.
FAULTS = {
    "spike": ("divergence", "diverged"),
    "nan": ("non_finite", "diverged"),
    "stall": ("stall", "hang"),
    "idle": ("stall", "hang"),
    "heal": ("loss_spike", None),
    "blind": ("blind", None),
}
# Rows are seconds, of ten steps at most. A loss can be judged after 56 of them, a spike after 34, the rest far sooner.
# The usual load is known after 20 minutes of the scaled clock; the job that idles makes five steps in each.
FAULT_STEPS = {"spike": 600, "heal": 380, "idle": 150}
SOON = 80
# The silence that is judged, at reference speed; only the runs that fall silent have such a policy.
STALLED, BLIND = timedelta(seconds=8), timedelta(seconds=8)
# Six times this without computing stops a job.
IDLE = timedelta(seconds=2)


@pytest.fixture(scope="module")
def policies(account: Account) -> dict[str, str]:
    """The policies of the runs that fall silent: each judges only the silence that its run is there for."""

    def strict(fault: str, **silence: timedelta) -> str:
        scaled = {name: limit * account.pace.slowdown for name, limit in silence.items()}

        def adapt(policy: Policy) -> Policy:
            policy = patient(policy, account.pace)
            return replace(policy, detection=replace(policy.detection, **scaled))

        return account.add_policy(f"strict-{fault}", adapt)

    return {
        "stall": strict("stall", stall_floor=STALLED),
        "idle": strict("idle", stall_floor=IDLE),
        "blind": strict("blind", blind_after=BLIND),
    }


@pytest.fixture(scope="module")
def enough(account: Account, policies: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All six under way at once; each goes on until its file exists. The one that idles defines no metrics."""
    folder = tmp_path_factory.mktemp("enough")
    files = {fault: folder / fault for fault in FAULTS}
    for fault, file in files.items():
        at = FAULT_STEPS.get(fault, SOON)
        asked = {"FAULT": fault, "FAULT_STEP": str(at), "UNTIL": str(file)}
        tags = {POLICY_TAG: policies.get(fault, "default")}
        request = account.make_request(f"has-{fault}", tags=tags, script=LOSSES, steps=at + 20, **asked)
        if fault == "idle":
            del request["AlgorithmSpecification"]["MetricDefinitions"]
        account.sagemaker.create_training_job(**request)
    return files


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_only_metrics_show_is_fixed_or_reported(account: Account, enough: dict[str, Path], fault: str):
    """What lasts is stopped and resumed from before it; what mends itself, or only fell silent, is left alone."""
    name, (kind, cause) = f"has-{fault}", FAULTS[fault]

    def judged() -> Run | None:
        run = account.runs.load(name)
        is_detected = run and kind in {entry.finding for entry in account.runs.timeline(name)}
        is_recovered = run and run.incidents and run.incidents[0].recovered
        return run if is_detected and (is_recovered or not cause) else None

    account.wait(f"{kind} of {name}", judged)
    enough[fault].touch()
    run = account.run_in(name, "completed")
    assert [attempt.cause for attempt in run.attempts if attempt.cause] == ([cause] if cause else [])
    if cause:
        assert 0 < run.current.resumed_from_step <= FAULT_STEPS.get(fault, SOON)
