"""Pages that stand: told once, told again after a while, and ended by an all-clear when what they are about is over."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from rerail.decisions.decision import Decision, has_pending
from rerail.decisions.launch_checks import BRAKE
from rerail.model.actions import ClearedBy, CreateJob, Notify, Severity
from rerail.model.policy import Policy
from rerail.model.run import OpenPage, Run, RunState


def with_pages(decision: Decision, *, at: datetime, policy: Policy, ticks: bool) -> Decision:
    """The decision with the pages that it makes or ends: one page stands at most for each key, an all-clear follows
    each, and where time has passed (`ticks`) those that stand for long are told again."""
    run, told, kept = decision.run, [], []
    for action in decision.actions:
        if isinstance(action, Notify) and action.severity is Severity.PAGE:
            if _stands_already(run, action):
                continue
            run = _noted(run, action, at)
            told.append(action)
        kept.append(action)
    owing = replace(run, pending=(*run.pending, *kept))
    over = [page for page in run.pages if _is_over(owing, page)]
    ends = [_spoken_end(run, page) for page in over]
    clears = [make_all_clear(run, p, end, decision.reason or end) for p, end in zip(over, ends, strict=True)]
    run = replace(run, pages=tuple(page for page in run.pages if page not in over))
    again = [page for page in run.pages if ticks and _is_due(owing, page, at, policy)]
    run = replace(run, pages=tuple(replace(page, told_at=at) if page in again else page for page in run.pages))
    actions = (*kept, *clears, *(page.tell for page in again))
    reason = decision.reason
    if not reason and (clears or again):
        reason = "; ".join([*(clear.body for clear in clears), *(f"still so: {page.tell.title}" for page in again)])
    if run == decision.run and actions == decision.actions:
        return decision
    return replace(decision, run=run, actions=actions, reason=reason)


def clear_pages(run: Run, kinds: Iterable[str], why: str) -> tuple[Run, tuple[Notify, ...]]:
    """The run without the pages about findings of these kinds, and their all-clears: the trouble is over."""
    over = [page for page in run.pages if page.tell.until is ClearedBy.MENDED and page.tell.about in set(kinds)]
    run = replace(run, pages=tuple(page for page in run.pages if page not in over))
    return run, tuple(make_all_clear(run, page, f"{page.tell.about} is over", why) for page in over)


def make_all_clear(run: Run, page: OpenPage, end: str, why: str) -> Notify:
    """What is told of the end of a page to those who had it."""
    told = page.tell
    return Notify(
        severity=Severity.CLEAR,
        title=f"{run.id}: all clear: {end}",
        body=why,
        key=f"{told.key}/clear",
        runbook=told.runbook,
        todo="Nothing more: this page is over",
        since=told.since or page.told_at,
        clears=told.key,
    )


def _stands_already(run: Run, tell: Notify) -> bool:
    """It was told, and is told again in its own time; a run that is held anew after a release is news."""
    return tell.until is not ClearedBy.RELEASED and any(page.tell.key == tell.key for page in run.pages)


def _noted(run: Run, tell: Notify, at: datetime) -> Run:
    others = tuple(page for page in run.pages if page.tell.key != tell.key)
    return replace(run, pages=(*others, OpenPage(tell, run.current.number, at)))


def _is_over(run: Run, page: OpenPage) -> bool:
    """By the run as it is now: whatever was missed in between, the page ends."""
    attempt, tell = run.current, page.tell
    match tell.until:
        case ClearedBy.RELEASED:
            return run.state is not RunState.HELD or attempt.number != page.attempt
        case ClearedBy.ANSWERED:
            return run.proposal is None or run.proposal.id != tell.about
        case ClearedBy.LAUNCHED:
            return run.kept_back != BRAKE and not (has_pending(run, CreateJob) and not attempt.exists)
        case ClearedBy.MENDED:
            ended = attempt.exists and not attempt.may_be_live
            return run.state.is_end or ended or attempt.number != page.attempt


def _is_due(run: Run, page: OpenPage, at: datetime, policy: Policy) -> bool:
    """Not while it is still owed: the bus may have refused it for as long."""
    refire = policy.notices.refire
    return bool(refire) and at - page.told_at >= refire and page.tell not in run.pending


def _spoken_end(run: Run, page: OpenPage) -> str:
    """What the end of a page means; that an attempt is over does not mean that what ailed it is."""
    match page.tell.until:
        case ClearedBy.RELEASED:
            return f"no longer held ({run.state})"
        case ClearedBy.ANSWERED:
            return "your word is no longer needed"
        case ClearedBy.LAUNCHED:
            return "relaunches go ahead again" if run.current.exists else f"its launch waits no longer ({run.state})"
        case ClearedBy.MENDED:
            return f"the run is {run.state}" if run.state.is_end else f"attempt {page.attempt} is over"
