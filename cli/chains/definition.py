"""Read and check the tables `[chain.NAME.TASK]` of `rerail.toml`."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from cli.submit.problem import Problem
from cli.submit.settings import check_project, check_project_path, check_table, list_project_folders, read_toml

FILE = "rerail.toml"
NAME = re.compile(r"(?!.{41})[a-zA-Z0-9](-*[a-zA-Z0-9]){0,39}")
CHANNEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Fields of a task that are not settings of its job.
OWN_FIELDS = ("script", "arguments", "inputs", "after")


class Artifact(StrEnum):
    """An artifact of a run that another task can read."""

    MODEL = "model"  # SM_MODEL_DIR, as model.tar.gz
    OUTPUT = "output"  # SM_OUTPUT_DATA_DIR, as output.tar.gz
    CHECKPOINTS = "checkpoints"  # the folder of its checkpoints


@dataclass(frozen=True, slots=True)
class TaskInput:
    """The data of one channel: an artifact of a task, or a place."""

    channel: str
    # The task that it comes from; empty for data that lies at `place`.
    task: str = ""
    artifact: Artifact = Artifact.OUTPUT
    # An S3 URI, or an absolute path of this machine.
    place: str = ""

    @property
    def text(self) -> str:
        """Return it as the file has it."""
        return f"{self.task}.{self.artifact}" if self.task else self.place


@dataclass(frozen=True, slots=True)
class ChainTask:
    """One task: a script with its arguments, what it reads, and the settings of its job."""

    name: str
    script: Path
    arguments: tuple[str, ...] = ()
    inputs: tuple[TaskInput, ...] = ()
    # Tasks that must complete first although nothing of theirs is read.
    after: tuple[str, ...] = ()
    # The settings of its job, by their keys.
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the tasks whose artifacts it reads, each once."""
        return tuple(dict.fromkeys(one.task for one in self.inputs if one.task))

    @property
    def dependencies(self) -> tuple[str, ...]:
        """Return the tasks that must complete first, each once."""
        return tuple(dict.fromkeys((*self.sources, *self.after)))


@dataclass(frozen=True, slots=True)
class Chain:
    """The tasks of one chain, in the order of the file."""

    name: str
    file: Path
    tasks: Mapping[str, ChainTask]


def find_file(given: Path | None, folder: Path) -> Path:
    """Return the given file, or that of the given folder, or the nearest at or above `folder` in its project."""
    if given is not None:
        file = (given / FILE if given.is_dir() else given).absolute()
        if not file.is_file():
            raise Problem(f"--file {given}: there is no such file", "name a file with tables [chain.NAME.TASK]")
        return file
    for parent in list_project_folders(folder, Path.home()):
        if (parent / FILE).is_file():
            return parent / FILE
    raise Problem(f"there is no {FILE} at or above {folder}", "write one with tables [chain.NAME.TASK], or use --file")


def read_chain(file: Path, name: str) -> Chain:
    """Return the chain of this name; without a name, the only one of the file."""
    return parse_chain(file, read_toml(file).get("chain", {}), name)


def parse_chain(file: Path, chains: Any, name: str) -> Chain:
    """Return the chain of this name from the table `chain` of the file."""
    if not isinstance(chains, dict) or not chains:
        raise Problem(f"{file} has no chain", "add a table [chain.NAME.TASK] for each task, with `script`")
    if not name and len(chains) > 1:
        raise Problem(f"{file} has several chains", f"name one: rerail chain {' | '.join(chains)}")
    chosen = name or next(iter(chains))
    if chosen not in chains:
        raise Problem(f"{file} has no chain {chosen!r:.100}", _nearest(chosen, list(chains)))
    tasks = chains[chosen]
    where = f"{file}: chain {chosen}"
    if not NAME.fullmatch(chosen):
        raise Problem(f"{where}: not a valid name", "use 1-40 letters, digits or hyphens")
    if not isinstance(tasks, dict) or not tasks:
        raise Problem(f"{where} has no tasks", f"add a table [chain.{chosen}.TASK] for each")
    names = list(tasks)
    return Chain(chosen, file, {task: _parse_task(file, where, task, tasks[task], names) for task in names})


def _parse_task(file: Path, where: str, name: str, table: Any, names: Sequence[str]) -> ChainTask:
    where = f"{where}, task {name}"
    if not NAME.fullmatch(name):
        raise Problem(f"{where}: not a valid name", "use 1-40 letters, digits or hyphens")
    if not isinstance(table, dict):
        raise Problem(f"{where} must be a table", "give it at least `script`")
    options = {key: value for key, value in table.items() if key not in OWN_FIELDS}
    check_table(where, options, more=OWN_FIELDS)
    check_project(file, options, folder=file.parent)
    script = table.get("script")
    if not isinstance(script, str) or not script:
        raise Problem(f"{where}: field 'script' is missing", "name a Python script or its folder, relative to the file")
    after = _texts(where, "after", table.get("after", []))
    for other in after:
        _check_task(where, f"after = {other!r}", other, names)
    inputs = table.get("inputs", {})
    if not isinstance(inputs, dict):
        raise Problem(f"{where}: field 'inputs' must be a table", 'write inputs = { train = "prepare.output" }')
    return ChainTask(
        name=name,
        script=check_project_path(file, "script", script, folder=file.parent),
        arguments=_texts(where, "arguments", table.get("arguments", [])),
        inputs=tuple(_parse_input(file, where, channel, given, names) for channel, given in inputs.items()),
        after=after,
        options=options,
    )


def _parse_input(file: Path, where: str, channel: str, given: Any, names: Sequence[str]) -> TaskInput:
    field_name = f"input {channel!r:.80}"
    if not CHANNEL.fullmatch(channel):
        raise Problem(f"{where}: {field_name} is not a channel's name", "use letters, digits, '.', '-' and '_'")
    if not isinstance(given, str) or not given:
        raise Problem(f"{where}: {field_name} is {given!r:.100}", "write TASK.output, an s3:// folder or a path")
    if given.startswith("s3://"):
        return TaskInput(channel, place=given)
    task, _, artifact = given.rpartition(".")
    if artifact in list(Artifact) and "/" not in task and (task in names or not (file.parent / given).exists()):
        _check_task(where, f"{field_name} = {given!r}", task, names)
        return TaskInput(channel, task=task, artifact=Artifact(artifact))
    if given in names:
        known = ", ".join(f"{given}.{kind}" for kind in Artifact)
        raise Problem(f"{where}: {field_name} = {given!r} does not say what of the task", f"write one of {known}")
    path = check_project_path(file, field_name, given, folder=file.parent)
    if not path.exists():
        raise Problem(
            f"{where}: {field_name} = {given!r:.200}: there is no such file or folder",
            f"write TASK.{'|'.join(Artifact)}, an s3:// folder or a path relative to the file",
        )
    return TaskInput(channel, place=str(path))


def _check_task(where: str, what: str, task: str, names: Sequence[str]) -> None:
    if task not in names:
        raise Problem(f"{where}: {what}: the chain has no task {task!r}", _nearest(task, names))


def _texts(where: str, name: str, given: Any) -> tuple[str, ...]:
    """Return a list of words; numbers count as their text."""
    if not isinstance(given, list) or not all(
        isinstance(word, str | int | float) and not isinstance(word, bool) for word in given
    ):
        raise Problem(f"{where}: field {name!r} is {given!r:.200}", "it must be a list of texts")
    return tuple(str(word) for word in given)


def _nearest(wrong: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(wrong, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
