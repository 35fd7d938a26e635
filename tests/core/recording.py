"""Records what this version stores, for later ones to be tested against (see test_upgrade.py): a plugin for pytest.

    python -m pytest -p tests.core.recording tests/core --record NAME

The fakes are given what the tables would be given; of all that, the records are kept that differ most.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rerail.messages.messages import parse_message
from rerail.model.codec import dumps
from rerail.model.mailbox import Command, make_command_key, serialize
from rerail.model.policy import parse_policy, to_toml
from tests import fakes

TESTS = Path(__file__).parents[1]
RECORDS = Path(__file__).parent / "data" / "records"
MOST = {"runs": 45, "entries": 45, "memories": 3, "launches": 2, "mail": 14}
# What a record is chosen for must outweigh its length.
OVERHEAD = 300

seen: dict[str, dict[str, None]] = {kind: {} for kind in MOST}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", default="", help="the folder of tests/core/data/records to write")


def pytest_configure(config: pytest.Config) -> None:
    _after(fakes.FakeRuns, "save", _saved)
    _after(fakes.FakeMemories, "keep", lambda fake, memories: _note("memories", *map(dumps, memories)))
    _after(fakes.FakeRateLimit, "admit", lambda fake, *_, **__: _note("launches", fake.record))
    _after(fakes.FakeMailbox, "post", lambda fake, command, *_: _command(command))


def _after(cls: type, name: str, then: Callable[..., None]) -> None:
    real = getattr(cls, name)

    def noted(self: Any, *given: Any, **named: Any) -> Any:
        answer = real(self, *given, **named)
        then(self, *given, **named)
        return answer

    setattr(cls, name, noted)


def _saved(fake: Any, run: Any, entry: Any = None, request: Any = None) -> None:
    _note("runs", dumps(run))
    if entry:
        _note("entries", dumps(entry))


def _command(command: Command) -> None:
    _mail(make_command_key(command.run), serialize(command))


def _mail(key: str, text: bytes) -> None:
    _note("mail", json.dumps({"key": key, "text": text.decode()}))


def _note(kind: str, *texts: str) -> None:
    seen[kind] |= dict.fromkeys(texts)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not (name := config.getoption("--record")):
        return
    folder = RECORDS / name
    folder.mkdir(parents=True)  # a folder that is there is never changed
    for kind, texts in seen.items():
        _write(folder / f"{kind}.jsonl", sorted(chosen(list(texts), MOST[kind])))
    policies = sorted((TESTS.parent / "policies").glob("*.toml"))
    rows = [{"name": file.stem, "text": to_toml(parse_policy(file.read_text(), name=file.stem))} for file in policies]
    _write(folder / "policies.jsonl", map(json.dumps, rows))
    _write(folder / "messages.jsonl", map(json.dumps, _messages()))


def _messages() -> Iterator[dict[str, str]]:
    for file in sorted((TESTS / "events").glob("*.json")):
        text = json.dumps(json.loads(file.read_text()))
        if not file.stem.startswith(("other", "notice", "schedule", "sqs")):
            yield {"name": file.stem, "text": text, "reads_as": type(parse_message(text)).__name__}


def _write(file: Path, lines: Any) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def chosen(texts: list[str], most: int) -> Iterator[str]:
    """At most so many, each the one that shows most of what the ones before do not."""
    left = [(set(_features(json.loads(text))), text) for text in texts]
    covered: set[tuple[str, Any]] = set()
    for _ in range(most):
        if not left:
            return
        features, text = max(left, key=lambda item: len(item[0] - covered) / (OVERHEAD + len(item[1])))
        if not features - covered:
            return
        covered |= features
        yield text


def _features(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Where there is something, and of what kind: fields, short words, how long a list is."""
    match value:
        case dict():
            yield path, value.get("type")
            for name, part in value.items():
                yield from _features(part, f"{path}.{name}")
        case list():
            yield path, min(len(value), 2)
            for part in value:
                yield from _features(part, f"{path}[]")
        case str() if len(value) < 16 and value.isidentifier():
            yield path, value
        case bool() | None:
            yield path, value
        case _:
            yield path, type(value).__name__
