"""Tasks as `rerail submit` takes them: a task has the settings that a person would give for it."""

import hashlib
import io
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stderr
from pathlib import Path
from typing import Any, TypeVar

import typer
from botocore.exceptions import BotoCoreError, ClientError

from cli.chains.definition import Chain, ChainTask
from cli.chains.fingerprints import TaskFacts, find_code_digest, list_options
from cli.place import client
from cli.submit.account import split
from cli.submit.arguments import ENTRY
from cli.submit.problem import Problem
from cli.submit.screen import SubmitScreen
from cli.submit.settings import join
from cli.submit.stages import CHANGEABLE, SCRIPT_MODE, Submission, SubmitMode, carry_out, plan
from cli.trouble import explain, is_passing

# In the request of a dry run, in place of what a task's name and the artifacts are not yet known for.
PLACEHOLDER = "chain"
T = TypeVar("T")
SAMPLE = 16  # hexadecimal digits of a file's digest in the record


class Submitter:
    """Submits the tasks of one chain."""

    def __init__(self, chain: Chain, *, local: bool) -> None:
        self._chain, self._local = chain, local

    def find_facts(self, task: ChainTask) -> TaskFacts:
        """Return what the task's result depends on, its artifacts left out; raise Problem if it cannot be submitted."""
        places = {one.channel: one.place or f"s3://{PLACEHOLDER}/{one.text}/" for one in task.inputs}
        planned, _ = self._call(plan, task, task.options, places, name=PLACEHOLDER)
        named = task.options.get("hyperparameters", {})
        return TaskFacts(
            code=find_code_digest(planned.request),
            arguments=task.arguments,
            options=list_options(planned.request, named=named, entry_point=str(SCRIPT_MODE)),
            inputs={one.channel: digest_place(task.name, one.place) for one in task.inputs if one.place},
            files={
                name: hashlib.sha256(content).hexdigest()[:SAMPLE]
                for name, (content, _) in planned.source.files.items()
                if name != ENTRY  # it has the arguments
            },
        )

    def preview(self, task: ChainTask, *, name: str, places: Mapping[str, str]) -> dict[str, Any]:
        """Return the request of the task's job, with nothing uploaded; raise Problem if it cannot be submitted."""
        return self._call(plan, task, task.options, places, name=name)[0].request

    def start(self, task: ChainTask, *, name: str, places: Mapping[str, str]) -> tuple[str, ...]:
        """Start the task's job; return the messages of its submission. Raise Problem if it is refused."""
        return self._call(carry_out, task, task.options, places, name=name)[1]

    def upload(self, task: ChainTask, *, name: str, places: Mapping[str, str]) -> dict[str, Any]:
        """Upload what the task's job needs; return its request. Raise Problem if it is refused."""
        return self._call(carry_out, task, task.options, places, name=name, mode=SubmitMode.UPLOAD_ONLY)[0]

    def continue_run(self, task: ChainTask, earlier: str, *, places: Mapping[str, str]) -> tuple[str, ...]:
        """Have the next attempt of a held or stopped run take the task's code, arguments and options; return messages.

        Raise Problem if it is refused.
        """
        changes = {key: value for key, value in task.options.items() if key in CHANGEABLE}
        return self._call(carry_out, task, changes, places, continued=earlier)[1]

    def _call(
        self,
        stage: Callable[[Submission, SubmitScreen], T],
        task: ChainTask,
        settings: Mapping[str, Any],
        places: Mapping[str, str],
        **named: Any,
    ) -> tuple[T, tuple[str, ...]]:
        """Plan or carry out the task's submission in the folder of its file; return the outcome and the messages.

        `places` are the S3 folders or paths of the channels.
        """
        given = join({"exclude": [self._chain.file.name]}, {**settings, "inputs": places})
        submission = Submission(script=task.script, arguments=task.arguments, given=given, local=self._local, **named)
        printed = io.StringIO()
        try:
            with chdir(self._chain.file.parent), redirect_stderr(printed):
                outcome = stage(submission, SubmitScreen(as_json=True))
        except Problem as problem:
            raise Problem(f"task {task.name}: {problem.what}", problem.remedy) from problem
        except typer.Exit as end:  # the text of place.fail
            what, _, remedy = printed.getvalue().rpartition("to do: ")
            raise Problem(f"task {task.name}: {what.strip().removeprefix('error: ')}", remedy.strip()) from end
        except (ClientError, BotoCoreError) as error:
            if is_passing(error):
                raise
            what, remedy = explain(error)
            raise Problem(f"task {task.name}: {what}", remedy) from error
        return outcome, tuple(printed.getvalue().splitlines())


def digest_place(task: str, place: str) -> str:
    """Return a digest of the files of a path, or of the names and ETags of the objects of an S3 folder."""
    if place.startswith("s3://"):
        return f"objects {_digest_objects(task, place)}"
    return f"files {_digest_tree(task, Path(place))}"


def _digest_tree(task: str, path: Path) -> str:
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        try:
            with file.open("rb") as content:
                own = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise Problem(f"task {task}: cannot read {file}: {error.strerror}", "correct its permissions") from error
        name = file.name if file == path else file.relative_to(path).as_posix()
        digest.update(f"{name}\0{own}\n".encode())
    return digest.hexdigest()


def _digest_objects(task: str, uri: str) -> str:
    bucket, prefix = split(uri)
    digest, count = hashlib.sha256(), 0
    try:
        for page in client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for item in page.get("Contents", []):
                digest.update(f"{item['Key'].removeprefix(prefix)}\0{item['ETag']}\0{item['Size']}\n".encode())
                count += 1
    except (ClientError, BotoCoreError) as error:
        raise Problem(f"task {task}: cannot list {uri}: {explain(error).what}", explain(error).remedy) from error
    if not count:
        raise Problem(f"task {task}: there are no objects at {uri}", "correct the address, or upload the data")
    return digest.hexdigest()
