"""The operator that starts a supervised training job and waits for its run."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from airflow.providers.amazon.aws.operators.sagemaker import SageMakerTrainingOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from botocore.exceptions import ClientError, WaiterError

from rerail.model.run import AfterStop, Run, RunState
from rerail.requests.identity import find_difference
from rerail.requests.supervised import supervised
from rerail_agent.waiting import ADOPTION_S, MAX_ATTEMPTS, ON_HOLD, STACK
from rerail_airflow.deployment import AwsSettings, Deployment, find_deployment, is_missing, make_waiter, stop_run
from rerail_airflow.links import IncidentReportLink, TrainingJobLink
from rerail_airflow.naming import label_task, make_job_name
from rerail_airflow.triggers import REACHED, RunTrigger

CHECK_INTERVAL_S = 30
# Once SageMaker has created a job of this name, another CreateTrainingJob is refused with this.
EXISTS = "ResourceInUse"


class SupervisedTrainingOperator(SageMakerTrainingOperator):
    """Starts a supervised training job with SageMakerTrainingOperator's `config`, and waits for its run.

    The XCom is the run over all attempts: run, state, job, attempts, artifacts, dollars and report; `job` is the last
    attempt's. The job's name is that of the config with a suffix for the task instance: an Airflow retry finds the run
    that goes on, and waits for it instead of starting another.
    """

    operator_extra_links = (TrainingJobLink(), IncidentReportLink())

    def __init__(
        self,
        *,
        config: dict[str, Any],
        policy: str = "default",
        supervision: Mapping[str, Any] | None = None,
        on_hold: str = "fail",
        stack: str = STACK,
        deferrable: bool = True,
        check_interval: int = CHECK_INTERVAL_S,
        max_attempts: int | None = None,
        **arguments: Any,
    ) -> None:
        """`supervision` has further arguments of `supervised(...)`, such as `checkpoints` or `metrics`.

        `on_hold="wait"` goes on waiting while the run is held; `fail` fails the task with what to do. `check_interval`
        is in seconds; `max_attempts` is how often the run is looked at, a week of looks at least without it.
        """
        super().__init__(
            config=config,
            deferrable=deferrable,
            check_interval=check_interval,
            max_attempts=max_attempts or MAX_ATTEMPTS,
            **arguments,
        )
        if on_hold not in ON_HOLD:
            raise ValueError(f"on_hold {on_hold!r}: must be one of {', '.join(ON_HOLD)}")
        self.policy, self.supervision = policy, dict(supervision or {})
        self.on_hold, self.stack = on_hold, stack
        self._started: tuple[Deployment, str, str] | None = None

    @property
    def aws(self) -> AwsSettings:
        """Return how AWS is reached."""
        return AwsSettings(self.aws_conn_id, self.region_name, self.verify, self.botocore_config)

    def execute(self, context: Any) -> dict[str, Any]:
        """Start the job unless a run of this task instance goes on, and wait for the run."""
        deployment, task = find_deployment(self.aws, self.stack), label_task(context["ti"])
        job, run, is_known = self._find_job(deployment, context["ti"])
        if run is not None and run.stop is not None and run.stop.then is AfterStop.END:
            self.log.info("Run %s is being stopped: waiting for its end before another is started", run.id)
            trigger = self._make_trigger(deployment, job, task, stops_run=False)
            self.defer(trigger=trigger, method_name="execute_after_stop", timeout=self.execution_timeout)
        self._started = (deployment, job, task)
        if is_known:
            self._check_own(job)
            self.log.info("Waiting for the run of %s, which an earlier try has started", job)
        else:
            self._create(job)
        self._add_links(context, deployment, job, run.id if run else job)
        if not self.wait_for_completion:
            return {"job": job}
        trigger = self._make_trigger(deployment, job, task, stops_run=True)
        if self.deferrable:
            self.defer(trigger=trigger, method_name="execute_complete", timeout=self.execution_timeout)
        return self._wait(context, deployment, job)

    def execute_after_stop(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """Start the next run, now that the one before has ended."""
        return self.execute(context)

    def execute_complete(self, context: Any, event: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the run if it has completed, else fail the task with what to do."""
        found = dict(event or {})
        status, message = found.pop("status", ""), found.pop("message", "")
        if found.get("run"):
            self._add_links(context, find_deployment(self.aws, self.stack), found["job"], found["run"])
        if status == REACHED:
            return found
        raise make_failure(found.get("state", ""), message)

    def on_kill(self) -> None:
        """Stop the run by Rerail's own command; StopTrainingJob alone would save no checkpoint."""
        if self._started is None:
            return
        deployment, job, task = self._started
        why = f"its task was ended: {task}"
        self.log.info("%s: %s", job, stop_run(self.aws, deployment, job, who="airflow", why=why))

    def _find_job(self, deployment: Deployment, ti: Any) -> tuple[str, Run | None, bool]:
        """Return the job that this task instance waits for or has to create, its run, and whether the job exists.

        Runs that have ended are passed over. A held run is kept: it ends the task again until a person has released or
        stopped it.
        """
        waiter = make_waiter(self.aws, deployment)
        for job in self._list_names(ti):
            run = waiter.load(job)
            if run is not None and (run.state is RunState.HELD or not run.state.is_end):
                return job, run, True
            if run is None and self._may_become_run(job):
                return job, None, True
            if run is None and self._describe(job) is None:
                return job, None, False
        raise AssertionError("names are endless")

    def _list_names(self, ti: Any) -> Iterator[str]:
        base = self.config.get("TrainingJobName")
        if not isinstance(base, str) or not base:
            raise AirflowFailException("config has no TrainingJobName: add it; the run is named after it")
        return (make_job_name(base, ti, number) for number in count(1))

    def _may_become_run(self, job: str) -> bool:
        """Return whether the job, which is no run, is live or has ended so recently that it may still become one."""
        described = self._describe(job)
        if described is None:
            return False
        ended = described.get("TrainingEndTime") or described.get("LastModifiedTime") or datetime.now(UTC)
        is_live = described["TrainingJobStatus"] in ("InProgress", "Stopping")
        return is_live or datetime.now(UTC) - ended < timedelta(seconds=ADOPTION_S)

    def _describe(self, job: str) -> Mapping[str, Any] | None:
        try:
            described: Mapping[str, Any] = self.hook.describe_training_job(job)
        except ClientError as error:
            if is_missing(error):
                return None
            raise
        return described

    def _create(self, job: str) -> None:
        """Create the job with what supervision needs; one that exists already is the one of this task."""
        self.config["TrainingJobName"] = job
        self.preprocess_config()
        self.config = supervised(self.config, self.policy, **self.supervision)
        self.log.info("Creating the supervised training job %s", job)
        try:
            self.hook.create_training_job(self.config, wait_for_completion=False, print_log=False)
        except ClientError as error:
            if error.response["Error"]["Code"] != EXISTS:
                raise
            self._check_own(job)

    def _check_own(self, job: str) -> None:
        """Fail the task if the job does not do what the config asks for: its name can be foreseen by others."""
        config = {name: value for name, value in self.config.items() if name != "S3Operations"}
        expected = supervised({**config, "TrainingJobName": job}, self.policy, **self.supervision)
        places = {
            channel["ChannelName"]: channel["DataSource"]["S3DataSource"]["S3Uri"]
            for channel in expected.get("InputDataConfig", ())
            if "S3DataSource" in channel.get("DataSource", {})
        }
        if difference := find_difference(expected, self._describe(job) or {}, places):
            raise AirflowFailException(
                f"the job {job} has the name of this task's and does not do what its config asks for: {difference}. "
                "If the config was changed, stop that run and clear this task; otherwise find out who started it."
            )

    def _make_trigger(self, deployment: Deployment, job: str, task: str, *, stops_run: bool) -> RunTrigger:
        return RunTrigger(
            job=job,
            deployment=asdict(deployment),
            on_hold=self.on_hold,
            delay_s=float(self.check_interval),
            max_attempts=self.max_attempts,
            task=task,
            stops_run=stops_run,
            **self.aws.to_arguments(),
        )

    def _wait(self, context: Any, deployment: Deployment, job: str) -> dict[str, Any]:
        """Wait in the worker, for a task that is not deferrable."""
        waiter = make_waiter(self.aws, deployment, on_hold=self.on_hold)
        config = {"Delay": float(self.check_interval), "MaxAttempts": float(self.max_attempts)}
        try:
            result = waiter.wait(Run=job, WaiterConfig=config)
        except WaiterError as error:
            raise make_failure(error.last_response.state if error.last_response else "", str(error)) from error
        self._add_links(context, deployment, result.job, result.run)
        return deployment.describe(result)

    def _add_links(self, context: Any, deployment: Deployment, job: str, run: str) -> None:
        place = {"region_name": self.hook.conn_region_name, "aws_partition": self.hook.conn_partition}
        TrainingJobLink.persist(context=context, operator=self, job=job, **place)
        if deployment.reports:
            report = {"bucket": deployment.reports, "report_key": deployment.make_report_key(run)}
            IncidentReportLink.persist(context=context, operator=self, **report, **place)


def make_failure(state: str, message: str) -> AirflowException:
    """Return the exception that fails a task: an Airflow retry never goes on against a hold or a person's stop."""
    match state:
        case RunState.HELD:
            hint = "Then release the run and clear this task: it goes on waiting for the same run."
        case RunState.STOPPED:
            hint = "Clear this task to start another run."
        case _:
            return AirflowException(message)
    return AirflowFailException(f"{message} {hint}")
