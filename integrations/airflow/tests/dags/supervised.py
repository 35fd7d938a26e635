"""DAGs for the tests: each takes the CreateTrainingJob request from the run's configuration."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task
from rerail_airflow.operators import SupervisedTrainingOperator
from rerail_airflow.sensors import RunSensor

REQUEST = "{{ dag_run.conf['request'] }}"


class LosesItsWorker(SupervisedTrainingOperator):
    """Its first try fails after the job was started, as one does whose worker is gone."""

    def execute(self, context: Any) -> Any:
        """Fail in the first try instead of deferring."""
        try:
            return super().execute(context)
        except BaseException:
            if context["ti"].try_number == 1:
                raise RuntimeError("the worker is gone") from None
            raise


@task
def read_model(run: dict[str, Any]) -> str:
    """Return what a task behind the operator goes on with."""
    return f"{run['job']} {run['artifacts']}"


with DAG("trains", schedule=None, render_template_as_native_obj=True) as trains:
    train = SupervisedTrainingOperator(task_id="train", config=REQUEST, check_interval=1)
    seen = RunSensor(task_id="seen", run="{{ ti.xcom_pull('train')['run'] }}", poke_interval=1)
    train >> seen
    read_model(train.output)

with DAG("retries", schedule=None, render_template_as_native_obj=True) as retries:
    LosesItsWorker(task_id="train", config=REQUEST, check_interval=1, retries=1, retry_delay=timedelta(0))
