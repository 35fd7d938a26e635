"""Wait for a run over all of its attempts, as boto3's waiters wait for a job; also within asyncio."""

import asyncio
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rerail.accounting.costs import sum_attempt_dollars
from rerail.model.codec import loads
from rerail.model.policy import Policy
from rerail.model.run import Run, RunState

STACK = "Rerail"
UNTIL = ("completed", "training")
ON_HOLD = ("fail", "wait")
DELAY_S, MAX_ATTEMPTS = 15.0, 40_320  # a week
# A tagged job becomes a run with its first event, or with the next sweep.
ADOPTION_S = 180.0
# A network that is down for this long does not end the wait.
SILENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a wait."""

    run: str
    state: str
    # The last job; that of a completed run has succeeded.
    job: str
    attempts: int
    # The job's model in S3; "" without one.
    artifacts: str
    # Why the run is held; "" if it is not.
    reason: str
    # The cost of all attempts so far; None if a price is not known.
    dollars: float | None = None


class RunWaiter:
    """A waiter for runs: `wait` has the form of boto3's, `wait_async` is for asyncio.

    Needs `dynamodb:GetItem` on the table and `kms:Decrypt` with its key; `cloudformation:DescribeStacks` unless `table`
    is given.
    """

    def __init__(
        self,
        session: Any = None,
        *,
        table: str = "",
        stack: str = STACK,
        until: str = "completed",
        on_hold: str = "fail",
    ) -> None:
        """`session` is a boto3 Session; `until` is `completed` or `training` (a job of the run trains).

        `on_hold="wait"` waits until a held run is released or stopped; `fail` ends the wait.
        """
        if until not in UNTIL:
            raise ValueError(f"until {until!r}: must be one of {', '.join(UNTIL)}")
        if on_hold not in ON_HOLD:
            raise ValueError(f"on_hold {on_hold!r}: must be one of {', '.join(ON_HOLD)}")
        if session is None:
            import boto3

            session = boto3.Session()
        self._until, self._on_hold = until, on_hold
        self._table = table or _find_table(session, stack)
        self._dynamodb = session.client("dynamodb")
        self._sleep: Callable[[float], None] = time.sleep
        self._clock: Callable[[], float] = time.monotonic

    def wait(self, *, Run: str, WaiterConfig: Mapping[str, float] | None = None) -> RunResult:
        """Return when the run has reached the goal; `Run` is the run, or the training job that it begins with.

        `WaiterConfig` may have `Delay` (seconds) and `MaxAttempts`. Raise botocore's WaiterError if the run is stopped
        or held, if it is no run, or after the last look.
        """
        look = _Look(self, Run, dict(WaiterConfig or {}))
        while (result := look.next()) is None:
            self._sleep(look.delay_s)
        return result

    async def wait_async(self, *, Run: str, WaiterConfig: Mapping[str, float] | None = None) -> RunResult:
        """Wait as `wait` does, without blocking the event loop; cancel the task to stop waiting."""
        look = _Look(self, Run, dict(WaiterConfig or {}))
        while (result := await asyncio.to_thread(look.next)) is None:
            await asyncio.sleep(look.delay_s)
        return result

    def load(self, name: str) -> Run | None:
        """Return the run of this name, or of this training job; None if there is none."""
        item = self._read(f"run#{name}", "run")
        if item is None:
            job = self._read(f"job#{name}", "job") or {}
            item = self._read(f"run#{job['run']['S']}", "run") if "run" in job else None
        if item is None:
            return None
        doc = item["doc"]
        return loads(Run, zlib.decompress(doc["B"]).decode() if "B" in doc else doc["S"])

    def has_reached(self, run: Run) -> bool:
        """Return whether the run has reached the goal; a run that has completed has trained too."""
        if run.state is RunState.COMPLETED:
            return True
        trains = run.state is RunState.WATCHING and run.current.training_started_at is not None
        return self._until == "training" and trains

    def has_failed(self, run: Run) -> bool:
        """Return whether the run has ended without the goal, by itself or as its holds are understood here."""
        is_waited_for = run.state is RunState.HELD and self._on_hold == "wait"
        return run.state.is_end and not is_waited_for and not self.has_reached(run)

    def now(self) -> float:
        """Return seconds of a clock that does not jump."""
        return self._clock()

    def _read(self, pk: str, sk: str) -> Mapping[str, Any] | None:
        key = {"pk": {"S": pk}, "sk": {"S": sk}}
        answer = self._dynamodb.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        item: Mapping[str, Any] | None = answer.get("Item")
        return item


class _Look:
    """The looks of one wait."""

    def __init__(self, waiter: RunWaiter, name: str, config: Mapping[str, float]) -> None:
        if unknown := sorted(set(config) - {"Delay", "MaxAttempts"}):
            raise ValueError(f"WaiterConfig has {unknown[0]!r}: it takes Delay and MaxAttempts")
        self._waiter, self._name = waiter, name
        self.delay_s = float(config.get("Delay", DELAY_S))
        self._left = int(config.get("MaxAttempts", MAX_ATTEMPTS))
        self._started = waiter.now()
        self._answered: float | None = None

    def next(self) -> RunResult | None:
        """Return the result once the goal is reached, else None; raise WaiterError if it cannot be reached any more."""
        from botocore.exceptions import ConnectionError as NoConnection
        from botocore.exceptions import HTTPClientError

        self._left -= 1
        run: Run | None = None
        try:
            run = self._waiter.load(self._name)
            self._answered = self._waiter.now()
            if run is None and self._waiter.now() - self._started > ADOPTION_S:
                raise self._make_error(f"it has not become a run within {ADOPTION_S:.0f} s; ask `rerail doctor`", None)
        except (NoConnection, HTTPClientError):
            if self._answered is None or self._waiter.now() - self._answered > SILENCE_S:
                raise
        result = make_result(run) if run else None
        if run and result:
            if self._waiter.has_reached(run):
                return result
            if self._waiter.has_failed(run):
                raise self._make_error(f"the run is {run.state.value}. {run.hold_text}".strip(), result)
        if self._left <= 0:
            raise self._make_error("Max attempts exceeded; the run goes on, and so does its supervision", result)
        return None

    def _make_error(self, reason: str, result: RunResult | None) -> Exception:
        from botocore.exceptions import WaiterError

        error: Exception = WaiterError(name=f"run {self._name}", reason=reason, last_response=result)
        return error


def make_result(run: Run) -> RunResult:
    """Return what a wait for this run ends with now."""
    attempt, prices, now = run.current, (run.last_policy or Policy()).prices, datetime.now(UTC)
    costs = [sum_attempt_dollars(known, now, prices) for known in run.attempts]
    dollars = None if None in costs else sum(cost for cost in costs if cost is not None)
    return RunResult(
        run.id, run.state.value, attempt.job_name, len(run.attempts), attempt.artifacts, run.hold_text, dollars
    )


def _find_table(session: Any, stack: str) -> str:
    """Return the table of the deployment in the session's account and region."""
    (found,) = session.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    return next(str(output["OutputValue"]) for output in found["Outputs"] if output["OutputKey"] == "TableName")
