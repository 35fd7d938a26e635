"""The fuzzer's own part: what is shared out, what is told of a defect, and what a full run shows."""

import io
import json
from random import Random

import pytest

from bench import fuzz
from bench.fuzz import Outcome, evidence, main, shares
from bench.hostile import inside
from bench.hostile.changes import json_changed, text_changed, toml_changed
from bench.hostile.inside import Session
from bench.hostile.targets import TARGETS

TARGET = TARGETS["report"]


def told(session: Session, out: io.StringIO, *inputs: bytes) -> list[dict]:
    for each in inputs:
        session.one(each)
    session.say()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_defect_is_told_once_for_each_place_and_its_input_kept(tmp_path):
    """Two errors of one kind in one place are one defect; the fuzzer goes on."""

    def read(data: bytes) -> None:
        if data == b"bad":
            raise ZeroDivisionError("no \ud800 way")
        if data == b"worse":
            raise KeyError("x")

    out = io.StringIO()
    lines = told(Session(TARGET, read, out, tmp_path), out, b"bad", b"good", b"bad", b"worse")
    defects = [line["defect"] for line in lines if "defect" in line]
    assert [defect.split(" in ")[0] for defect in defects] == ["ZeroDivisionError", "KeyError"]
    assert lines[-1]["inputs"] == 4
    assert (tmp_path / "defect-1").read_bytes() == b"bad"


def test_what_takes_too_long_is_a_defect(tmp_path, monkeypatch):
    """By the processor's clock: a busy machine is no slow parser."""
    clock = iter((0.0, 5.0))
    monkeypatch.setattr(inside.time, "thread_time", lambda: next(clock))
    out = io.StringIO()
    lines = told(Session(TARGET, lambda data: None, out, tmp_path), out, b"x")
    assert lines[0]["defect"] == "it takes 5.0 s of the processor"
    assert lines[-1]["slowest_ms"] == 5000


def test_every_target_gets_its_share():
    """In proportion, and none nothing; all together no fewer than were asked for."""
    found = shares(list(TARGETS.values()), 200_000)
    assert sum(inputs for _, inputs in found) >= 200_000
    assert min(inputs for _, inputs in found) >= 100


def test_the_evidence_names_each_defect():
    """A run with a defect does not hold."""
    good, bad = Outcome(TARGET, inputs=600_000), Outcome(TARGETS["policy"], inputs=500_000, defects=["KeyError in x"])
    shown = evidence([good, bad])
    assert [failure.what for failure in shown.failures] == ["policy: KeyError in x"]
    assert [goal.met for goal in shown.goals] == [True, False]
    assert evidence([good]).holds


@pytest.mark.parametrize(("words", "said"), [(["--inputs", "0"], "at least 1"), (["--target", "nothing"], "invalid")])
def test_a_wrong_option_is_one_error(words, said, capsys):
    """Status 2."""
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert said in capsys.readouterr().err


def test_without_atheris_the_remedy_is_named(monkeypatch, capsys):
    """It is built for Linux on x86 alone."""
    monkeypatch.setattr(fuzz, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "pip install -e '.[fuzz]'" in capsys.readouterr().err


@pytest.mark.parametrize("change", [json_changed, toml_changed, text_changed])
def test_a_change_is_a_function_of_its_seed_and_takes_whatever_it_is_given(change):
    """What found a defect can be made again; what is no JSON and no TOML is no reason to stop."""
    for data in (b"", b"\xff\xfe", b"{", b"[1, [2, {}]]", b'{"a": {"b": [1, "x"]}}', b'a = 1\n[b]\nc = ["x"]\n'):
        for seed in range(150):
            assert change(data, Random(seed)) == change(data, Random(seed))
