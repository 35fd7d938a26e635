"""Open pages: send each once, repeat it after a while, and send an all-clear when its subject is over."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from rerail.decisions.decision import Decision, has_pending
from rerail.model.actions import ClearedBy, CreateJob, Notify, Severity
from rerail.model.policy import Policy
from rerail.model.run import LaunchCheck, OpenPage, Run, RunState
from rerail.model.signals import Signal, Tick


def with_pages(before: Run, decision: Decision, signal: Signal, policy: Policy) -> Decision:
    """Return the decision with its pages opened and closed; a tick also repeats those that have been open for long."""
    decision = _with_pages_opened(decision, signal.at)
    decision = _with_pages_closed(decision)
    return _with_pages_repeated(decision, signal.at, policy) if isinstance(signal, Tick) else decision


def _with_pages_opened(decision: Decision, at: datetime) -> Decision:
    """Record new pages as open, and drop those that are open already: there is at most one for each key."""
    if not decision.actions:
        return decision
    run, actions = decision.run, []
    for action in decision.actions:
        if isinstance(action, Notify) and action.severity is Severity.PAGE:
            if _is_open(run, action):
                continue
            run = _with_page(run, action, at)
        actions.append(action)
    return replace(decision, run=run, actions=tuple(actions))


def _with_pages_closed(decision: Decision) -> Decision:
    """Close the pages that are over after the decision's actions, each with an all-clear."""
    run = decision.run
    if not run.pages:
        return decision
    updated = replace(run, pending=(*run.pending, *decision.actions))
    ends = {page: _format_end(run, page) for page in run.pages if _is_over(updated, page)}
    if not ends:
        return decision
    all_clears = [make_all_clear(run, page, end, decision.reason or end) for page, end in ends.items()]
    return replace(
        decision,
        run=replace(run, pages=tuple(page for page in run.pages if page not in ends)),
        actions=(*decision.actions, *all_clears),
        reason=decision.reason or "; ".join(all_clear.body for all_clear in all_clears),
    )


def _with_pages_repeated(decision: Decision, at: datetime, policy: Policy) -> Decision:
    """Send pages again that have been open for long."""
    run = decision.run
    if not run.pages:
        return decision
    updated = replace(run, pending=(*run.pending, *decision.actions))
    due = [page for page in run.pages if _is_due(updated, page, at, policy)]
    if not due:
        return decision
    return replace(
        decision,
        run=replace(run, pages=tuple(replace(page, notified_at=at) if page in due else page for page in run.pages)),
        actions=(*decision.actions, *(page.notice for page in due)),
        reason=decision.reason or "; ".join(f"still so: {page.notice.title}" for page in due),
    )


def clear_pages(run: Run, kinds: Iterable[str], why: str, *, end: str = "is over") -> tuple[Run, tuple[Notify, ...]]:
    """Return the run without pages about findings of these kinds, and their all-clears."""
    closed = [
        page for page in run.pages if page.notice.until is ClearedBy.RECOVERED and page.notice.about in set(kinds)
    ]
    run = replace(run, pages=tuple(page for page in run.pages if page not in closed))
    return run, tuple(make_all_clear(run, page, f"{page.notice.about} {end}", why) for page in closed)


def make_all_clear(run: Run, page: OpenPage, end: str, why: str) -> Notify:
    """Return the all-clear for a page, to the recipients of the page."""
    notice = page.notice
    return Notify(
        severity=Severity.CLEAR,
        title=f"{run.id}: all clear: {end}",
        body=why,
        key=f"{notice.key}/clear",
        runbook=notice.runbook,
        todo="Nothing more: this page is over",
        since=notice.since or page.notified_at,
        clears=notice.key,
    )


def _is_open(run: Run, notice: Notify) -> bool:
    """Return whether the page is open already.

    A page about a held run is always sent: the run was released and held again.
    """
    return notice.until is not ClearedBy.RELEASED and any(page.notice.key == notice.key for page in run.pages)


def _with_page(run: Run, notice: Notify, at: datetime) -> Run:
    """Return the run with this page open, instead of one with the same key."""
    others = tuple(page for page in run.pages if page.notice.key != notice.key)
    return replace(run, pages=(*others, OpenPage(notice, run.current.number, at)))


def _is_over(run: Run, page: OpenPage) -> bool:
    """Return whether the page is over, by the state of the run alone."""
    attempt, notice = run.current, page.notice
    match notice.until:
        case ClearedBy.RELEASED:
            return run.state is not RunState.HELD or attempt.number != page.attempt
        case ClearedBy.ANSWERED:
            return run.proposal is None or run.proposal.id != notice.about
        case ClearedBy.LAUNCHED:
            return run.blocked_by is not LaunchCheck.RATE_LIMIT and not (
                has_pending(run, CreateJob) and not attempt.exists
            )
        case ClearedBy.RECOVERED:
            ended = attempt.exists and not attempt.may_be_live
            return run.state.is_end or ended or attempt.number != page.attempt
        case ClearedBy.DEPLOYED:
            return run.state.is_end


def _is_due(run: Run, page: OpenPage, at: datetime, policy: Policy) -> bool:
    """Return whether the page is to be sent again; not while its first sending is pending."""
    refire = policy.notices.refire
    return bool(refire) and at - page.notified_at >= refire and page.notice not in run.pending


def _format_end(run: Run, page: OpenPage) -> str:
    """Return why the page is over; that an attempt has ended does not mean that its trouble is resolved."""
    match page.notice.until:
        case ClearedBy.RELEASED:
            return f"no longer held ({run.state})"
        case ClearedBy.ANSWERED:
            return "approval is no longer needed"
        case ClearedBy.LAUNCHED:
            return "relaunches go ahead again" if run.current.exists else f"its launch waits no longer ({run.state})"
        case ClearedBy.RECOVERED | ClearedBy.DEPLOYED:
            return f"the run is {run.state}" if run.state.is_end else f"attempt {page.attempt} is over"
