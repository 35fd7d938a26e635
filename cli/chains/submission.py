"""Tasks as `rerail submit` takes them: a task is the command that a person would type for it."""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from typer.core import TyperOption
from typer.exceptions import TyperException

from cli.chains.definition import Chain, ChainTask
from cli.chains.fingerprints import TaskFacts, find_code_digest, list_options
from cli.place import client
from cli.submit.account import split
from cli.submit.command import SCRIPT_MODE
from cli.submit.defaults import read_defaults
from cli.submit.packing import pack
from cli.submit.problem import Problem
from cli.trouble import explain, is_passing

# Options of `rerail submit` that the chain itself gives, or that make no sense in one.
CHAINS_OWN = ("name", "input", "follow", "download", "continue", "dry-run", "upload-only", "json", "local", "help")
# Options that a run keeps when it is continued.
KEPT = (
    *("role", "bucket", "spot", "max-runtime", "max-wait", "keep-alive", "tag", "agent", "checkpoint-path"),
    *("project", "create-role", "retries", "shard", "fsx", "efs", "subnet", "security-group"),
    *("model-uri", "start-from", "dockerfile"),
)
# In the request of a dry run, in place of what a task's name and the artifacts are not yet known for.
PLACEHOLDER = "chain"
SAMPLE = 16  # hexadecimal digits of a file's digest in the record


@dataclass(frozen=True, slots=True)
class SubmitAnswer:
    """The output of `rerail submit`."""

    status: int
    # What it prints with --json or --dry-run.
    printed: str
    # Its messages, one a line.
    messages: tuple[str, ...]


class Submitter:
    """Submits the tasks of one chain."""

    def __init__(self, chain: Chain, *, local: bool) -> None:
        self._chain, self._local = chain, local
        self._digests: dict[tuple[Path, str, tuple[str, ...]], dict[str, str]] = {}

    def make_words(self, task: ChainTask, *, name: str, places: Mapping[str, str], mode: str) -> list[str]:
        """Return the words after `rerail submit`; `places` are the S3 folders or paths of the channels."""
        words = [str(task.script), "--name", name, "--exclude", self._chain.file.name]
        words += _make_option_words(task, f"{self._chain.file}: chain {self._chain.name}, task {task.name}")
        words += [word for channel, place in places.items() for word in ("--input", f"{channel}={place}")]
        words += [mode, *(["--local"] if self._local else [])]
        return [*words, "--", *task.arguments]

    def find_facts(self, task: ChainTask) -> TaskFacts:
        """Return what the task's result depends on, its artifacts left out; raise Problem if it cannot be submitted."""
        places = {one.channel: one.place or f"s3://{PLACEHOLDER}/{one.text}/" for one in task.inputs}
        request = self.preview(task, name=PLACEHOLDER, places=places)
        return TaskFacts(
            code=find_code_digest(request),
            arguments=task.arguments,
            options=list_options(request, named=_find_named(task), entry_point=str(SCRIPT_MODE)),
            inputs={one.channel: digest_place(task.name, one.place) for one in task.inputs if one.place},
            files=self._digest_files(task),
        )

    def preview(self, task: ChainTask, *, name: str, places: Mapping[str, str]) -> dict[str, Any]:
        """Return the request of the task's job, with nothing uploaded; raise Problem if it cannot be submitted."""
        answer = self._call(task, self.make_words(task, name=name, places=places, mode="--dry-run"))
        request: dict[str, Any] = json.loads(answer.printed)
        return request

    def start(self, task: ChainTask, *, name: str, places: Mapping[str, str]) -> tuple[str, ...]:
        """Start the task's job; return what `rerail submit` says. Raise Problem if it is refused."""
        return self._call(task, self.make_words(task, name=name, places=places, mode="--json")).messages

    def upload(self, task: ChainTask, *, name: str, places: Mapping[str, str]) -> dict[str, Any]:
        """Upload what the task's job needs; return its request. Raise Problem if it is refused."""
        answer = self._call(task, self.make_words(task, name=name, places=places, mode="--upload-only"))
        request: dict[str, Any] = json.loads(answer.printed)
        return request

    def continue_run(self, task: ChainTask, *, run: str, places: Mapping[str, str]) -> tuple[str, ...]:
        """Have the next attempt of a held or stopped run take the task's code, arguments and options; return messages.

        Raise Problem if it is refused.
        """
        words = [str(task.script), "--continue", run, "--exclude", self._chain.file.name]
        where = f"{self._chain.file}: chain {self._chain.name}, task {task.name}"
        kept = {key: value for key, value in task.options.items() if not _is_kept(_find_option(key, where))}
        words += _make_option_words(replace(task, options=kept), where)
        words += [word for channel, place in places.items() for word in ("--input", f"{channel}={place}")]
        words += ["--json", *(["--local"] if self._local else []), "--", *task.arguments]
        return self._call(task, words).messages

    def _digest_files(self, task: ChainTask) -> dict[str, str]:
        folder = task.script if task.script.is_dir() else task.script.parent
        usual = read_defaults(folder, Path.home()).get("exclude", ())
        exclude = (*usual, self._chain.file.name, *_as_list(task.options.get("exclude", ())))
        packed = (task.script, str(task.options.get("entry", "")), exclude)
        if packed not in self._digests:  # tasks often share a folder
            self._digests[packed] = _digest_packed(*packed)
        return self._digests[packed]

    def _call(self, task: ChainTask, words: Sequence[str]) -> SubmitAnswer:
        with chdir(self._chain.file.parent):
            answer = call_submit(words)
        if answer.status:
            said = [line.strip() for line in answer.messages if line.strip()]
            problem = next((line.removeprefix("error: ") for line in said if line.startswith("error: ")), "")
            remedy = next((line.removeprefix("to do: ") for line in said if line.startswith("to do: ")), "")
            raise Problem(f"task {task.name}: {problem or '; '.join(said)}", remedy or "see `rerail submit --help`")
        return answer


def call_submit(words: Sequence[str]) -> SubmitAnswer:
    """Run `rerail submit` in this process, and return what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = _submit_command().main(list(words), prog_name="rerail submit", standalone_mode=False)
        except TyperException as error:
            return SubmitAnswer(2, "", (f"error: {_format_usage(error)}",))
        except (ClientError, BotoCoreError) as error:
            if is_passing(error):
                raise
            what, remedy = explain(error)
            return SubmitAnswer(2, "", (f"error: {what}", f"to do: {remedy}"))
    return SubmitAnswer(int(status or 0), out.getvalue(), tuple(err.getvalue().splitlines()))


def _format_usage(error: TyperException) -> str:
    """Return what is wrong with a word of the command line, such as a number that is none."""
    formatted = getattr(error, "format_message", None)
    return str(formatted() if formatted else error)


@cache
def _submit_command() -> Any:
    from cli.commands import import_command

    return import_command("submit")


def _make_option_words(task: ChainTask, where: str) -> Iterator[str]:
    for key, value in task.options.items():
        option = _find_option(key, where)
        words = (option.opts[0], *option.secondary_opts[:1])
        multiple, flag = getattr(option, "multiple", False), getattr(option, "is_flag", False)
        if flag:
            if not isinstance(value, bool):
                raise Problem(f"{where}: field {key!r} is {value!r:.100}", "it must be true or false")
            yield from words[:1] if value else words[1:]
        elif multiple and isinstance(value, dict | list):
            pairs = [f"{name}={text}" for name, text in value.items()] if isinstance(value, dict) else value
            yield from (word for text in pairs for word in (words[0], str(text)))
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            yield from (words[0], str(value))
        else:
            wanted = "a list of texts or a table of texts" if multiple else "text or a number"
            raise Problem(f"{where}: field {key!r} is {value!r:.100}", f"it must be {wanted}")


def _find_option(key: str, where: str) -> TyperOption:
    """Return the option of `rerail submit` that a field names, in the singular or the plural, as `[submit]` does."""
    import difflib

    known = {
        name: parameter
        for parameter in _submit_command().params
        for name in (opt.removeprefix("--") for opt in parameter.opts if opt.startswith("--"))
        if name not in CHAINS_OWN
    }
    name = key.replace("_", "-")
    for spelling in (name, name.removesuffix("s")):
        if spelling in known:
            found: TyperOption = known[spelling]
            return found
    fields = ["script", "arguments", "inputs", "after", *(spelling.replace("-", "_") for spelling in known)]
    near = difflib.get_close_matches(key, fields, n=1)
    raise Problem(
        f"{where}: unknown field {key!r:.100}",
        f"did you mean {near[0]!r}?" if near else f"known: {', '.join(fields)}",
    )


def _is_kept(option: TyperOption) -> bool:
    return any(spelling.removeprefix("--") in KEPT for spelling in option.opts)


def _find_named(task: ChainTask) -> dict[str, str]:
    """Return the hyperparameters that are given by name."""
    given = task.options.get("hyperparameters", task.options.get("hyperparameter", {}))
    if isinstance(given, dict):
        return {name: str(value) for name, value in given.items()}
    return {name: value for name, _, value in (str(pair).partition("=") for pair in _as_list(given))}


def _as_list(given: Any) -> tuple[str, ...]:
    return tuple(map(str, given)) if isinstance(given, list | tuple) else (str(given),)


def _digest_packed(script: Path, entry: str, exclude: tuple[str, ...]) -> dict[str, str]:
    source = pack(script, entry=entry, exclude=exclude)
    return {name: hashlib.sha256(content).hexdigest()[:SAMPLE] for name, (content, _) in source.files.items()}


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
