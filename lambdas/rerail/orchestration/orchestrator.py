"""Answer the systems that wait for runs, by the state of the run now.

All waits are checked each minute, so that no answer depends on an event, and an execution whose heartbeats have ended
knows that Rerail itself is gone. If a turn is too short for all, the next ones begin at other waits.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from rerail.incident_report.location import make_page_key
from rerail.model.codec import BadRecord
from rerail.model.errors import PolicyError
from rerail.model.policy import Policy
from rerail.model.run import Run, RunState
from rerail.model.signals import OperatorVerb
from rerail.notices.answering import CommandSender
from rerail.notices.notice import find_cost
from rerail.orchestration.waits import (
    CallbackReceived,
    Caller,
    Callers,
    CallerState,
    KeyWithdrawn,
    RunWait,
    RunWaits,
    WaitIsOver,
    find_problem,
)
from rerail.ports import Policies, Runs
from rerail.requests.identity import find_other_place, make_digest

# A tagged job becomes a run with its first event, or with the next sweep; one that was looked at and refused does not.
# While Rerail's functions fail, both come late.
REFUSED_WITHIN, ADOPTED_WITHIN = timedelta(minutes=10), timedelta(minutes=30)
# Of the function's 60 seconds; the check that is begun last may take some.
TURN = timedelta(seconds=40)
# Turns that begin at multiples of this share of the list are spread evenly over it, however many there are.
GOLDEN = (5**0.5 - 1) / 2
# All are read each minute; a person waits for a job with one execution, or a few.
MOST_WAITS, MOST_OF_A_JOB = 1_000, 20
# The limit of both systems is larger.
CAUSE_LIMIT = 1_000


@dataclass(frozen=True, slots=True)
class Orchestrator:
    """The waits over their ports."""

    waits: RunWaits
    callers: Callers
    runs: Runs
    policies: Policies  # for the prices
    commands: CommandSender
    clock: Callable[[], datetime]
    reports: str = ""  # the bucket of the incident reports

    def begin(self, wait: RunWait) -> None:
        """Keep a new wait, and answer it if its run has ended already; fail one that names no job."""
        if problem := find_problem(wait):
            self._answer(wait, lambda: self.callers.fail(wait, "Rerail.BadRequest", problem))
            return
        known = (kept for kept in self.waits.list_waits() if not isinstance(kept, BadRecord))
        # Pipelines' tokens may be invented: they take no room from state machines, or from steps that SageMaker lists.
        others = [kept for kept in known if kept.token != wait.token and kept.caller is wait.caller]
        is_full = len(others) >= MOST_WAITS or sum(kept.job == wait.job for kept in others) >= MOST_OF_A_JOB
        if is_full and not (wait.caller is Caller.PIPELINE and self.callers.is_listed(wait)):
            cause = (
                f"{MOST_OF_A_JOB} executions wait for one job, or {MOST_WAITS} for all: let some end, then try again"
            )
            self._answer(wait, lambda: self.callers.fail(wait, "Rerail.TooManyWaits", cause))
            return
        self.waits.keep(wait)
        try:
            self.check(wait)
        except Exception:
            self.waits.forget(wait)  # the error fails the task, or has its message delivered again
            raise

    def on_callback(self, received: CallbackReceived) -> None:
        """Begin the wait of a callback step, or stop the run whose pipeline SageMaker says is being stopped.

        A pipeline that stops waits for the answer of its step: it gets it when the run has stopped.
        """
        if not received.is_stopping:
            self.begin(received.wait)
            return
        for wait in self.waits.list_waits():
            if not isinstance(wait, BadRecord) and wait.token == received.wait.token:
                self.waits.keep(stopping := replace(wait, is_stopping=True))
                self.check(stopping)

    def check_all(self) -> int:
        """Check every wait for which the turn has time; return how many are left to the next turns.

        An error with one, or one that cannot be read, does not prevent the others: raised last.
        """
        begun, waits, errors, left = self.clock(), [*self.waits.list_waits()], list[Exception](), 0
        first = int(begun.timestamp() // 60 * GOLDEN % 1 * len(waits))
        for wait in waits[first:] + waits[:first]:
            if isinstance(wait, BadRecord):
                errors.append(wait)
            elif self.clock() - begun >= TURN:
                left += 1
            else:
                try:
                    self.check(wait)
                except KeyWithdrawn:
                    self.waits.forget(wait)  # by its owner, who sees its heartbeat time out
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return left

    def check(self, wait: RunWait) -> None:
        """Answer the wait if its run has ended, stop the run if the execution was cancelled, or send a heartbeat."""
        run = self._load(wait.job)
        match self.callers.find_state(wait):
            case CallerState.OVER:
                self.waits.forget(wait)
                return
            case CallerState.CANCELLED:
                # A job that is no run yet becomes one within minutes.
                if run is None and not self._is_too_late(wait):
                    return
                self._stop_run(wait, run)
                self.waits.forget(wait)
                return
        if wait.is_stopping and _has_started(wait, run) and self.callers.is_stopped(wait):
            self._stop_run(wait, run)
            wait = replace(wait, is_stopping=False)
            self.waits.keep(wait)
        if run is not None and wait.expects and (difference := self._find_difference(wait, run)):
            cause = f"{wait.job} is not the job of this execution, though it has the name: {difference}"
            self._answer(wait, lambda: self.callers.fail(wait, "Rerail.AnotherJob", cause[:CAUSE_LIMIT]))
            return
        if run is not None and wait.expects:
            wait = replace(wait, expects="", places={})  # the request is read once, not with each check
            self.waits.keep(wait)
        self._answer_by_state(wait, run)

    def _answer_by_state(self, wait: RunWait, run: Run | None) -> None:
        """Answer the wait if its run has ended or does not come, or send a heartbeat."""
        if run is None and self._is_too_late(wait):
            cause = f"{wait.job} is not supervised: no run begins with it; ask `rerail doctor --job {wait.job}`"
            self._answer(wait, lambda: self.callers.fail(wait, "Rerail.NotSupervised", cause))
        elif run is not None and run.state is RunState.COMPLETED:
            self._answer(wait, lambda: self.callers.succeed(wait, self._describe(run)))
        elif run is not None and run.state.is_end and not (run.state is RunState.HELD and wait.goes_on_while_held):
            self._answer(wait, lambda: self.callers.fail(wait, *_describe_failure(run)))
        else:
            self._send_heartbeat(wait)

    def _load(self, job: str) -> Run | None:
        run_id = self.runs.run_of(job)
        return self.runs.load(run_id) if run_id else None

    def _find_difference(self, wait: RunWait, run: Run) -> str:
        """Return how the run differs from the one that the execution would have started; "" if it does not."""
        request = self.runs.request(run.id)
        if make_digest(request) != wait.expects:
            return "another image, code, arguments or environment"
        return find_other_place(request, wait.places)

    def _is_too_late(self, wait: RunWait) -> bool:
        """Return whether the job, which is no run, will not become one."""
        age = self.clock() - wait.since
        is_refused = age > REFUSED_WITHIN and self.runs.is_ignored(wait.job)
        return is_refused or age > ADOPTED_WITHIN

    def _answer(self, wait: RunWait, send: Callable[[], None]) -> None:
        """Send the answer, then forget the wait; if the function ends in between, the repetition finds nobody."""
        with suppress(WaitIsOver):  # it was answered before, or its execution has ended
            send()
        self.waits.forget(wait)

    def _send_heartbeat(self, wait: RunWait) -> None:
        try:
            self.callers.send_heartbeat(wait)
        except WaitIsOver:
            self.waits.forget(wait)

    def _stop_run(self, wait: RunWait, run: Run | None) -> None:
        """Command the supervisor to stop the run; one that has ended ignores it."""
        if run is None or not _has_started(wait, run):
            return
        why = f"its execution was stopped: {wait.execution}"
        command = {"run": run.id, "verb": OperatorVerb.STOP.value, "who": wait.caller.value, "why": why[:400]}
        self.commands.send_command(command)

    def _describe(self, run: Run) -> Mapping[str, Any]:
        """Return the output of the step: the run, and what its successful attempt has left."""
        attempt = run.current
        return {
            "run": run.id,
            "state": run.state.value,
            "job": attempt.job_name,
            "attempts": len(run.attempts),
            "artifacts": attempt.artifacts,
            "dollars": find_cost(run, self.clock(), self._read_policy(run)),
            "report": f"s3://{self.reports}/{make_page_key(run.id)}" if self.reports else "",
        }

    def _read_policy(self, run: Run) -> Policy:
        try:
            return self.policies.get(run.policy)
        except PolicyError:
            return run.last_policy or Policy()


def _has_started(wait: RunWait, run: Run | None) -> bool:
    """Return whether the execution has started the run; no other stops it, though it may name any job."""
    return run is not None and bool(wait.execution) and run.execution == wait.execution


def _describe_failure(run: Run) -> tuple[str, str]:
    """Return error and cause of a step whose run was stopped or is held."""
    name = "Rerail.RunHeld" if run.state is RunState.HELD else "Rerail.RunStopped"
    cause = f"run {run.id} is {run.state.value} after {len(run.attempts)} attempts. {run.hold_text}".strip()
    return name, cause[:CAUSE_LIMIT]
