"""Whatever comes from outside, each parser answers, or says what is wrong in one line; the long run has a million."""

import sys
from collections.abc import Iterator

import pytest

from cli import place
from rerail.aws import clients
from tests.aws.places import our_own_clients
from tests.bad_input.changed import inputs
from tests.bad_input.targets import answers, commands
from tests.bad_input.targets.catalogue import AGENTS, COMMANDS, FILES, LOOP, PARSERS, TARGETS

# Those that read little are asked more often.
SLOW = {"failure reason": 4, "last words of a script": 3, "request for the doctor": 15, "corpus of logs": 30}
HEAVY = {"TensorBoard events": 5, "policy's file": 40, "record of a run": 60, "trainer_state.json": 40}
COUNTS = {**SLOW, **HEAVY}


@pytest.mark.parametrize("target", [*PARSERS, *AGENTS, *FILES], ids=lambda target: target.name)
def test_no_input_is_too_bad(target):
    """A value, or one of our errors whose message is one short line that can be shown."""
    read = target.load()
    for data in inputs(target, COUNTS.get(target.name, 100)):
        read(data)


@pytest.mark.parametrize("target", LOOP, ids=lambda target: target.name)
def test_hostile_messages_never_stop_a_healthy_job(target):
    """The function `supervise` on hostile batches: the job trains on, each message that goes back has its line in the
    log, and the good message behind the bad ones is handled."""
    read = target.load()
    for data in inputs(target, 75):
        read(data)


@pytest.fixture
def apart(monkeypatch, tmp_path) -> Iterator[None]:
    """What a command line may change of this process is as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("HOME", str(tmp_path)), ("COLUMNS", "80"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(place, "find", place.find)
    monkeypatch.setattr(sys, "stdin", sys.stdin)
    monkeypatch.setattr(clients, "CONFIG", clients.CONFIG)
    monkeypatch.setattr(answers.WIRE, "otherwise", answers.WIRE.otherwise)
    made_once = (answers.ready, commands._ready, commands._command)
    for value in made_once:
        value.cache_clear()
    with our_own_clients():
        yield
    for value in made_once:
        value.cache_clear()


@pytest.mark.parametrize("target", COMMANDS, ids=lambda target: target.name)
def test_no_command_line_ends_in_a_traceback(target, apart):
    """An answer, or one clear error with its remedy, and status 2."""
    read = target.load()
    for data in inputs(target, 60):
        read(data)


def test_every_target_is_of_some_family():
    """None is left out of a full run, and all of it together is the million that is promised."""
    assert sum(target.inputs for target in TARGETS.values()) >= 1_000_000
    assert len({target.name for target in TARGETS.values()}) == len(TARGETS)
