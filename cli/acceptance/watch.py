"""Follow the run of one trial: the demo's stage on a submitted job, with its metrics and uploads as they appear."""

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError

from cli.acceptance.jobs import JobPlan
from cli.acceptance.seen import Observation, ObservedJob, StatusTransition, UploadedCheckpoint
from cli.acceptance.trials import AcceptanceLossReader, AcceptanceTrial
from cli.demo.report import collect_facts
from cli.demo.scenarios import Name
from cli.demo.stage import JobOutput, Stage
from cli.place import now
from cli.saves import FOLDER, StoredCheckpoint, list_checkpoints
from cli.trouble import is_missing
from rerail.decisions.quarantine import PLACE
from rerail.model.checkpoints import MANIFEST
from rerail.model.run import JobStatus, make_run_id

NAMESPACE = "/aws/sagemaker/TrainingJobs"
METRICS = ("step", "loss")
METRIC_WINDOW = timedelta(minutes=15)
# A job that has ended belongs to no run if Rerail has not recorded one by then.
UNKNOWN_AFTER = timedelta(minutes=5)


@dataclass
class TrialStage(Stage):
    """The state of one trial, updated by `refresh`; `aws` is the deployment."""

    trial: AcceptanceTrial | None = None
    plan: JobPlan | None = None
    # When this command stopped the job.
    stop_called_at: datetime | None = None
    uploads: dict[tuple[str, int, str], UploadedCheckpoint] = field(default_factory=dict)
    newest_values: dict[str, datetime] = field(default_factory=dict)
    metric_ages: dict[str, list[float]] = field(default_factory=dict)

    @property
    def job(self) -> str:
        """The name of the first job."""
        return f"{self._plan.id}-{self._trial.name}"

    @property
    def _plan(self) -> JobPlan:
        assert self.plan is not None, "made by make_stage"
        return self.plan

    @property
    def _trial(self) -> AcceptanceTrial:
        assert self.trial is not None, "made by make_stage"
        return self.trial

    def refresh(self) -> None:
        """Read the run, its timeline, its jobs, what they print, their metrics and their checkpoints."""
        self.run = self._runs.load(self.run_id)
        if self.run:
            self.timeline = list(self._runs.timeline(self.run_id))
        for name in self.list_jobs():
            self.jobs[name] = self._sagemaker.describe_training_job(TrainingJobName=name)
            self.curves.setdefault(name, JobOutput(name, AcceptanceLossReader())).read(self._logs)
            self._read_metrics(name)
        self._read_uploads()
        is_due = self._trial.is_stopped and self.stop_called_at is None and self.is_live
        if is_due and self.steps_done >= self.scenario.fault_step:
            self._sagemaker.stop_training_job(TrainingJobName=self.job)
            self.stop_called_at = now()

    def list_jobs(self) -> list[str]:
        """Return the names of the run's jobs, oldest first."""
        later = [attempt.job_name for attempt in self.run.attempts if attempt.exists] if self.run else []
        return list(dict.fromkeys([self.job, *later]))

    @property
    def steps_done(self) -> int:
        """The newest step of the run, over all its jobs."""
        return max((curve.last_step for curve in self.curves.values()), default=0)

    @property
    def is_over(self) -> bool:
        """Return whether the run has ended with no action pending, or Rerail never recorded its job."""
        if self.run is not None:
            return self.run.state.is_end and not self.run.is_open
        description = self.jobs.get(self.job, {})
        ended = description.get("TrainingEndTime")
        return ended is not None and now() - ended > UNKNOWN_AFTER / max(1.0, self.scale / 5)

    @property
    def is_live(self) -> bool:
        """Return whether one of its jobs has not ended, so that it uses the account's quota."""
        return len(self.list_ended_jobs()) < len(self.jobs)

    def list_ended_jobs(self) -> list[str]:
        """Return the names of its jobs that have ended."""
        return [name for name, job in self.jobs.items() if JobStatus(job["TrainingJobStatus"]).is_terminal]

    def _folder(self) -> str:
        return f"{self._plan.store}{self.job}/checkpoints/"

    def list_checkpoints(self) -> list[StoredCheckpoint]:
        """Return the run's checkpoints in S3."""
        return list_checkpoints(self.aws.client("s3"), self._folder())

    def list_quarantined_objects(self) -> list[str]:
        """Return the keys of the objects that the supervisor has moved to quarantine."""
        place = f"{PLACE}{self.run_id}/"
        pages = self.aws.client("s3").get_paginator("list_objects_v2").paginate(Bucket=self._plan.bucket, Prefix=place)
        return [item["Key"].removeprefix(place) for page in pages for item in page.get("Contents", [])]

    def advise(self) -> str:
        """Return nothing: a trial is too short for advice."""
        return ""

    def find_largest_difference(self) -> float | None:
        """Return None: there is no undisturbed run."""
        return None

    def _saved_losses(self, job: str) -> dict[int, float]:
        return {}

    def _read_metrics(self, job: str) -> None:
        """Record the age of each metric's newest value when it is first visible."""
        end = now()
        for metric in METRICS:
            answer = self.aws.client("cloudwatch").get_metric_statistics(
                Namespace=NAMESPACE,
                MetricName=metric,
                Dimensions=[{"Name": "TrainingJobName", "Value": job}],
                StartTime=end - METRIC_WINDOW,
                EndTime=end + timedelta(minutes=1),
                Period=60,
                Statistics=["SampleCount"],
            )
            newest = max((point["Timestamp"] for point in answer["Datapoints"]), default=None)
            key = f"{job}/{metric}"
            if newest is not None and newest > self.newest_values.get(key, newest - timedelta(1)):
                self.newest_values[key] = newest
                self.metric_ages.setdefault(metric, []).append(max(0.0, (now() - newest).total_seconds()))

    def _read_uploads(self) -> None:
        """Record when each checkpoint was first in S3: a later job uploads what it has restored once more."""
        s3 = self.aws.client("s3")
        prefix = self._folder().removeprefix(f"s3://{self._plan.bucket}/")
        folders: dict[str, dict[str, datetime]] = {}
        try:
            for page in s3.get_paginator("list_objects_v2").paginate(Bucket=self._plan.bucket, Prefix=prefix):
                for item in page.get("Contents", []):
                    match = FOLDER.fullmatch(item["Key"].removeprefix(prefix))
                    if match and not match["aside"]:
                        folder = item["Key"].removesuffix(match["name"])
                        folders.setdefault(folder, {})[match["name"]] = item["LastModified"]
        except ClientError as error:
            if not is_missing(error):
                raise
        for folder, files in folders.items():
            if MANIFEST in files and len(files) > 1:
                self._note_upload(s3, folder, files)

    def _note_upload(self, s3: Any, folder: str, files: dict[str, datetime]) -> None:
        if any(key[0] == folder and upload.manifest_at >= files[MANIFEST] for key, upload in self.uploads.items()):
            return
        try:
            content = s3.get_object(Bucket=self._plan.bucket, Key=f"{folder}{MANIFEST}")["Body"].read()
        except ClientError as error:
            if is_missing(error) or "NoSuchKey" in str(error):
                return  # it was quarantined in between
            raise
        manifest = json.loads(content)
        key = (folder, int(manifest["step"]), str(manifest["saved_at"]))
        if key not in self.uploads:
            others = max(at for name, at in files.items() if name != MANIFEST)
            self.uploads[key] = UploadedCheckpoint(
                step=int(manifest["step"]),
                reason=str(manifest.get("reason", "")),
                saved_at=datetime.fromisoformat(str(manifest["saved_at"]).replace("Z", "+00:00")),
                manifest_at=files[MANIFEST],
                files_at=others,
            )

    def observe(self) -> Observation:
        """Return everything that was seen, with the jobs' tags as they are now."""
        return Observation(
            trial=self._trial.name,
            run=self.run_id,
            scenario=self.scenario,
            facts=self._collect_facts() if self.run else {},
            jobs=tuple(self._observe_job(name) for name in self.list_jobs() if name in self.jobs),
            reports=sum("report" in entry.signal for entry in self.timeline),
            decisions=tuple(entry.reason for entry in self.timeline),
            uploads=tuple(sorted(self.uploads.values(), key=lambda upload: upload.saved_at)),
            metric_ages={name: tuple(ages) for name, ages in self.metric_ages.items()},
        )

    def _collect_facts(self) -> dict[str, Any]:
        """Return the demo's facts; the last step is the last job's, since the one before may have gone further."""
        last = self.curves.get(self.list_jobs()[-1])
        return collect_facts(Name.CRASH, self) | {"final_step": last.last_step if last else 0}

    def _observe_job(self, name: str) -> ObservedJob:
        found = self.jobs[name]
        tags = self._sagemaker.list_tags(ResourceArn=found["TrainingJobArn"])["Tags"]
        reused = [job for job, other in self.jobs.items() if other.get("WarmPoolStatus", {}).get("ReusedByJob") == name]
        return ObservedJob(
            name=name,
            status=found["TrainingJobStatus"],
            created_at=found["CreationTime"],
            transitions=tuple(
                StatusTransition(entry["Status"], entry["StartTime"], entry.get("EndTime"))
                for entry in found.get("SecondaryStatusTransitions", [])
            ),
            ended_at=found.get("TrainingEndTime"),
            failure_reason=" ".join(found.get("FailureReason", "").split()),
            tags={tag["Key"]: tag["Value"] for tag in tags},
            is_spot=bool(found.get("EnableManagedSpotTraining")),
            stop_called_at=self.stop_called_at if name == self.job and self.stop_called_at else self._find_stop(name),
            pool_of=reused[0] if reused else "",
        )

    def _find_stop(self, job: str) -> datetime | None:
        """Return when Rerail decided to stop this job."""
        stops = (
            entry.at
            for entry in self.timeline
            for action in entry.actions
            if action.get("type") == "StopJob" and action.get("job_name") == job
        )
        return next(stops, None)


def make_stage(where: Any, plan: JobPlan, trial: AcceptanceTrial) -> TrialStage:
    """Return the stage of a trial whose job was started."""
    run = make_run_id(f"{plan.id}-{trial.name}")
    return TrialStage(where, trial.scenario, run_id=run, scale=plan.scale, trial=trial, plan=plan)
