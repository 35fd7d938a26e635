"""`rerail policy`: what is wrong in a file is named, what is odd is told, and the deployed ones are compared."""

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from cli import place
from cli.main import app
from cli.names import list_policy_names
from cli.policies.check import check_file
from cli.policies.deployed import compare_policies
from cli.policies.odd import QUESTIONS, find_oddities
from cli.policies.words import list_rows, write_duration
from cli.project import find_policies
from rerail.model.policy import Policy, parse_policy, to_toml
from tests.cli.cloud import Cloud, Deployed


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["policy", *words], env={"COLUMNS": "200"})


def written(folder: Path, text: str, name: str = "mine") -> Path:
    file = folder / f"{name}.toml"
    file.write_text(text)
    return file


def test_the_policies_of_this_project_are_sound_and_not_odd():
    answer = call("check", *map(str, sorted(find_policies().glob("*.toml"))))
    assert answer.exit_code == 0
    assert "odd" not in answer.stdout
    assert answer.stdout.count(": ok") == len(list_policy_names())


def test_every_error_of_a_file_is_reported_at_once(tmp_path):
    """Not the first alone: who mends a file mends all of it."""
    text = 'mode = "acct"\nfoo = 1\n[limits]\nattempts = "x"\nattemps = 3\n[retries]\nwindow = "soon"\noom = 0\n'
    answer = call("check", str(written(tmp_path, text)), "--json")
    assert answer.exit_code == 1
    (found,) = json.loads(answer.stdout)["files"]
    assert found["problems"] == [
        "field 'mode' is 'acct'; it must be one of act, approve, observe, pause",
        next(line for line in found["problems"] if line.startswith("unknown field 'foo'; the fields here are")),
        "field 'limits.attempts' is 'x'; it must be a whole number from 0 to 1,000,000",
        "unknown field 'limits.attemps'; did you mean 'attempts'?",
        'field \'retries.window\' is \'soon\'; it must be a duration such as "90s", "15m" or "12h"',
    ]


@pytest.mark.parametrize(
    "text, words",
    [
        ("mode = ", "not valid TOML"),
        ('name = "x"', "remove it"),
        ("[ladder]\nrate_factor = 2", "between 0 and 1"),
        ('capacity.fallbacks = ["ml.p4d.24xlarge", 3]', "list of at most"),
        ("limits = 3", "must be a table"),
        ('[prices]\n"p5" = 3', "instance type"),
        ("# mode: act\n[limits]", "has no field of a policy"),
    ],
)
def test_what_cannot_be_deployed_is_named_and_fails(tmp_path, text, words):
    answer = call("check", str(written(tmp_path, text)))
    assert answer.exit_code == 1 and words in answer.stdout and "cannot be deployed" in answer.stdout


def test_a_file_that_the_deployment_does_not_read_is_named_and_fails(tmp_path):
    (file := tmp_path / "défaut.yaml").write_text("# mode: act")
    answer = call("check", str(file))
    assert answer.exit_code == 1 and f"{file}: cannot be deployed\n" in answer.stdout
    assert "write it in TOML as défaut.toml" in answer.stdout


def test_a_file_that_cannot_be_read_is_one_more_error(tmp_path):
    """The others are checked all the same."""
    sound, pipe = written(tmp_path, '\ufeffmode = "act"'), tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    (wide := tmp_path / "wide.toml").write_bytes(b"\xff\xfem\0")
    answer = call("check", str(tmp_path / "absent.toml"), str(pipe), str(wide), str(sound))
    assert (
        answer.exit_code == 1
        and answer.stdout.count("cannot be read") == 3
        and f"{sound}: ok, policy mine with 1 value\n" in answer.stdout
    )
    assert "absent.toml does not exist" in answer.stdout and "wide.toml is not in UTF-8" in answer.stdout
    pipe.unlink()
    compared = compare_policies(Deployed(Cloud({"ssm.get_parameters_by_path": {"Parameters": []}})), tmp_path)
    assert ["UTF-8" in policy.problem for policy in compared] == [False, True]


ODD = (
    ("check_sizes", "[retries]\nhang = 999999"),
    ("check_shares", "[detection]\nthroughput_drop = 10"),
    ("check_save_interval", '[interval]\nshortest = "90m"'),
    ("check_relaunches", "[retries]\ninfrastructure = 0"),
    ("check_start_limit", "[limits]\nstarts = 0"),
    ("check_start_limit", "[limits]\nattempts = 3\nstarts = 9"),
    ("check_start_limit", '[limits]\nstarts_window = "0s"'),
    ("check_start_limit", '[limits]\naccount_window = "0s"'),
    ("check_dollar_limits", "[limits]\nrun_dollars = 10\nincident_dollars = 20"),
    ("check_dollar_limits", "[limits]\nrun_dollars = 20\nstop_dollars = 10"),
    ("check_backoff", '[backoff]\nbase = "20m"\ncap = "1m"'),
    ("check_fallback_delay", '[capacity]\nfallbacks = ["ml.p4de.24xlarge"]\nfallback_after = "13h"'),
    ("check_save_answer", '[save]\nanswer = "20m"'),
    ("check_save_deadline", '[save]\nanswer = "5s"\ndeadline = "10s"'),
    ("check_in_place_restarts", "[restart]\nper_attempt = 0"),
    ("check_ladder", "[ladder]\nreplays = 0\nskips = 0\nfar_skips = 0\nlower_rates = 0"),
    ("check_far_skip", "[ladder]\nfar_skip_batches = 10"),
    ("check_metric_names", '[metrics]\nstep = ""\nloss = ""'),
    ("check_approval_wait", 'mode = "approve"\n[approval]\nwait = "2d"'),
    ("check_detection_delay", '[detection]\nstall_floor = "3h"'),
)


def test_a_field_of_an_earlier_version_is_named(tmp_path):
    file = tmp_path / "old.toml"
    file.write_text("[detection]\nrise_noise = 6\npatience_rows = 90\n")
    text = "detection.rise_noise has no effect in this version: the built-in value applies; remove it"
    assert check_file(file).warnings == (text,)


def test_every_oddity_is_tested():
    assert {name for name, _ in ODD} == {question.__name__ for question in QUESTIONS}


@pytest.mark.parametrize(("name", "text"), ODD)
def test_an_odd_setting_is_reported_and_does_not_fail(tmp_path, name, text):
    assert len(list(find_oddities(parse_policy(text, name="mine")))) == 1
    answer = call("check", str(written(tmp_path, text)))
    assert answer.exit_code == 0 and "odd" in answer.stdout


def test_settings_at_the_bounds_are_not_odd():
    text = (
        'mode = "approve"\napproval.wait = "12h"\ninterval = { shortest = "1h", longest = "1h" }\n'
        "limits = { attempts = 2, starts = 2, incident_dollars = 9.0, run_dollars = 9.0, stop_dollars = 9.0 }\n"
        'backoff = { base = "5m", cap = "5m" }\ncapacity = { base = "5m", cap = "5m" }\n'
        'save = { answer = "30s", deadline = "30s" }\nladder = { far_skip_batches = 9, skip_batches = 9 }\n'
        'detection = { stall_floor = "2h", blind_after = "2h", save_floor = "1000m" }\n'
    )
    assert list(find_oddities(parse_policy(text, name="mine"))) == []


@pytest.fixture
def deployed(monkeypatch):
    """The files, one of them changed, one not deployed, and one that no file knows."""
    texts = {name: (find_policies() / f"{name}.toml").read_text() for name in list_policy_names() if name != "observe"}
    texts["large"] += "\n[prices]\n"
    parsed = {name: to_toml(parse_policy(text, name=name)) for name, text in texts.items()}
    parsed["default"] = parsed["default"].replace("attempts = 50", "attempts = 49")
    parsed["theirs"] = ""
    answer = {"Parameters": [{"Name": f"/rerail/policies/{name}", "Value": text} for name, text in parsed.items()]}
    where = Deployed(Cloud({"ssm.get_parameters_by_path": answer}))
    monkeypatch.setattr(place, "find", lambda *, local: where)


def test_the_deployed_ones_are_compared_with_the_files(deployed):
    """By their values: comments, order and spelling make no difference."""
    listed = {policy["name"]: policy for policy in json.loads(call("list", "--json").stdout)["policies"]}
    assert listed["default"]["stands"] == "differs" and listed["default"]["fields"] == ["limits.attempts"]
    assert {name: listed[name]["stands"] for name in ("approve", "large", "observe", "theirs")} == {
        "approve": "same",
        "large": "same",
        "observe": "not deployed",
        "theirs": "not in the files",
    }
    assert "limits.attempts" in call("list").stdout


def test_all_values_in_force_are_shown_and_what_differs_is_marked():
    shown = json.loads(call("show", "large", "--json").stdout)
    assert shown["fields"]["retries.hardware"] == {"value": 50, "default": 10, "differs": True}
    assert shown["fields"]["limits.starts_window"] == {"value": "1h", "default": "30m", "differs": True}
    assert not shown["fields"]["mode"]["differs"]
    lines = [line for line in call("show", "large").stdout.splitlines() if "retries.hardware" in line]
    assert "*" in lines[0] and "50" in lines[0] and "10" in lines[0]


def test_a_policy_is_shown_as_it_is_deployed(deployed):
    shown = json.loads(call("show", "default", "--deployed", "--json").stdout)
    assert shown["fields"]["limits.attempts"]["value"] == 49
    answer = call("show", "observe", "--deployed")
    assert answer.exit_code == 2 and "no policy 'observe' is deployed" in answer.stderr


def test_a_wrong_name_is_answered_with_the_nearest():
    answer = call("show", "defualt")
    assert answer.exit_code == 2 and "did you mean default?" in answer.stderr


def test_every_value_is_shown_in_the_syntax_of_a_file():
    """Reading what is shown gives the same policy."""
    shown = dict(list_rows(Policy()))
    lines = [f"{key} = {json.dumps(value)}" for key, value in shown.items() if not isinstance(value, dict)]
    assert parse_policy("\n".join(lines), name="default") == Policy()


@given(st.integers(0, 10**9))
def test_a_duration_is_printed_exactly(milliseconds):
    said = write_duration(timedelta(milliseconds=milliseconds))
    text = f'[backoff]\nbase = "{said}"'
    assert parse_policy(text, name="x").backoff.base == timedelta(milliseconds=milliseconds)
