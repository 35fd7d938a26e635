"""The trigger of deferred tasks: it waits for a run over all attempts, and stops it if a user ends the task."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent
from botocore.exceptions import WaiterError

from rerail_airflow.deployment import AwsSettings, Deployment, make_waiter, stop_run

# Names of the field "status" of the trigger's event.
REACHED, FAILED = "reached", "failed"


class RunTrigger(BaseTrigger):
    """Waits for the run that begins with a job, and fires one event: the run as a table, and why the wait failed."""

    def __init__(
        self,
        *,
        job: str,
        deployment: dict[str, str],
        until: str = "completed",
        on_hold: str = "fail",
        delay_s: float,
        max_attempts: int,
        task: str,
        stops_run: bool,
        **aws: Any,
    ) -> None:
        """`deployment` has the fields of Deployment, `aws` those of AwsSettings; `task` names the task for people.

        With `stops_run` the run is stopped if a user clears the deferred task or marks it failed or successful.
        """
        super().__init__()
        self.job, self.until, self.on_hold = job, until, on_hold
        self.delay_s, self.max_attempts = delay_s, max_attempts
        self.task_label, self.stops_run = task, stops_run
        self.deployment, self.aws = Deployment(**deployment), AwsSettings(**aws)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments that another triggerer makes the same trigger of."""
        arguments = {
            "job": self.job,
            "deployment": asdict(self.deployment),
            "until": self.until,
            "on_hold": self.on_hold,
            "delay_s": self.delay_s,
            "max_attempts": self.max_attempts,
            "task": self.task_label,
            "stops_run": self.stops_run,
            **self.aws.to_arguments(),
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire the event once the run has reached the goal, or cannot reach it any more."""
        options = {"until": self.until, "on_hold": self.on_hold}
        waiter = await asyncio.to_thread(make_waiter, self.aws, self.deployment, **options)
        config = {"Delay": self.delay_s, "MaxAttempts": self.max_attempts}
        try:
            result = await waiter.wait_async(Run=self.job, WaiterConfig=config)
        except WaiterError as error:
            last = error.last_response
            state = self.deployment.describe(last) if last else {"run": "", "state": "", "job": self.job}
            yield TriggerEvent({"status": FAILED, "message": str(error), **state})
            return
        yield TriggerEvent({"status": REACHED, "message": "", **self.deployment.describe(result)})

    async def on_kill(self) -> None:
        """Stop the run: a user has cleared the deferred task, or marked it failed or successful."""
        if not self.stops_run:
            return
        why = f"its deferred task was ended by a user: {self.task_label}"
        outcome = await asyncio.to_thread(stop_run, self.aws, self.deployment, self.job, who="airflow", why=why)
        self.log.info("%s: %s", self.job, outcome)
