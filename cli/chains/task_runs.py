"""The runs of a chain's tasks in AWS: how they are, what they have left, and their start."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from botocore.exceptions import BotoCoreError, ClientError

from cli.chains.definition import Artifact, Chain, ChainTask, TaskInput
from cli.chains.plan import TaskState
from cli.chains.submission import PLACEHOLDER, Submitter
from cli.place import Place
from cli.submit.account import split
from cli.submit.problem import Problem
from cli.submit.stages import SCRIPT_MODE
from cli.trouble import explain
from cli.wait import ADOPTION_S, format_progress
from rerail.decisions.decision import format_next_command
from rerail.model.errors import JobNotFound
from rerail.model.run import JobStatus, Run, RunState
from rerail.requests.identity import find_difference

ENDED = {RunState.COMPLETED: TaskState.COMPLETED, RunState.STOPPED: TaskState.STOPPED, RunState.HELD: TaskState.HELD}
# Where the script puts each artifact.
WRITTEN_TO = {
    Artifact.MODEL: "SM_MODEL_DIR",
    Artifact.OUTPUT: "SM_OUTPUT_DATA_DIR",
    Artifact.CHECKPOINTS: "/opt/ml/checkpoints",
}


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The state of a task's run, and a line about it for people."""

    state: TaskState
    text: str = ""
    # What is left to people; TASK is the task's name.
    advice: str = ""


@dataclass(frozen=True, slots=True)
class CompletedRun:
    """The result of a completed run: its last job, and the S3 address of each artifact."""

    job: str
    artifacts: Mapping[str, str]


@dataclass
class TaskRuns:
    """The runs of one chain in one deployment."""

    where: Place
    submitter: Submitter
    # The command that runs the chain.
    command: str
    clock: Callable[[], float] = time.monotonic
    # When a job without a run was first seen to have failed.
    _failed_since: dict[str, float] = field(default_factory=dict)

    def find_progress(self, run: str) -> TaskProgress:
        """Return how the run is now; errors of AWS pass."""
        record = self.where.runs.load(run)
        return self._describe(record) if record else self._find_job(run)

    def find_result(self, run: str) -> CompletedRun:
        """Return what a completed run has left."""
        record = self.where.runs.load(run)
        job = record.current.job_name if record else run
        described = self.where.client("sagemaker").describe_training_job(TrainingJobName=job)
        output = f"{described['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{job}/output"
        model = described.get("ModelArtifacts", {}).get("S3ModelArtifacts") or f"{output}/model.tar.gz"
        checkpoints = described.get("CheckpointConfig", {}).get("S3Uri", "")
        addresses = {
            Artifact.MODEL: model,
            Artifact.OUTPUT: f"{output}/output.tar.gz",
            Artifact.CHECKPOINTS: f"{checkpoints.rstrip('/')}/" if checkpoints else "",
        }
        return CompletedRun(job, {str(artifact): uri for artifact, uri in addresses.items()})

    def check_own(self, task: ChainTask, run: str, places: Mapping[str, str]) -> None:
        """Raise Problem if the run is not what the task asks for: anyone can start a job of that name.

        `places` are the addresses of the channels that are known.
        """
        record = self.where.runs.load(run)
        found = (
            self.where.runs.request(run)
            if record
            else self.where.client("sagemaker").describe_training_job(TrainingJobName=run)
        )
        all_places = {**find_places(task, {}), **places}
        difference = find_difference(
            self.submitter.preview(task, name=run, places=all_places), found, places, entry_point=str(SCRIPT_MODE)
        )
        if difference:
            raise Problem(
                f"the job {run} has the name of task {task.name}, and is another job: {difference}",
                f"find out who started it; `{self.command} --again {task.name}` starts the task's own",
            )

    def check_artifact(self, task: ChainTask, one: TaskInput, uri: str) -> None:
        """Raise Problem if there is nothing at the address that the task reads."""
        bucket, prefix = split(uri)
        try:
            found = self.where.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1).get("KeyCount")
        except (ClientError, BotoCoreError) as error:
            raise Problem(
                f"task {task.name}: cannot list {uri}: {explain(error).what}", explain(error).remedy
            ) from error
        if not found:
            raise Problem(
                f"task {task.name}: {one.text} is not there: {uri} is empty",
                f"have {one.task} write to {WRITTEN_TO[one.artifact]}, or run it again with --again {one.task}",
            )

    def start(self, task: ChainTask, run: str, places: Mapping[str, str]) -> tuple[str, ...]:
        """Start the task's run; return what `rerail submit` says. Raise Problem if it is refused."""
        return self.submitter.start(task, name=run, places=places)

    def _describe(self, run: Run) -> TaskProgress:
        state = ENDED.get(run.state, TaskState.RUNNING)
        text = format_progress(run)
        if state is TaskState.HELD:
            reason, command = f": {run.hold_text}" if run.hold_text else "", format_next_command(run)
            if not command.startswith("rerail release"):  # which would repeat the code
                return TaskProgress(state, text + reason, f"fix the script, then `{self.command} --continue TASK`")
            return TaskProgress(state, text + reason, f"fix the cause, then `{self.where.complete_text(command)}`")
        if state is TaskState.STOPPED:
            advice = f"`{self.command} --again TASK` starts another; `--continue TASK` goes on with it after a change"
            return TaskProgress(state, text, advice)
        return TaskProgress(state, text)

    def _find_job(self, run: str) -> TaskProgress:
        from rerail.aws.sagemaker import SageMakerJobs

        try:
            job, _ = SageMakerJobs().describe(run)
        except JobNotFound:
            return TaskProgress(TaskState.NEW)
        text = f"its job is {job.status}, and not yet a run"
        if job.status is JobStatus.COMPLETED:
            return TaskProgress(TaskState.COMPLETED, f"its job {run} is {job.status}")
        if job.status.is_terminal:
            since = self._failed_since.setdefault(run, self.clock())
            if self.clock() - since > ADOPTION_S:
                advice = f"`{self.where.complete_text(f'rerail doctor --job {run}')}` says why it is not supervised"
                return TaskProgress(TaskState.STOPPED, f"its job {run} is {job.status}", advice)
        return TaskProgress(TaskState.RUNNING, text)


def find_places(task: ChainTask, results: Mapping[str, CompletedRun]) -> dict[str, str]:
    """Return the address of each channel of a task; that of a task without a result is a placeholder."""
    return {
        one.channel: results[one.task].artifacts[one.artifact]
        if one.task in results
        else one.place or f"s3://{PLACEHOLDER}/{one.text}/"
        for one in task.inputs
    }


def make_record_key(chain: Chain) -> str:
    """Return the S3 key of the chain's record."""
    return f"rerail/chains/{chain.name}/chain.json"
