"""Compare the step that training processes began at with the one that Rerail ordered, and say what is lost.

Nothing is decided from the comparison. It needs proof, because many scripts count from 0 in each launch or epoch: an
agent's signed report, whose steps are those of the checkpoints, or a checkpoint below the ordered step that a job
without an agent has saved. Where there is none, nothing is said.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rerail.decisions.decision import Decision, has_agent, make_notice, with_attempt
from rerail.decisions.remedies import format_continue
from rerail.model.actions import ClearedBy, Notify, Severity
from rerail.model.checkpoints import Checkpoint
from rerail.model.mailbox import Report, ReportKind
from rerail.model.policy import Policy
from rerail.model.run import Attempt, InPlaceRestart, Run, find_began_step
from rerail.model.runbooks import Runbook
from rerail.model.signals import Signal

# The interval between two checkpoints is the longest between so many recent ones.
RECENT_SAVES = 4
# What the page is about.
SUBJECT = "start"


@dataclass(frozen=True, slots=True)
class Gap:
    """A start below the step that was ordered."""

    # Of the notice: the attempt and the restart in place.
    key: str
    # What began, in words.
    what: str
    ordered: int
    began: int
    # The last step known from before.
    last: int | None
    save_steps: int | None

    @property
    def is_large(self) -> bool:
        """Return whether it is certain, and more than the loss of one checkpoint explains.

        Steps that never reached the ordered one are counted in another unit.
        """
        if self.save_steps is None or (self.last is not None and self.last < self.ordered):
            return False
        return self.ordered - self.began > self.save_steps

    @property
    def text(self) -> str:
        lost = "all steps since then" if self.last is None else f"{max(0, self.last - self.began):,} steps"
        did = f"was ordered to resume from step {self.ordered:,}, but began at step {self.began:,}"
        return f"{self.what} {did}: {lost} are lost"


def with_save_steps_noted(before: Run, decision: Decision, signal: Signal, policy: Policy) -> Decision:
    """Note the interval between checkpoints in a start that the decision has just ordered."""
    run, checkpoints = decision.run, getattr(signal, "checkpoints", None) or ()
    attempt, known = run.current, before.current
    if attempt.number > known.number:
        steps = find_save_steps(checkpoints) or known.save_steps
        return replace(decision, run=with_attempt(run, replace(attempt, save_steps=steps)))
    if len(attempt.in_place_restarts) > len(known.in_place_restarts):
        *others, order = attempt.in_place_restarts
        steps = find_save_steps(checkpoints) or (others[-1].save_steps if others else attempt.save_steps)
        orders = (*others, replace(order, save_steps=steps))
        return replace(decision, run=with_attempt(run, replace(attempt, in_place_restarts=orders)))
    return decision


def find_save_steps(checkpoints: Sequence[Checkpoint]) -> int | None:
    """Return the longest interval between recent checkpoints in steps; None with fewer than two."""
    steps = sorted({checkpoint.step for checkpoint in checkpoints}, reverse=True)[:RECENT_SAVES]
    return max((later - earlier for later, earlier in zip(steps, steps[1:], strict=False)), default=None)


def with_first_step(before: Run, decision: Decision, report: Report) -> Decision:
    """Record the first step that an agent's report proves, and page if it is too far below the ordered one."""
    run = decision.run
    if report.kind is not ReportKind.RESTARTED or report.step is None or not report.is_signed:
        return decision
    if not report.restart:
        if run.current.number == 1 or run.current.first_step is not None:
            return decision
        run = with_attempt(run, replace(run.current, first_step=report.step))
        return _with_gap(replace(decision, run=run), find_attempt_gap(run))
    order = run.current.in_place_restarts[-1] if run.current.in_place_restarts else None
    known = before.current.in_place_restarts[-1] if before.current.in_place_restarts else None
    if order is None or order.number != report.restart or known is None or known.first_step == order.first_step:
        return decision
    return _with_gap(decision, find_restart_gap(run, order))


def with_seen_step(run: Run, step: int | None) -> Run:
    """Return the run with the first step that the metrics of a job without an agent have shown."""
    if step is None or run.current.first_step is not None or has_agent(run):
        return run
    return with_attempt(run, replace(run.current, first_step=step))


def with_start_confirmed(decision: Decision, checkpoints: Sequence[Checkpoint]) -> Decision:
    """Confirm the first step of a job without an agent by a checkpoint that it has saved below the ordered step."""
    run, attempt = decision.run, decision.run.current
    ordered, first = attempt.resumed_from_step, attempt.first_step
    if ordered is None or first is None or has_agent(run) or attempt.is_start_confirmed or first >= ordered:
        return decision
    began = attempt.training_started_at
    own = (c.step for c in checkpoints if c.attempt == attempt.number and began and c.saved_at > began)
    if not any(first <= step < ordered for step in own):
        return decision
    # A script whose counter starts again by design does so in each attempt: one page is enough.
    is_first = not any(known.is_start_confirmed for known in run.attempts)
    after = with_attempt(run, replace(attempt, is_start_confirmed=True))
    return _with_gap(replace(decision, run=after), find_attempt_gap(after), may_page=is_first)


def find_attempt_gap(run: Run) -> Gap | None:
    """Return how far the current attempt began below the ordered step, or None."""
    attempt = run.current
    ordered, began = attempt.resumed_from_step, attempt.began_step
    if ordered is None or began is None or began >= ordered:
        return None
    steps = [earlier.last_step for earlier in run.attempts[:-1] if earlier.last_step is not None]
    last = max([*steps, *(i.step for i in run.incidents if i.step is not None)], default=None)
    return Gap(str(attempt.number), f"attempt {attempt.number}", ordered, began, last, attempt.save_steps)


def find_restart_gap(run: Run, order: InPlaceRestart) -> Gap | None:
    """Return how far a restart in place began below the ordered step, or None.

    Without a named step it goes back to the newest checkpoint, which its incident names.
    """
    number, incident = run.current.number, run.incidents[-1] if run.incidents else None
    ordered = order.resume_step
    if ordered is None and incident and incident.attempt == number and incident.decided_at == order.asked_at:
        ordered = incident.resume_step
    began = find_began_step(ordered, order.first_step)
    if ordered is None or began is None or began >= ordered:
        return None
    what = f"restart {order.number} in place of attempt {number}"
    return Gap(f"{number}-{order.number}", what, ordered, began, order.last_step, order.save_steps)


def format_ordered(start: Attempt | InPlaceRestart) -> str:
    """Return that another step was ordered than the one begun at; "" otherwise."""
    ordered = start.resumed_from_step if isinstance(start, Attempt) else start.resume_step
    return "" if ordered is None or start.began_step == ordered else f" instead of {ordered:,}"


def list_gaps(run: Run) -> Iterator[str]:
    """Yield each start since the last incident that was below the step ordered, in words."""
    since = (run.incidents[-1].attempt, run.incidents[-1].restart) if run.incidents else (0, 0)
    for attempt in run.attempts:
        if (attempt.number, 0) > since and (ordered := format_ordered(attempt)):
            yield f"attempt {attempt.number} began at step {attempt.began_step:,}{ordered}"
        for order in attempt.in_place_restarts:
            if (attempt.number, order.number) > since and (ordered := format_ordered(order)):
                yield f"restart {order.number} of attempt {attempt.number} began at step {order.began_step:,}{ordered}"


def _with_gap(decision: Decision, gap: Gap | None, *, may_page: bool = True) -> Decision:
    """Record what is lost in the newest incident, and say it; page where it is large."""
    if gap is None:
        return decision
    run = _with_incident_corrected(decision.run, gap)
    reason = "; ".join(filter(None, (decision.reason, gap.text)))
    page = (_make_page(run, gap),) if gap.is_large and may_page else ()
    return replace(decision, run=run, actions=(*decision.actions, *page), reason=reason)


def _with_incident_corrected(run: Run, gap: Gap) -> Run:
    if not run.incidents or run.incidents[-1].resume_step is None:
        return run
    incident = run.incidents[-1]
    began = gap.began if incident.began_step is None else min(gap.began, incident.began_step)
    corrected = replace(incident, began_step=min(began, incident.resume_step or 0))
    return replace(run, incidents=(*run.incidents[:-1], corrected))


def _make_page(run: Run, gap: Gap) -> Notify:
    job = run.current.job_name
    return make_notice(
        run,
        Severity.PAGE,
        f"it began at step {gap.began:,} instead of {gap.ordered:,}",
        gap.text,
        key=f"start-{gap.key}",
        runbook=Runbook.RESUME_MISMATCH,
        did="nothing: the job goes on",
        todo=f"Read in the log of {job} why it has not resumed from step {gap.ordered:,}\n"
        f"If its script loads no checkpoint: `rerail stop {run.id}`, fix it, then `{format_continue(run)}`\n"
        f"If it does, and they still exist: `rerail checkpoints {run.id}`, then `rerail rollback {run.id} --to STEP`",
        until=ClearedBy.RECOVERED,
        about=SUBJECT,
    )
