"""`rerail submit --continue RUN`: the next attempt of a run with other code, arguments, environment, image or machines.

The supervisor starts it, so that there is never a second live job: the change lies in the mailbox, and the operator's
command names its digest.
"""

import ast
import hashlib
import io
import json
import tarfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cli.names import find_run
from cli.operators import ask
from cli.place import Place
from cli.submit.account import SubmissionAccount, list_input_files, split
from cli.submit.arguments import ENTRY, RESERVED, with_arguments
from cli.submit.channels import make_s3_channel
from cli.submit.packing import MOST_BYTES, Source
from cli.submit.problem import Problem
from cli.submit.screen import SubmitScreen
from cli.trouble import explain
from rerail.decisions.on_command import find_obstacle_to_continue
from rerail.model.errors import RequestRefused
from rerail.model.mailbox import SIZE_LIMIT, make_change_key
from rerail.model.signals import OperatorVerb
from rerail.requests.continuation import change_request, read_change
from rerail.requests.identity import COMMAND_SCRIPT, SCRIPT_SETTING
from rerail.requests.relaunch import rebuild

ARCHIVE = "/sourcedir.tar.gz"
ANSWER_S = 30.0
# What reading a job's code may raise.
BROKEN = (zlib.error, MemoryError, RecursionError)
UNREADABLE = (ClientError, BotoCoreError, tarfile.TarError, KeyError, ValueError, SyntaxError, EOFError, *BROKEN)


@dataclass(frozen=True, slots=True)
class PreviousJob:
    """The newest job of a run, and the deployment that supervises it."""

    where: Place
    run: str
    description: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """Return the hyperparameters of AWS's toolkit, as JSON texts."""
        given = self.description.get("HyperParameters", {})
        return {name: value for name, value in given.items() if name.startswith(RESERVED)}

    @property
    def code(self) -> str:
        """Return where the code of the job lies."""
        return str(json.loads(self.settings["sagemaker_submit_directory"]))

    @property
    def folder(self) -> str:
        """Return the S3 folder of the run."""
        return str(self.description["OutputDataConfig"]["S3OutputPath"]).rstrip("/").rpartition("/")[0]

    @property
    def sharded(self) -> set[str]:
        """Return the channels of which each machine gets its share."""
        return {
            channel["ChannelName"]
            for channel in self.description.get("InputDataConfig", [])
            if channel["DataSource"].get("S3DataSource", {}).get("S3DataDistributionType") == "ShardedByS3Key"
        }

    def read_arguments(self) -> tuple[list[str], dict[str, str]]:
        """Return the arguments that the job was given, and its options by name."""
        given = self.description.get("HyperParameters", {})
        named = {name: _decode(value) for name, value in given.items() if not name.startswith(RESERVED)}
        if self._program != ENTRY:
            return [], named
        try:
            return _read_entry(self._read_packed(ENTRY))[1:], named
        except UNREADABLE as error:
            raise Problem(
                f"--continue {self.run}: cannot read the arguments of its job in {self.code}: {error}",
                "give them again after --",
            ) from error

    def read_program(self) -> dict[str, Any]:
        """Return the `entry` that the job was started with, or its shell `command`."""
        if self._program not in (ENTRY, COMMAND_SCRIPT):
            return {"entry": self._program}
        try:
            entry = _read_entry(self._read_packed(ENTRY))[0] if self._program == ENTRY else COMMAND_SCRIPT
            if entry != COMMAND_SCRIPT:
                return {"entry": entry}
            return {"command": self._read_packed(COMMAND_SCRIPT).removesuffix("\n")}
        except UNREADABLE as error:
            raise Problem(
                f"--continue {self.run}: cannot read the command of its job in {self.code}: {error}",
                "give --command again, or --entry",
            ) from error

    @property
    def _program(self) -> str:
        return str(json.loads(self.settings["sagemaker_program"]))

    def _read_packed(self, name: str) -> str:
        """Return a file of the job's code."""
        bucket, key = split(self.code)
        content = self.where.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read(MOST_BYTES)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            packed = archive.extractfile(name)
            return packed.read(MOST_BYTES).decode() if packed else ""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The changes for the next attempt; a setting that is not given stays as it was."""

    source: Source
    # The script's arguments; None: those of the job before.
    arguments: Sequence[str] | None = None
    # Settings by their keys; the image is the one that was found for them.
    given: Mapping[str, Any] = field(default_factory=dict)
    # The setting that says how the code was given.
    submitted: Mapping[str, str] = field(default_factory=dict)


def find_previous_job(where: Place, run: str) -> PreviousJob:
    """Return the run's newest job; raise Problem if the run cannot be continued now."""
    record = find_run(where, run)
    if obstacle := find_obstacle_to_continue(record):
        problem, _, remedy = obstacle.rpartition(": ")
        raise Problem(f"--continue {run}: {problem}", remedy)
    name = next((attempt.job_name for attempt in reversed(record.attempts) if attempt.exists), record.id)
    try:
        description = where.client("sagemaker").describe_training_job(TrainingJobName=name)
    except (ClientError, BotoCoreError) as error:
        raise Problem(
            f"--continue {run}: cannot read its job {name}: {explain(error).what}", "submit a new run"
        ) from error
    if "sagemaker_submit_directory" not in description.get("HyperParameters", {}):
        raise Problem(
            f"--continue {run}: its job {name} was not started in script mode, so there is no code to replace",
            "start a new run on a copy of its checkpoints: docs/runbooks/index.md, a fixed script",
        )
    return PreviousJob(where, run, description)


def make_change(
    previous: PreviousJob, wanted: Continuation
) -> tuple[Source, dict[str, Any], list[str], dict[str, str]]:
    """Return the source to upload, the change of the run's request, and the script's arguments and named options."""
    given = wanted.given
    arguments, named = list(wanted.arguments or ()), dict(given.get("hyperparameters", {}))
    if not arguments and not named:
        arguments, named = previous.read_arguments()
    source, hyperparameters = with_arguments(wanted.source, arguments, named)
    settings = {name: value for name, value in previous.settings.items() if name != SCRIPT_SETTING}
    settings |= wanted.submitted
    settings["sagemaker_program"] = json.dumps(source.entry)
    settings["sagemaker_submit_directory"] = json.dumps(make_code_uri(previous, source))
    if "torchrun" in given:
        settings["sagemaker_torch_distributed_enabled"] = json.dumps(given["torchrun"])
    if "instance_type" in given and "sagemaker_torch_distributed_enabled" in settings:
        settings["sagemaker_instance_type"] = json.dumps(given["instance_type"])
    machines = {
        "InstanceType": given.get("instance_type"),
        "InstanceCount": given.get("count"),
        "VolumeSizeInGB": given.get("volume"),
    }
    metrics = [{"Name": name, "Regex": regex} for name, regex in given.get("metrics", {}).items()]
    change = {
        "HyperParameters": {**hyperparameters, **settings},
        "AlgorithmSpecification": _given({"TrainingImage": given.get("image"), "MetricDefinitions": metrics}),
        "ResourceConfig": _given(machines),
        "Environment": dict(given.get("env", {})),
        "InputDataConfig": [_make_channel(previous, name, path) for name, path in given.get("inputs", {}).items()],
    }
    return source, _given(change), arguments, named


def check_change(previous: PreviousJob, change: Mapping[str, Any]) -> bytes:
    """Return the change as the supervisor reads it; raise Problem if Rerail or SageMaker would refuse it."""
    from local.sagemaker.errors import ServiceError
    from local.sagemaker.protocol import operation_model
    from local.sagemaker.validation import check_request

    text = json.dumps(change, separators=(",", ":")).encode()
    if len(text) > SIZE_LIMIT:
        raise Problem(f"--continue: the change has {len(text)} bytes, at most {SIZE_LIMIT} are read", "shorten it")
    shape: Any = operation_model("CreateTrainingJob").input_shape
    try:
        read_change(text)
        check_request(
            "CreateTrainingJob", change_request(rebuild(previous.description, {}, members=shape.members), change)
        )
    except RequestRefused as error:
        raise Problem(f"--continue: {error}", "leave it out, or submit a new run") from error
    except ServiceError as error:
        raise Problem(
            f"SageMaker would refuse the request: {error.message}", "correct the option that it names"
        ) from error
    return text


def send(
    previous: PreviousJob, text: bytes, policy: str, screen: SubmitScreen, sleep: Callable[[float], None] = time.sleep
) -> str:
    """Put the change into the mailbox, command it, and return the decision; "" if that is not known yet."""
    where, run = previous.where, previous.run
    digest = hashlib.sha256(text).hexdigest()
    try:
        where.client("s3").put_object(
            Bucket=where.outputs["MailboxBucket"], Key=make_change_key(run, digest), Body=text
        )
    except (ClientError, BotoCoreError) as error:
        raise Problem(
            f"--continue {run}: cannot write the change into the mailbox: {explain(error).what}",
            "ask for s3:PutObject on changes/* of the mailbox: docs/security.md",
        ) from error
    command = ask(where, run, OperatorVerb.CONTINUE, "", quietly=True, change=digest, policy=policy)
    waited = 0.0
    while waited < ANSWER_S:
        record = where.runs.load(run)
        if record and command in record.commands:
            return next((e.reason for e in reversed(where.runs.timeline(run)) if OperatorVerb.CONTINUE in e.reason), "")
        sleep(0.5)
        waited += 0.5
    screen.say(f"asked: continue {run}. `rerail show {run}` shows the result")
    return ""


def upload(account: SubmissionAccount, previous: PreviousJob, source: Source, inputs: Mapping[str, str]) -> None:
    """Upload the code and the local inputs."""
    account.check_bucket(split(previous.code)[0])
    account.upload_code(source, make_code_uri(previous, source))
    for name, path in inputs.items():
        if not path.startswith("s3://"):
            local = Path(path).expanduser()
            account.upload_input(local, list_input_files(local), make_input_uri(previous, name, local))


def make_code_uri(previous: PreviousJob, source: Source) -> str:
    """Return where the new code lies: beside that of the job before."""
    return f"{previous.code.removesuffix(ARCHIVE).rpartition('/')[0]}/{source.digest}{ARCHIVE}"


def make_input_uri(previous: PreviousJob, name: str, path: Path) -> str:
    """Return where a channel's new files lie: in a folder of their own, apart from what earlier jobs have read."""
    files = sorted((inner, file.stat()) for inner, file in list_input_files(path).items())
    text = json.dumps([(inner, found.st_size, found.st_mtime_ns) for inner, found in files])
    return f"{previous.folder}/input/{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}/"


def _make_channel(previous: PreviousJob, name: str, path: str) -> dict[str, Any]:
    uri = path if path.startswith("s3://") else make_input_uri(previous, name, Path(path).expanduser())
    return make_s3_channel(name, uri, is_sharded=name in previous.sharded)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those that were given."""
    return {name: value for name, value in values.items() if value not in ("", None, {}, [])}


def _decode(value: str) -> str:
    """Return the text that the script was given for a hyperparameter."""
    try:
        decoded = json.loads(value)
    except ValueError:
        return value
    return decoded if isinstance(decoded, str) else value


def _read_entry(text: str) -> list[str]:
    """Return the script that the packed entry script starts, and its arguments; raise ValueError if it starts none."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.List):
            return [str(word) for word in ast.literal_eval(node.value)]
    raise ValueError(f"{ENTRY} does not start a script")
