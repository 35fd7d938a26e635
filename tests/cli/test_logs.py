"""`rerail logs`: what the jobs have printed, by attempt, since when, and nothing that could paint the terminal."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace

import pytest
from moto import mock_aws
from typer.testing import CliRunner

from cli import place
from cli.logbook import LOG_GROUP, JobLogLine, Logbook
from cli.main import app
from cli.place import Place
from cli.submit.following import Follower
from rerail.aws.clients import client
from rerail.model.run import Attempt, JobStatus, Run, RunState
from tests.aws.places import TABLE, make_table

NOW = datetime.now(UTC).replace(microsecond=0)
MINUTE = timedelta(minutes=1)
RUN = Run(
    "gpt",
    "default",
    RunState.WATCHING,
    NOW,
    (Attempt(1, "gpt", JobStatus.FAILED), Attempt(2, "gpt-a002", JobStatus.IN_PROGRESS), Attempt(3, "gpt-a003")),
    version=1,
)


@pytest.fixture
def printed(monkeypatch):
    """Two attempts, the first on two machines, the second still at work; a third is not launched yet."""
    with mock_aws():
        make_table(client("dynamodb"))
        where = Place("stack Rerail", {"TableName": TABLE})
        where.runs.save(RUN, None, {})
        monkeypatch.setattr(place, "find", lambda *, local: where)
        client("logs").create_log_group(logGroupName=LOG_GROUP)
        put("gpt/algo-1-17", (-600, "one step=1"), (-598, "three step=2"))
        put("gpt/algo-2-17", (-599, "two \x1b[31mred\x1b[0m"))
        put("gpt-a002/algo-1-18", (-2, "10%|#\r20%|##"), (-1, "five step=3"))
        yield where


def put(stream: str, *lines: tuple[int, str]) -> None:
    """Lines, each so many minutes before now."""
    client("logs").create_log_stream(logGroupName=LOG_GROUP, logStreamName=stream)
    events = [{"timestamp": int((NOW + at * MINUTE).timestamp() * 1000), "message": text} for at, text in lines]
    client("logs").put_log_events(logGroupName=LOG_GROUP, logStreamName=stream, logEvents=events)


def print_lines(*words: str) -> list[str]:
    answer = CliRunner().invoke(app, ["logs", "gpt", *words])
    assert answer.exit_code == 0, answer.output
    return answer.stdout.splitlines()


def test_every_line_carries_its_attempt_and_host_in_order_of_time(printed):
    """Of two machines, as they came; control characters are gone, and of a progress bar the last state is left."""
    words = [line.partition(" ")[2].partition(" ")[2] for line in print_lines()]
    assert words == [
        "1/algo-1 | one step=1",
        "1/algo-2 | two  [31mred [0m",
        "1/algo-1 | three step=2",
        "2/algo-1 | 20%|##",
        "2/algo-1 | five step=3",
    ]


def test_one_attempt_a_while_and_a_text_narrow_it_down(printed):
    assert len(print_lines("--attempt", "1")) == 3
    assert len(print_lines("--since", "5h")) == 2
    assert [line.rpartition("| ")[2] for line in print_lines("--grep", "step=2")] == ["three step=2"]
    rows = [json.loads(line) for line in print_lines("--attempt", "2", "--grep", "five", "--json")]
    at = (NOW - MINUTE).isoformat()
    assert rows == [{"at": at, "run": "gpt", "attempt": 2, "job": "gpt-a002", "host": "algo-1", "text": "five step=3"}]


@pytest.mark.threat("T7")
def test_streams_of_others_are_neither_shown_nor_in_the_way(printed):
    for number in range(60):
        client("logs").create_log_stream(logGroupName=LOG_GROUP, logStreamName=f"gpt/algo-0-{number}")
    put("gpt/algo-1-x", (-599, "a stranger"))
    lines = print_lines()
    assert any("one step=1" in line for line in lines) and not any("a stranger" in line for line in lines)


def test_an_empty_log_is_reported(printed):
    answer = CliRunner().invoke(app, ["logs", "gpt", "--grep", "no such words"])
    assert (answer.exit_code, answer.stdout) == (0, "")
    assert "nothing printed by the 2 jobs of gpt with 'no such words'" in answer.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--attempt", "3"], "--attempt 3: gpt has no such attempt"),
        (["--attempt", "-1"], "gpt has no such attempt"),
        (["--since", "yesterday"], "--since 'yesterday' is not a duration"),
        (["--since", "-5m"], "is not a duration"),
    ],
)
def test_invalid_options_are_one_clear_error(printed, words, error):
    answer = CliRunner().invoke(app, ["logs", "gpt", *words])
    assert answer.exit_code == 2 and error in " ".join(answer.stderr.split())
    assert CliRunner().invoke(app, ["logs", "no-such-run"]).exit_code == 2


def test_following_ends_with_the_run(printed, monkeypatch):
    """It prints what is there, what comes, and then the run is over."""
    attempts = tuple(replace(attempt, status=JobStatus.COMPLETED) for attempt in RUN.attempts[:2])
    done = replace(RUN, state=RunState.COMPLETED, attempts=attempts, version=2)
    printed.runs.save(done, None)
    monkeypatch.setattr("cli.submit.following.Follower._state_of", lambda self, job: iter(()))
    monkeypatch.setattr("cli.submit.following.LINES_S", 0.0)
    monkeypatch.setattr("cli.logs.Follower", partial(Follower, sleep=lambda seconds: None))
    assert [line.rpartition("| ")[2] for line in print_lines("--follow", "--grep", "step=")] == [
        "one step=1",
        "three step=2",
        "five step=3",
    ]


def test_an_empty_page_is_no_end():
    """CloudWatch passes over what is too old page by page; only a token that stays is the end."""
    pages = {
        None: ([], "t1"),
        "t1": ([], "t2"),
        "t2": ([{"message": "late", "timestamp": 1000}], "t3"),
        "t3": ([], "t3"),
    }

    class Logs:
        def get_paginator(self, _):
            return SimpleNamespace(paginate=lambda **_: [{"logStreams": [{"logStreamName": "gpt/algo-1-17"}]}])

        def get_log_events(self, *, nextToken=None, startTime, **_):
            assert startTime == int(NOW.timestamp() * 1000)
            events, token = pages[nextToken]
            return {"events": events, "nextForwardToken": token}

    assert [line.text for line in Logbook(Logs(), NOW).read_lines("gpt")] == ["late"]


def test_a_line_is_one_line():
    assert JobLogLine("gpt", "algo-1", "a\nb\r\n").shown == "a b"
    assert JobLogLine("gpt", "algo-1", "\r\n").shown == ""


def test_logs_are_saved_as_a_file_for_each_job_and_machine(printed, tmp_path):
    answer = CliRunner().invoke(app, ["logs", "gpt", "--save", str(tmp_path / "logs"), "--grep", "e"])
    assert answer.exit_code == 0 and "wrote 3 files" in answer.output
    lines = (tmp_path / "logs" / "gpt" / "algo-1.log").read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["one step=1", "three step=2"]
    assert (tmp_path / "logs" / "gpt-a002" / "algo-1.log").read_text().endswith(" five step=3\n")
    both = CliRunner().invoke(app, ["logs", "gpt", "--save", str(tmp_path / "x"), "--follow"])
    assert both.exit_code == 2 and "--save" in both.output
