"""Names of training jobs that a retry of the same task finds again."""

from hashlib import sha256
from typing import Any

# Successors are called <run>-a002: 63 characters with that, and with the suffix below.
BASE_LIMIT = 44


def label_task(ti: Any) -> str:
    """Return the task instance in words, for timelines and logs."""
    mapped = f" [{ti.map_index}]" if ti.map_index >= 0 else ""
    return f"{ti.dag_id}.{ti.task_id}{mapped} of {ti.run_id}"


def make_job_name(base: str, ti: Any, number: int) -> str:
    """Return the name of a task instance's job: the same in each try, and other than that of any other task.

    `number` counts the runs that the task instance has started, from 1.
    """
    identity = "\n".join((ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index)))
    digest = sha256(identity.encode()).hexdigest()[:8]
    name = f"{base[:BASE_LIMIT].rstrip('-')}-{digest}"
    return name if number == 1 else f"{name}-{number}"
