"""Restart in place in the deployed stack: the crash is reported, judged, ordered and obeyed, within one job."""

from dataclasses import replace
from pathlib import Path

import pytest

from rerail.model.policy import Policy
from tests.deployed.jobs import Account, patient

pytestmark = pytest.mark.slow
CRASHING = Path(__file__).parent / "crashing_script.py"


@pytest.fixture(scope="module")
def in_place(account: Account) -> str:
    """A policy that restarts in place; the suite's own does not."""

    def adapt(policy: Policy) -> Policy:
        policy = patient(policy, account.pace)
        return replace(policy, restart=replace(policy.restart, in_place=True))

    return account.add_policy("in-place", adapt)


def test_a_crash_is_recovered_within_its_job(account: Account, in_place: str):
    """A bug at step 50; the same job goes on from step 40, and completes."""
    mailbox = account.aws.outputs["MailboxBucket"]
    account.submit(
        "crashes-once",
        policy=in_place,
        script=CRASHING,
        steps=80,
        RERAIL_MAILBOX=f"s3://{mailbox}",
        RERAIL_POLL_SECONDS="1",
    )
    run = account.run_in("crashes-once", "completed")
    assert account.jobs("crashes-once") == ["crashes-once"]
    (order,) = run.current.in_place_restarts
    assert order.restarted_at is not None
    assert (order.number, order.resume_step, order.failed) == (1, None, "")
    assert order.restarted_at > order.asked_at
    assert [(i.kind, i.cause, i.recovered) for i in run.incidents] == [("crashed", "user_code", True)]
    assert not run.current.agent, "it is init that spoke"
