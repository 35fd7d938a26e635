"""Decide on a policy that was changed, removed or broken while a run is under it."""

from dataclasses import replace
from datetime import datetime, timedelta

from rerail.decisions.decision import Decision, make_notice, with_warnings
from rerail.decisions.open_pages import make_all_clear
from rerail.model.actions import ClearedBy, Severity
from rerail.model.policy import Policy
from rerail.model.run import OpenPage, Run
from rerail.model.runbooks import Runbook
from rerail.model.signals import PolicyRead

PAGE_AFTER = timedelta(minutes=10)


def on_policy(run: Run, read: PolicyRead, policy: Policy) -> Decision:
    """Record the policy, so that it applies if it is removed; page once if it cannot be used for a while.

    While a deployment is under way, a function of the version before may meet a policy of the next one.
    """
    page = find_policy_page(run)
    if read.policy is not None:
        run = replace(run, pages=tuple(other for other in run.pages if other is not page))
        run = replace(run, last_policy=read.policy, policy_lost_at=None)
        if page is None:
            return Decision(run)
        why = f"policy {run.policy!r} can be used again, with the mode {read.policy.mode}"
        return Decision(run, (make_all_clear(run, page, "its policy is back", why),), why, finding="policy")
    run = replace(run, policy_lost_at=run.policy_lost_at or read.at)
    if not is_page_due(run, read.at):
        return Decision(run)
    applies = (
        f"the policy as it was read last applies (mode {run.last_policy.mode})"
        if run.last_policy
        else "no earlier version of it is known, so the run is only observed"
    )
    reason = f"{read.problem}: {applies}"
    notice = make_notice(
        run,
        Severity.PAGE,
        "its policy cannot be used",
        reason,
        key="policy-missing",
        runbook=Runbook.OBSERVING,
        did=applies,
        todo=f"Deploy a valid policy named {run.policy} again (rerail policy check policies/{run.policy}.toml)",
        since=run.policy_lost_at,
        until=ClearedBy.DEPLOYED,
    )
    return Decision(with_warnings(run, "policy-missing"), (notice,), reason, finding="policy")


def is_page_due(run: Run, at: datetime) -> bool:
    """Return whether the policy has been unusable for long enough, and that was not paged yet."""
    since = run.policy_lost_at
    return since is not None and at - since >= PAGE_AFTER and find_policy_page(run) is None


def find_policy_page(run: Run) -> OpenPage | None:
    """Return the open page about the run's policy, or None."""
    return next((page for page in run.pages if page.notice.until is ClearedBy.DEPLOYED), None)
