"""Decide on a policy that was changed, removed or broken while a run is under it."""

from dataclasses import replace

from rerail.decisions.decision import Decision, make_notice
from rerail.decisions.open_pages import make_all_clear
from rerail.model.actions import ClearedBy, Severity
from rerail.model.policy import Policy
from rerail.model.run import OpenPage, Run
from rerail.model.runbooks import Runbook
from rerail.model.signals import PolicyRead


def on_policy(run: Run, read: PolicyRead, policy: Policy) -> Decision:
    """Record the policy, so that it applies if it is removed; page once while it cannot be used."""
    page = find_policy_page(run)
    if read.policy is not None:
        run = replace(run, last_policy=read.policy, pages=tuple(other for other in run.pages if other is not page))
        if page is None:
            return Decision(run)
        why = f"policy {run.policy!r} can be used again, with the mode {read.policy.mode}"
        return Decision(run, (make_all_clear(run, page, "its policy is back", why),), why, finding="policy")
    if page is not None:
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
        since=read.at,
        until=ClearedBy.DEPLOYED,
    )
    return Decision(run, (notice,), reason, finding="policy")


def find_policy_page(run: Run) -> OpenPage | None:
    """Return the open page about the run's policy, or None."""
    return next((page for page in run.pages if page.notice.until is ClearedBy.DEPLOYED), None)
