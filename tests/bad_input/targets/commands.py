"""The command line: any words and files, on a place where nothing is, or AWS refuses, or one run is known.

What reads, asks or writes a request is called for real; what deploys, serves or goes on until Ctrl-C is only parsed."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from typer.main import get_command

from cli import place
from cli.main import app
from cli.place import Outputs, Place
from rerail.model.codec import dumps
from tests.bad_input.targets import answers
from tests.bad_input.targets.parsers import check
from tests.fakes import World

MOST_WORDS, LONGEST_WORD = 20, 3_000
OUTPUTS = {
    "TableName": "Runs",
    "BusName": "rerail",
    "SignalsQueueUrl": "https://sqs.eu-west-1.amazonaws.com/1/signals",
    "MailboxBucket": "mailbox",
    "PolicyPrefix": "/rerail/policies",
    "PauseParameter": "/rerail/switch",
}
CALLED = (
    *("diagnose", "metrics", "backtest", "status", "show", "checkpoints", "report", "hold", "release", "stop"),
    *("restart", "rollback", "save", "approve", "deny", "pause", "resume", "policy", "logs", "submit"),
)
# They open something, go on for ever, or ask another process: left out of what is called.
NEVER = ("--watch", "-w", "--follow", "-f", "--download", "--open", "--local", "--all")
DENIED = b'{"__type": "AccessDeniedException", "message": "User: me is not authorized to perform: x:Y"}'


def line(data: bytes) -> None:
    """`words` of a command line, and `files` that it may name; the status is 0, 1 or 2, and 2 comes with a remedy."""
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        return
    table = table if isinstance(table, dict) else {"words": table}
    given = table.get("words")
    words = [_word(item) for item in (given if isinstance(given, list) else [given])][:MOST_WORDS]
    files = table.get("files")
    for name, content in (files if isinstance(files, dict) else {}).items():
        if name in FILES:
            text = content if isinstance(content, str) else json.dumps(content)
            (_folder() / name).write_bytes(text.encode(errors="replace"))
    if words and words[0] in CALLED:
        _called([words[0], *(word for word in words[1:] if word.split("=")[0] not in NEVER)])
    else:
        _parsed(words)


def _called(words: list[str]) -> None:
    _ready()
    if words[0] == "submit":
        words = [words[0], "--dry-run", *words[1:]]
    status, said = _run(words)
    assert "Traceback (most recent call last)" not in said
    if status == 2 and "Usage:" not in said and "Error: " not in said:
        problem, _, remedy = said.rpartition("error: ")[2].partition("to do: ")
        check(" ".join(problem.split()))
        assert remedy.strip(), f"an error without a remedy: {said[:300]!r}"


def _parsed(words: list[str]) -> None:
    """Only as far as Typer reads them: `--help` at the end keeps the command from being carried out."""
    _run([*words[:1], *(word for word in words[1:] if word != "--"), "--help"])


def _run(words: list[str]) -> tuple[int, str]:
    """The exit status and all that was printed; Typer's own runner makes the whole command anew for each call."""
    said, status = StringIO(), 0
    with redirect_stdout(said), redirect_stderr(said):
        try:
            _command().main(args=words, prog_name="rerail")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    assert status in (0, 1, 2), f"status {status}"
    return status, said.getvalue()


@cache
def _command() -> Any:
    os.environ |= {"COLUMNS": "200", "TERM": "dumb"}
    sys.stdin = StringIO("")
    return get_command(app)


def _word(value: Any) -> str:
    """As a shell would hand it over: no byte 0, no half of a character."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:LONGEST_WORD].replace("\0", "").encode(errors="replace").decode()


FILES = ("log.csv", "trainer_state.json", "night.toml", "request.json", "failures.jsonl", "train.py", "rerail.toml")


@cache
def _folder() -> Path:
    """The working folder, deep enough that a path upwards leads nowhere."""
    folder = Path(tempfile.mkdtemp(prefix="rerail-fuzz-")) / "a" / "b" / "c" / "d"
    (folder / ".git").mkdir(parents=True)
    return folder


@cache
def _ready() -> None:
    answers.ready()
    os.chdir(_folder())
    os.environ["HOME"] = str(_folder())
    world = World().with_saves()
    row = {"pk": {"S": "run#gpt"}, "sk": {"S": "run"}, "doc": {"S": dumps(world.run("gpt"))}}
    here = Place("stack Rerail in eu-west-1", Outputs(OUTPUTS))
    place.find = lambda *, local: here
    taken = {"FailedEntryCount": 0, "Entries": [{"EventId": "e1"}]}
    responses = {"GetItem": {"Item": row}, "Query": {"Items": []}, "Scan": {"Items": [row]}, "PutEvents": taken}
    answers.WIRE.status = 200
    answers.WIRE.responses = {name: json.dumps(body).encode() for name, body in responses.items()}
    answers.WIRE.otherwise = (403, DENIED)


def samples() -> Iterator[dict[str, Any]]:
    """Command lines as people write them, with the files that they name."""
    yield from ({"words": words.split()} for words in LINES)
    for words, name, content in NAMING:
        yield {"words": words.split(), "files": {name: content}}


LINES = (
    "show gpt --json",
    "hold gpt --why maintenance",
    "rollback gpt --to 300 --why spike",
    "approve gpt --proposal p1",
    "pause --json",
    "status --policy default --state watching --json",
    "checkpoints gpt --verify",
    "logs gpt --attempt 1 --since 30m --grep loss",
    "report gpt --out page.html",
    "drill gpt --steps 10 --tolerance 0.1 --patience 90m --yes",
    "policy show default",
    "metrics --format sdk",
    "deploy --plan -c chat=true",
    "simulate --gpus 64 --days 1 --seeds 1 --assume step_s=2",
    "submit train.py --role arn:aws:iam::111122223333:role/T --bucket b --image i --instance-type ml.m5.xlarge --spot",
    "submit train.py --env A=b --settings c.toml --metric loss=x --max-runtime 12h -- --lr 1e-3",
    "--version",
)
NAMING = (
    ("backtest log.csv --json --policy night.toml", "log.csv", "step,loss\n1,2.5\n2,2.4\n"),
    ("backtest trainer_state.json --json", "trainer_state.json", {"log_history": [{"step": 1, "loss": 2.5}]}),
    ("policy check night.toml --json", "night.toml", 'mode = "act"\n[limits]\nattempts = 3\n'),
    ("doctor --request request.json --json", "request.json", {"RoleArn": "r", "ResourceConfig": {"InstanceCount": 1}}),
    ("diagnose --file failures.jsonl", "failures.jsonl", '{"id": 1, "text": "CUDA out of memory", "class": "oom"}\n'),
    ("submit . --entry train.py", "train.py", "print('rerail step=1 loss=2')\n"),
    ("submit train.py", "rerail.toml", '[submit]\nrole = "T"\ncount = 2\n'),
)
