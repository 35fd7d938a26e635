"""A sensor for a run that something else has started."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseSensorOperator, PokeReturnValue

from rerail_agent.waiting import MAX_ATTEMPTS, STACK, make_result
from rerail_airflow.deployment import AwsSettings, Deployment, find_deployment, make_waiter
from rerail_airflow.naming import label_task
from rerail_airflow.triggers import REACHED, RunTrigger


class RunSensor(BaseSensorOperator):
    """Waits until a run has completed over all of its attempts, or trains; it never stops the run.

    Its XCom is the run: run, state, job, attempts, artifacts, dollars and report.
    """

    template_fields: Sequence[str] = ("run", "stack", "aws_conn_id", "region_name")
    ui_color = "#ededed"

    def __init__(
        self,
        *,
        run: str,
        until: str = "completed",
        on_hold: str = "fail",
        stack: str = STACK,
        deferrable: bool = True,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        verify: bool | str | None = None,
        botocore_config: dict[str, Any] | None = None,
        poke_interval: timedelta | float = 30.0,
        **arguments: Any,
    ) -> None:
        """`run` is the run, or the training job that it begins with; `until` is `completed` or `training`.

        `on_hold="wait"` goes on waiting while the run is held; `fail` fails the task with what to do.
        """
        super().__init__(poke_interval=poke_interval, **arguments)
        self.run, self.until, self.on_hold, self.stack = run, until, on_hold, stack
        self.deferrable = deferrable
        self.aws_conn_id, self.region_name = aws_conn_id, region_name
        self.verify, self.botocore_config = verify, botocore_config

    @property
    def aws(self) -> AwsSettings:
        """Return how AWS is reached."""
        return AwsSettings(self.aws_conn_id, self.region_name, self.verify, self.botocore_config)

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Defer until the run has reached the goal, or poke."""
        if not self.deferrable:
            return super().execute(context)
        trigger = RunTrigger(
            job=self.run,
            deployment=asdict(find_deployment(self.aws, self.stack)),
            until=self.until,
            on_hold=self.on_hold,
            delay_s=self.poke_interval,
            max_attempts=MAX_ATTEMPTS,
            task=label_task(context["ti"]),
            stops_run=False,
            **self.aws.to_arguments(),
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return None

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the run, or fail with what to do."""
        if event["status"] != REACHED:
            raise AirflowFailException(event["message"])
        return {name: value for name, value in event.items() if name not in ("status", "message")}

    def poke(self, context: Mapping[str, Any]) -> PokeReturnValue:
        """Look once; fail if the run cannot reach the goal any more."""
        deployment: Deployment = find_deployment(self.aws, self.stack)
        waiter = make_waiter(self.aws, deployment, until=self.until, on_hold=self.on_hold)
        run = waiter.load(self.run)
        if run is None:
            return PokeReturnValue(is_done=False)
        if waiter.has_failed(run):
            raise AirflowFailException(f"run {run.id} is {run.state.value}. {run.hold_text}".strip())
        return PokeReturnValue(is_done=waiter.has_reached(run), xcom_value=deployment.describe(make_result(run)))
