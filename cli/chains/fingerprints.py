"""Fingerprint the inputs of a task, and describe the differences between two of them."""

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rerail.model.redaction import redact_patterns
from rerail.requests.identity import JOBS_OWN
from rerail.requests.supervised import CHANNEL

# The version of the fingerprint: another one repeats every task.
VERSION = 1
# Characters of the fingerprint in a run's name: 48 bits among the runs of one task.
DIGITS = 12
NAME_PART = 20
ENVIRONMENT = "environment "
FILES_NAMED = 3


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """Everything that a task's result depends on."""

    # The digest of what is packed.
    code: str
    arguments: tuple[str, ...] = ()
    # Image, machines, environment and the like, by their name for people.
    options: Mapping[str, str] = field(default_factory=dict)
    # The content of each channel: the run it comes from, or a digest of the files.
    inputs: Mapping[str, str] = field(default_factory=dict)
    # A digest of each packed file: it names what changed, and is not part of the fingerprint.
    files: Mapping[str, str] = field(default_factory=dict)
    # How often the task was asked for again with the same facts.
    repetition: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "arguments": list(self.arguments)}


def read_facts(plain: Mapping[str, Any]) -> TaskFacts:
    """Return facts from JSON; fields of later versions are ignored. Raise TypeError for a value of another type."""
    known = {name: plain[name] for name in TaskFacts.__slots__ if name in plain}
    facts = replace(TaskFacts(**known), arguments=tuple(plain.get("arguments", ())))
    check_texts(facts.code, *facts.arguments)
    for table in (facts.options, facts.inputs, facts.files):
        check_texts(*table.keys(), *table.values())
    check_counts(facts.repetition)
    return facts


def check_texts(*values: Any) -> None:
    """Raise TypeError unless all are text: others may write the record."""
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise TypeError(f"{wrong[0]!r:.100} must be text")


def check_counts(*values: Any) -> None:
    """Raise TypeError unless all are whole numbers."""
    if wrong := [value for value in values if type(value) is not int]:
        raise TypeError(f"{wrong[0]!r:.100} must be a whole number")


def make_fingerprint(chain: str, task: str, facts: TaskFacts) -> str:
    """Return the SHA-256 of the facts, in hexadecimal."""
    content = {name: value for name, value in facts.to_plain().items() if name != "files"}
    text = json.dumps([VERSION, chain, task, content], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def make_run_name(chain: str, task: str, fingerprint: str) -> str:
    """Return the name of the task's run: the same facts give the same name, so that no run is started twice."""
    parts = [part[:NAME_PART].rstrip("-") for part in (chain, task)]
    return "-".join([*parts, fingerprint[:DIGITS]])


def is_run_name(chain: str, task: str, run: str) -> bool:
    """Return whether the name can be that of a run of the task."""
    return bool(re.fullmatch(rf"{re.escape(make_run_name(chain, task, ''))}[0-9a-f]{{{DIGITS}}}", run))


def list_options(request: Mapping[str, Any], *, named: Mapping[str, str], entry_point: str = "") -> dict[str, str]:
    """Return what a CreateTrainingJob request says that changes a result, in words.

    `named` are the hyperparameters given by name; the others are arguments. `entry_point` is a path of this machine.
    """
    return {name: text for name, text in _list_options(request, named, entry_point) if text}


def _list_options(request: Mapping[str, Any], named: Mapping[str, str], entry_point: str) -> Iterator[tuple[str, str]]:
    algorithm, machines = request["AlgorithmSpecification"], request["ResourceConfig"]
    yield "image", algorithm.get("TrainingImage", "")
    words = [word for word in algorithm.get("ContainerEntrypoint", ()) if word != entry_point]
    yield "entry point", shlex.join([*words, *algorithm.get("ContainerArguments", ())])
    yield "instance type", machines.get("InstanceType", "")
    yield "machines", str(machines.get("InstanceCount", ""))
    yield "instance groups", _format(machines.get("InstanceGroups"))
    yield "checkpoint path", request.get("CheckpointConfig", {}).get("LocalPath", "")
    for name, value in request.get("Environment", {}).items():
        yield f"{ENVIRONMENT}{name}", hashlib.sha256(value.encode()).hexdigest()[:DIGITS]  # it may be a secret
    for name, value in request.get("HyperParameters", {}).items():
        if name.startswith("sagemaker_") and name not in JOBS_OWN:
            yield name.removeprefix("sagemaker_").replace("_", " "), value
    for name, value in named.items():
        yield f"hyperparameter {name}", value
    for channel in request.get("InputDataConfig", ()):
        if channel["ChannelName"] != CHANNEL:
            yield f"channel {channel['ChannelName']}", _format(_without_place(channel))


def _without_place(channel: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the channel is read, without the S3 folder, whose content is an input."""
    sources = {
        kind: {key: value for key, value in source.items() if key != "S3Uri"}
        for kind, source in channel["DataSource"].items()
    }
    return {**channel, "DataSource": sources}


def _format(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if value else ""


def find_code_digest(request: Mapping[str, Any]) -> str:
    """Return the digest of the packed code from the request's address of it."""
    uri = str(json.loads(request["HyperParameters"]["sagemaker_submit_directory"]))
    return uri.split("/")[-2]


def explain_changes(before: TaskFacts, now: TaskFacts) -> str:
    """Return what differs, for people; empty if nothing does."""
    return redact_patterns("; ".join(_list_changes(before, now)))


def _list_changes(before: TaskFacts, now: TaskFacts) -> Iterator[str]:
    if before.arguments != now.arguments:
        yield f"arguments changed: {explain_arguments(before.arguments, now.arguments)}"
    files = sorted(
        name for name in before.files.keys() | now.files.keys() if before.files.get(name) != now.files.get(name)
    )
    if files:
        more = f" and {len(files) - FILES_NAMED} more" if len(files) > FILES_NAMED else ""
        yield f"code changed: {', '.join(files[:FILES_NAMED])}{more}"
    elif before.code != now.code and before.arguments == now.arguments:
        yield "code changed"
    for name in sorted(before.options.keys() | now.options.keys()):
        if before.options.get(name) != now.options.get(name):
            values = f": {before.options.get(name, 'none')} -> {now.options.get(name, 'none')}"
            yield f"{name} changed{'' if name.startswith(ENVIRONMENT) else values}"
    for channel in sorted(before.inputs.keys() | now.inputs.keys()):
        if before.inputs.get(channel) != now.inputs.get(channel):
            yield _explain_input(channel, before.inputs.get(channel, ""), now.inputs.get(channel, ""))
    if now.repetition > before.repetition:
        yield "asked for again"


def _explain_input(channel: str, before: str, now: str) -> str:
    if not before or not now:
        return f"input {channel} is {'new' if now else 'gone'}"
    if before.startswith("run ") and now.startswith("run "):
        return f"input {channel} changed: another {now.split()[2]} ({now.split()[1]})"
    return f"input {channel} changed"


def explain_arguments(before: Sequence[str], now: Sequence[str]) -> str:
    """Return the arguments that differ, such as `--lr 0.1 -> 0.2`."""
    first, second = _as_options(before), _as_options(now)
    if first is not None and second is not None:
        names = [*second, *(name for name in first if name not in second)]
        differing = [name for name in names if first.get(name) != second.get(name)]
        if differing:
            return ", ".join(_explain_option(name, first.get(name), second.get(name)) for name in differing)
    return f"{shlex.join(before) or 'none'} -> {shlex.join(now) or 'none'}"


def _explain_option(name: str, before: str | None, now: str | None) -> str:
    if before is None:
        return f"{name} {now}".strip() + " is new"
    if now is None:
        return f"{name} {before}".strip() + " is gone"
    return f"{name} {before} -> {now}"


def _as_options(words: Sequence[str]) -> dict[str, str] | None:
    """Return `--key value`, `--key=value` and flags by key; None for words that are not of this kind, or repeat."""
    found: dict[str, str] = {}
    key = ""
    for word in words:
        if word.startswith("--"):
            key, _, value = word.partition("=")
            if key in found:
                return None
            found[key] = value
        elif key and not found[key]:
            found[key] = word
        else:
            return None
    return found
