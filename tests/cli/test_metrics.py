"""`rerail metrics`: what is printed can be pasted and run."""

import json
import re
import shlex
import sys
from types import ModuleType, SimpleNamespace

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from cli.main import app
from cli.metrics import LINE, PURPOSE, metrics
from cli.training_logs.proposal import propose
from rerail.model.metrics import make_definitions


def invoke(*args: str) -> Result:
    app = typer.Typer()
    app.command()(metrics)
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "80", "NO_COLOR": "1"})


def shown(*args: str) -> str:
    result = invoke(*args)
    assert result.exit_code == 0
    return result.stdout


def run(text: str) -> list:
    names: dict = {}
    exec(text, names)
    return names["metric_definitions"]


def test_the_definitions_for_boto3_are_python():
    assert run(shown()) == make_definitions()
    assert shown() == shown("--format", "boto3")


def test_the_definitions_for_the_sdk_are_python_for_both_of_its_versions(monkeypatch):
    """A list of dicts for an Estimator, a list of MetricDefinition for a ModelTrainer."""
    configs = ModuleType("sagemaker.core.training.configs")
    configs.MetricDefinition = SimpleNamespace  # type: ignore[attr-defined]
    for name in ("sagemaker", "sagemaker.core", "sagemaker.core.training"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, configs.__name__, configs)
    second, third = shown("--format", "sdk").split("\n\n", 1)
    assert run(second) == make_definitions()
    assert [{"Name": each.name, "Regex": each.regex} for each in run(third)] == make_definitions()


def test_each_metric_has_a_line_on_what_it_is_for():
    """So that nobody has to guess which one to leave out."""
    for format in ("boto3", "sdk"):
        lines = [line.strip() for line in shown("--format", format).splitlines()]
        assert all(f"# {d['Name']}: {PURPOSE[d['Name']]}" in lines for d in make_definitions())


def test_json_is_what_the_api_takes():
    assert json.loads(shown("--format", "json")) == make_definitions()


def test_the_line_that_is_shown_is_one_that_is_read():
    """The example and the expressions belong together."""
    assert all(re.search(d["Regex"], LINE) for d in make_definitions())


def test_a_log_s_own_lines_get_definitions(tmp_path):
    """What each reads is said beside them, and what is odd."""
    log = tmp_path / "train.log"
    rows = [f"iter {step}: loss {2 - step / 100:.4f}, time 12.11ms, mfu 1.21%\n" for step in range(0, 100, 10)]
    log.write_text("step 0: train loss 4.2, val loss 4.1\n" + "".join(rows) + "iter 100: loss nan, time 12.11ms\n")
    result = invoke("--log", str(log))
    named = {definition["Name"]: definition["Regex"] for definition in run(result.stdout)}
    assert re.findall(named["loss"], rows[3]) == ["1.7000"] and re.findall(named["step"], rows[3]) == ["30"]
    assert not re.findall(named["loss"], "step 0: train loss 4.2, val loss 4.1")
    assert "lines of nanoGPT" in result.stderr and "loss: 10 values, 2 first, 1.1 last" in result.stderr
    assert "that are nan or inf: 1;" in result.stderr


def test_the_definitions_for_submit_are_arguments_of_a_shell(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(f"{{'loss': '{n}.5', 'step': {n}}}\n" for n in range(9)))
    words = shlex.split(shown("--log", str(log), "--format", "submit").replace("\\\n", ""))
    named = dict(word.split("=", 1) for word in words if word != "--metric")
    assert re.findall(named["loss"], log.read_text().splitlines()[3]) == ["3.5"]


def test_a_log_of_one_epoch_leaves_open_whether_its_steps_begin_again(tmp_path):
    log = tmp_path / "train.log"
    for epochs in (1, 2):
        log.write_text("".join(f"Epoch {n % epochs} | Iter {n // 2} | Loss {n}.5\n" for n in range(20)))
        assert any("the log has one epoch" in line for line in propose(log).report) is (epochs == 1)


def test_an_epoch_that_is_printed_several_times_is_named_as_one(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(f"| epoch {n // 4} | loss {n}.5\n" for n in range(20)))
    assert (
        "an epoch is printed 4 times, as by several ranks; if one rank prints them, name no step"
        in propose(log).report[-1]
    )


def test_the_folder_of_saved_logs_is_read(tmp_path):
    """The log of the machine that has printed most, without the times that were put first."""
    (tmp_path / "gpt").mkdir()
    lines = "".join(f"2026-01-31T12:00:{second:02}+00:00 it {second} train_loss 2.5\n" for second in range(20))
    (tmp_path / "gpt" / "algo-1.log").write_text(lines)
    (tmp_path / "gpt" / "algo-2.log").write_text("- worker is ready\n")
    for folder in (tmp_path, tmp_path / "gpt"):
        definitions = json.loads(shown("--log", str(folder), "--json"))
        assert re.search({item["Name"]: item["Regex"] for item in definitions}["loss"], "it 3 train_loss 2.5")


@pytest.mark.parametrize("words", [("rollback", "gpt", "--to", "abc"), ("rollback", "gpt", "--bogus"), ("bogus",)])
def test_words_that_a_command_does_not_take_are_one_clear_error(words):
    result = CliRunner().invoke(app, [*words])
    assert result.exit_code == 2 and result.stderr.startswith("error: ") and "\nto do: `rerail" in result.stderr
    assert words[-2 if words[-1] == "abc" else -1] in result.stderr


def test_a_log_without_a_loss_is_refused(tmp_path):
    (tmp_path / "train.log").write_text("hello\n")
    result = invoke("--log", str(tmp_path / "train.log"))
    assert result.exit_code == 2 and "has a loss with its name" in result.stderr
