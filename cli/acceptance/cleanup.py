"""Find and remove what an acceptance has made: runs, jobs, warm pools, the temporary queue, objects and tags."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import typer
from botocore.exceptions import BotoCoreError, ClientError

from cli.acceptance.listener import remove_queue, remove_rule, remove_subscriptions
from cli.acceptance.trials import TRIALS
from cli.operators import put_command
from cli.place import Place
from cli.trouble import explain, get_message, is_missing
from rerail.decisions.quarantine import PLACE
from rerail.model.run import JobStatus, RunState, make_run_id
from rerail.model.signals import OperatorVerb

PREFIX = "rerail-acceptance-"
STORE = "rerail-acceptance/"
ID = re.compile(rf"{PREFIX}\d{{14}}")
TAG = "rerail:acceptance"
LIVE = (JobStatus.IN_PROGRESS, JobStatus.STOPPING)
# How long ended jobs and closed runs are waited for: a stop takes up to two minutes, the upload after it some more.
SETTLED_WITHIN_S = 420.0
# A command that was lost is repeated.
ASKED_AGAIN_S = 60.0


def find_leftovers(where: Place, bucket: str) -> list[str]:
    """Return the ids of earlier acceptances that have left something behind, oldest first."""
    return sorted({match[0] for text in _list_names(where, bucket) if (match := ID.search(text))})


def _list_names(where: Place, bucket: str) -> Iterator[str]:
    yield from where.client("sqs").list_queues(QueueNamePrefix=PREFIX).get("QueueUrls", [])
    rules = where.client("events").list_rules(NamePrefix=PREFIX)["Rules"]
    yield from (rule["Name"] for rule in rules)
    yield from list_live_jobs(where, PREFIX)
    try:
        pages = where.client("s3").get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=bucket, Prefix=STORE, Delimiter="/"):
            yield from (folder["Prefix"] for folder in page.get("CommonPrefixes", []))
    except ClientError as error:
        if not is_missing(error):
            raise


def list_live_jobs(where: Place, prefix: str) -> list[str]:
    """Return the names of the jobs that have not ended and begin so."""
    pages = where.client("sagemaker").get_paginator("list_training_jobs")
    return [
        job["TrainingJobName"]
        for status in LIVE
        for page in pages.paginate(NameContains=prefix, StatusEquals=status.value)
        for job in page["TrainingJobSummaries"]
        if job["TrainingJobName"].startswith(prefix)
    ]


@dataclass
class Cleanup:
    """Removes what one acceptance has made. Each step is done although another one failed; `problems` has those."""

    where: Place
    bucket: str
    id: str
    say: Callable[[str], None] = print
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    within_s: float = SETTLED_WITHIN_S

    def __post_init__(self) -> None:
        self.removed: list[str] = []
        self.problems: list[str] = []

    def remove_all(self) -> None:
        """End the runs and their jobs first, since they write objects, then remove everything else."""
        steps: dict[str, Callable[[], None]] = {
            "end runs": self._end_runs,
            "release warm pools": self._release_pools,
            "remove rule": lambda: self.removed.extend(remove_rule(self.where, self.id)),
            "remove subscriptions": lambda: self.removed.extend(remove_subscriptions(self.where, self.id)),
            "remove queue": lambda: self.removed.extend(remove_queue(self.where, self.id)),
            "remove objects": self._remove_objects,
            "remove tags": self._untag,
        }
        for name, step in steps.items():
            try:
                step()
            except typer.Exit:  # the bus refused the command, and the reason is on the screen
                self.problems.append("end runs: the command to stop them was refused")
            except (ClientError, BotoCoreError) as error:
                what = explain(error).what
                self.problems.append(f"{name}: {what}")

    @property
    def runs(self) -> list[str]:
        """The runs that may exist, by the names of the trials' first jobs."""
        return [make_run_id(f"{self.id}-{trial.name}") for trial in TRIALS]

    def _list_jobs(self) -> list[str]:
        pages = self.where.client("sagemaker").get_paginator("list_training_jobs").paginate(NameContains=self.id)
        return [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]

    def _end_runs(self) -> None:
        """Have Rerail end its runs, so that it launches and pages nothing more, and stop every job."""
        asked: dict[str, float] = {}
        until = self.clock() + self.within_s
        while True:
            unsettled = [run for run in self.runs if self._is_open(run)]
            for run in unsettled:
                if self.clock() - asked.get(run, -ASKED_AGAIN_S) >= ASKED_AGAIN_S:
                    asked[run] = self.clock()
                    detail = {"run": run, "verb": OperatorVerb.STOP.value, "who": "rerail acceptance", "at_once": True}
                    put_command(self.where, {**detail, "why": "the acceptance has ended"})
            live = list_live_jobs(self.where, self.id)
            for job in live:
                self._stop(job)
            if not unsettled and not live:
                self.removed += [f"run {run}" for run in asked]
                return
            if self.clock() > until:
                self.problems.append(f"not ended yet: {', '.join(dict.fromkeys([*live, *unsettled]))}")
                return
            self.sleep(1.0 if self.where.is_local else 10.0)

    def _is_open(self, run: str) -> bool:
        record = self.where.runs.load(run)
        return record is not None and (record.is_open or record.state is RunState.HELD)

    def _stop(self, job: str) -> None:
        try:
            self.where.client("sagemaker").stop_training_job(TrainingJobName=job)
            self.removed.append(f"job {job}")
        except ClientError as error:
            if "status" not in get_message(error):  # "The request was rejected because the training job is in status"
                raise

    def _release_pools(self) -> None:
        """A warm pool is billed until its time has passed."""
        sagemaker = self.where.client("sagemaker")
        for job in self._list_jobs():
            pool = sagemaker.describe_training_job(TrainingJobName=job).get("WarmPoolStatus", {})
            if pool.get("Status") == "Available":
                sagemaker.update_training_job(TrainingJobName=job, ResourceConfig={"KeepAlivePeriodInSeconds": 0})
                self.removed.append(f"warm pool of {job}")

    def _remove_objects(self) -> None:
        s3, count = self.where.client("s3"), 0
        for prefix in (f"{STORE}{self.id}/", *(f"{PLACE}{run}/" for run in self.runs)):
            try:
                for page in s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
                    keys = [{"Key": item["Key"]} for item in page.get("Contents", [])]
                    if not keys:
                        continue
                    answer = s3.delete_objects(Bucket=self.bucket, Delete={"Objects": keys, "Quiet": True})
                    count += len(keys) - len(answer.get("Errors", []))
                    for refused in answer.get("Errors", [])[:1]:
                        self.problems.append(f"{refused['Key']} was not deleted: {refused.get('Message')}")
            except ClientError as error:
                if not is_missing(error):
                    raise
        if count:
            self.removed.append(f"{count} objects")

    def _untag(self) -> None:
        sagemaker = self.where.client("sagemaker")
        for job in self._list_jobs():
            arn = sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobArn"]
            sagemaker.delete_tags(ResourceArn=arn, TagKeys=[TAG])
