"""A script's arguments arrive as they were given, whatever they are."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.submit.arguments import ENTRY, RESERVED, encode, make_command_line, parse_arguments, with_arguments
from cli.submit.packing import Source
from cli.submit.problem import Problem
from cli.submit.script_mode import decode, make_arguments

BASE = Path("/nowhere")
SCRIPT = Source("train.py", {"train.py": (b"import sys, json; print(json.dumps(sys.argv[1:]))", False)})
WORDS = st.one_of(
    st.sampled_from(["--lr", "-b", "--flag", "--x=1", "--k=--v", "--", "-", "=", "true", "007", "1e-3", "-0.5", ""]),
    st.text("abc-=0\"' é\\", max_size=6),
)


def toolkit(hyperparameters: dict[str, str]) -> list[str]:
    """The words that AWS's toolkit makes of hyperparameters."""
    theirs = {name: decode(value) for name, value in hyperparameters.items() if not name.startswith(RESERVED)}
    return make_arguments(theirs, BASE)


@given(st.lists(WORDS, max_size=6))
def test_pairs_come_back_as_they_were_given(arguments):
    """Where arguments become hyperparameters, the toolkit gives the same words back in the same order."""
    pairs = parse_arguments(arguments)
    assert pairs is None or toolkit({name: encode(value) for name, value in pairs.items()}) == arguments


REFUSED = (
    *("--lr 1 --epochs 3", "--lr=1", "--lr=1 2", "--nesterov", "--lr 1 --verbose", "data.csv --lr 1", "--x 1", "-lr 1"),
    *("--size 1 --size 2", "--sizes 1 2", "--args=--inner", "--sagemaker_program x"),
)


@pytest.mark.parametrize(
    ("arguments", "pairs"),
    [
        ([], {}),
        (["-b", "64", "--epochs", "3", "--lr", "1e-3"], {"b": "64", "epochs": "3", "lr": "1e-3"}),
        (["--shift", "-0.5"], {"shift": "-0.5"}),
        (["--name", ""], {"name": ""}),
        *((line.split(), None) for line in REFUSED),
    ],
)
def test_arguments_that_the_toolkit_cannot_pass_are_refused(arguments, pairs):
    """It knows `--key value` and `-k value`, each key once."""
    assert parse_arguments(arguments) == pairs


@pytest.mark.parametrize(
    ("value", "json_text"),
    [("3", "3"), ("0.5", "0.5"), ("007", '"007"'), ("1e-3", '"1e-3"'), ("true", '"true"'), ("null", '"null"')]
    + [("adam", '"adam"'), ('{"a": 1}', '"{\\"a\\": 1}"'), ("", '""'), ("Infinity", '"Infinity"')],
)
def test_values_keep_their_text(value, json_text):
    """Numbers are numbers for SageMaker's console and tuner; what JSON would change stays text."""
    assert encode(value) == json_text
    assert str(json.loads(json_text)) == value


@pytest.mark.slow
def test_flags_and_positional_arguments_go_in_a_script_of_ours(tmp_path):
    """It is packed beside the script, and the script gets exactly the words, and those given by name."""
    arguments = ["data.csv", "--nesterov", "--z=1", "--text", 'it\'s "so" é', "--size", "1", "--size", "2"]
    source, hyperparameters = with_arguments(SCRIPT, arguments, {"epochs": "3"})
    assert source.entry == ENTRY and source.files["train.py"] == SCRIPT.files["train.py"]
    assert source.digest != SCRIPT.digest
    for name, (content, _) in source.files.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, source.entry, *toolkit(hyperparameters)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=True)
    assert json.loads(ran.stdout) == [*arguments, "--epochs", "3"]
    assert shlex.split(make_command_line("train.py", arguments, {"epochs": "3"})) == [
        "train.py",
        *json.loads(ran.stdout),
    ]


def test_pairs_leave_the_code_alone():
    source, hyperparameters = with_arguments(SCRIPT, ["--epochs", "3"], {"lr": "0.1"})
    assert source == SCRIPT
    assert hyperparameters == {"epochs": "3", "lr": "0.1"}
    assert make_command_line("train.py", ["--epochs", "3"], {"b": "1"}) == "train.py -b 1 --epochs 3"


@pytest.mark.parametrize(
    ("arguments", "given", "words"),
    [
        (["--lr", "1"], {"lr": "2"}, "lr is among the script's arguments too"),
        ([], {"sagemaker_program": "x"}, "belong to SageMaker's toolkit"),
    ],
)
def test_a_name_that_cannot_be_given_is_refused(arguments, given, words):
    with pytest.raises(Problem, match=words):
        with_arguments(SCRIPT, arguments, given)
