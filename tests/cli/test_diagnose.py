"""`rerail diagnose`: words for people, lines for programs, one clear error for bad input."""

import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from cli.diagnose import diagnose
from tests.core.test_flight_recorder import BEFORE, WAITING

OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"


def run(*args: str, stdin: str | None = None) -> Result:
    app = typer.Typer()
    app.command()(diagnose)
    return CliRunner().invoke(app, list(args), input=stdin, env={"COLUMNS": "160", "NO_COLOR": "1"})


@pytest.fixture
def failures(tmp_path: Path) -> Path:
    rows = [
        {"id": "a", "text": OOM, "class": "oom", "confidence": "clear"},
        {"id": "b", "text": "Connection reset by peer", "class": "infra_retryable", "confidence": "clear"},
        {"id": "c", "text": "KeyError: [bold]", "class": "data", "confidence": "clear"},
        {"id": "d", "text": "who knows", "class": "hang_timeout", "confidence": "ambiguous"},
    ]
    path = tmp_path / "failures.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


def test_a_folder_of_flight_recorder_dumps_names_who_is_waited_for(tmp_path: Path) -> None:
    """Whatever else the agent wrote there; what is no dump is named, and so is a folder without any."""
    result = run(str(tmp_path))
    assert result.exit_code == 2 and "holds no dump of torch's flight recorder" in result.stderr
    for rank, content in enumerate((WAITING, WAITING, BEFORE, WAITING)):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(content)
    (tmp_path / "rerail-stacks-rank1.txt").write_text("rerail: no step for 300 s")
    found = json.loads(run(str(tmp_path), "--json").stdout)
    assert (found["cause"], found["rank"], found["ranks"]) == ("hang", 2, [2])
    assert "rank 2: it has not entered nccl:all_reduce 7" in run(str(tmp_path)).stdout
    (tmp_path / "dump_9").write_text("?")
    assert "dump_9" in run(str(tmp_path)).stderr
    os.mkfifo(tmp_path / "dump_8")  # or a device: what they have may never end
    assert "dump_8: it is not a regular file" in run(str(tmp_path)).stderr


def test_a_text_is_explained() -> None:
    """Cause, prospect of a relaunch and evidence, readable at night."""
    result = run(OOM)
    assert result.exit_code == 0
    assert "memory ran out" in result.stdout
    assert "will not help: first take a smaller batch, or a larger machine" in result.stdout
    assert "CUDA out of memory" in result.stdout
    assert "unknown: the text says how it ended, and not why" in run("Killed").stdout


def test_a_policy_names_the_cause_of_a_text(tmp_path: Path) -> None:
    policy = tmp_path / "team.toml"
    policy.write_text('[causes]\n"exit code: 42" = "infrastructure"\n')
    result = run("AlgorithmError: , exit code: 42", "--policy", str(policy))
    assert "the machines or services around the job failed" in result.stdout and "Rule      policy" in result.stdout
    policy.write_text('[causes]\n"exit code: 42" = "magic"\n')
    assert "it must be one of infrastructure" in run("x", "--policy", str(policy)).output
    policy.write_bytes(b"\xef\xbb\xbf[causes]\r\n")
    assert run("x", "--policy", str(policy)).exit_code == 0


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "too large", "no name"])
def test_a_pipe_a_device_or_a_huge_file_is_refused_as_a_policy(tmp_path: Path, kind: str) -> None:
    policy = tmp_path / "team.toml"
    match kind:
        case "pipe":
            os.mkfifo(policy)
        case "device":
            policy.symlink_to("/dev/zero")
        case "folder":
            policy.mkdir()
        case "too large":
            policy.write_text("#" * 2_000_000)
    result = run("x", "--policy", "" if kind == "no name" else str(policy))
    assert result.exit_code == 2
    assert "can be read" in result.output and "or a TOML file" in result.output


def test_a_dash_reads_stdin() -> None:
    """As one text, or with --file as lines."""
    assert json.loads(run("-", "--json", stdin=OOM).stdout)["cause"] == "oom"
    line = json.dumps({"id": "z", "text": OOM})
    assert json.loads(run("--file", "-", "--json", stdin=line).stdout)["id"] == "z"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_path_of_a_file_is_read_as_a_log(tmp_path: Path, encoding: str) -> None:
    """The cause is that of its last error; what is no file is a text."""
    log = tmp_path / "train.log"
    log.write_text(
        "step 1 loss 2.3\n" * 20 + 'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: 1\n', encoding
    )
    assert json.loads(run(str(log), "--json").stdout)["evidence"] == "KeyError: 1"
    assert json.loads(run(str(tmp_path / "none"), "--json").stdout)["cause"] == "unknown"
    assert "there is nothing to diagnose" in run("").output


def test_a_full_disk_is_answered_with_what_to_change() -> None:
    """The next job has a disk of the same size."""
    result = run("OSError: [Errno 28] No space left on device: '/opt/ml/checkpoints/step-40/model.pt'")
    advice = "will not help: first keep fewer checkpoints and temporary files, or take a larger one with --volume"
    assert advice in " ".join(result.stdout.split())


def test_a_file_becomes_one_json_line_each(failures: Path) -> None:
    """Ids are kept, order is kept, nothing else is printed."""
    lines = [json.loads(line) for line in run("--file", str(failures), "--json").stdout.splitlines()]
    assert [line["id"] for line in lines] == ["a", "b", "c", "d"]
    assert [line["cause"] for line in lines] == ["oom", "infrastructure", "user_code", "unknown"]
    assert all(set(line) == {"id", "cause", "retry", "evidence", "rank", "ranks"} for line in lines)


def test_the_rank_and_the_step_of_a_failure_are_named() -> None:
    text = "[rank3]: KeyError: 'labels' at iteration 670314"
    assert ", step 670314, rank 3" in run(text).stdout
    assert json.loads(run(text, "--json").stdout)["rank"] == 3
    assert json.loads(run(OOM, "--json").stdout)["rank"] is None


def test_a_labelled_file_ends_with_its_accuracy(failures: Path) -> None:
    """By class, over the rows whose label is clear."""
    out = run("--file", str(failures)).stdout
    assert "KeyError: [bold]" in out
    assert "66.7%" in out
    assert "user_code 1" in out
    assert "hang" not in out


def test_an_unlabelled_file_has_no_accuracy(tmp_path: Path) -> None:
    """Without labels there is nothing to be right about."""
    path = tmp_path / "plain.jsonl"
    path.write_text(json.dumps({"text": OOM}))
    result = run("--file", str(path))
    assert result.exit_code == 0
    assert "Accuracy" not in result.stdout


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('{"text": "x"}\n{broken', "line 2"),
        ('\n["text"]', "line 2"),
        ('{"id": "a"}', "line 1"),
        ('{"text": 3}', "line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, line: str) -> None:
    """One error on stderr with the line's number and the remedy, status 2, and no half answer on stdout."""
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    result = run("--file", str(path), "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert line in result.stderr
    assert "write" in result.stderr
    assert len(result.stderr.splitlines()) == 2


def test_unusable_input_is_refused(tmp_path: Path, failures: Path) -> None:
    """Nothing given, both given, no such file, a folder or a device: status 2 and what to give instead."""
    unreadable = (("--file", str(tmp_path / "none")), ("--file", str(tmp_path)), ("--file", "/dev/zero"))
    for args in ((), (OOM, "--file", str(failures)), *unreadable, ("a/lost.log",)):
        result = run(*args)
        assert result.exit_code == 2
        assert "give" in result.stderr
