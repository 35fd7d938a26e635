"""The deployed sweep at work on CloudWatch metrics: five runs at once, each with a fault that only metrics show."""

import pytest

from tests.deployed.jobs import LOSSES, Account

pytestmark = pytest.mark.slow
# Each fault: what the detectors must say of it, and the cause that the job is relaunched for, if it is.
FAULTS = {
    "spike": ("divergence", "diverged"),
    "nan": ("non_finite", "diverged"),
    "stall": ("stall", "hang"),
    "heal": ("loss_spike", None),
    "blind": ("blind", None),
}
FAULT_STEP, STEPS = 520, 850


@pytest.fixture(scope="module")
def account_with_faults(account: Account) -> Account:
    """All five under way at once."""
    for fault in FAULTS:
        account.submit(f"has-{fault}", script=LOSSES, steps=STEPS, FAULT=fault, FAULT_STEP=str(FAULT_STEP))
    return account


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_only_metrics_show_is_found_and_mended_or_told(account_with_faults: Account, fault: str):
    """What lasts is stopped and resumed from before it; what mends itself, or only fell silent, is left alone."""
    kind, cause = FAULTS[fault]
    run = account_with_faults.run_in(f"has-{fault}", "completed", within_s=240)
    findings = {entry.finding for entry in account_with_faults.runs.timeline(run.id)}
    assert kind in findings
    assert [attempt.cause for attempt in run.attempts if attempt.cause] == ([cause] if cause else [])
    if cause:
        assert 0 < run.current.resumed_from_step <= FAULT_STEP
        assert run.incidents[0].mended
