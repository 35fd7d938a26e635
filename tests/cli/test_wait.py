"""`rerail wait` continues over all attempts of a run; its exit status says how the run ended."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import typer
from botocore.exceptions import EndpointConnectionError

from cli import wait
from cli.wait import WaitGoal, await_run, has_reached
from rerail.aws import sagemaker
from rerail.model.errors import JobNotFound
from rerail.model.run import Attempt, JobStatus, Run, RunState

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
FIRST = Run("gpt", "default", RunState.WATCHING, NOON, (Attempt(1, "gpt"),), version=1)
TRAINS = replace(FIRST, attempts=(replace(FIRST.current, training_started_at=NOON),))
WAITS = replace(TRAINS, state=RunState.WAITING)
SECOND = replace(TRAINS, attempts=(*TRAINS.attempts, Attempt(2, "gpt-a002", training_started_at=NOON)))
DONE, HELD = replace(SECOND, state=RunState.COMPLETED), replace(SECOND, state=RunState.HELD)
DOWN = EndpointConnectionError(endpoint_url="https://here")


class Deployment:
    """A table whose answers change with each look, one every 15 seconds."""

    def __init__(self, *answers: Run | Exception | None) -> None:
        self.answers: Sequence[Run | Exception | None] = answers
        self.now, self.looks, self.lines = 0.0, 0, []
        self.runs, self.name, self.outputs = self, "here", {"TableName": "Runs"}

    def load(self, name: str) -> Run | None:
        answer = self.answers[min(self.looks, len(self.answers) - 1)]
        self.looks += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self, service: str) -> Any:
        pages = type("Pages", (), {"paginate": staticmethod(lambda **_: [{"Items": []}])})
        return type("Client", (), {"get_paginator": staticmethod(lambda name: pages)})

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, until: WaitGoal = WaitGoal.COMPLETED, limit_s: float | None = None) -> Run | None:
        arguments: Any = {"limit_s": limit_s, "pause_s": 15.0, "show": self.lines.append}
        return await_run(self, "gpt", until, **arguments, sleep=self.sleep, clock=lambda: self.now)  # type: ignore[arg-type]


class Jobs:
    """SageMaker with one job, or without."""

    def __init__(self, tags: dict[str, str] | None, status: JobStatus = JobStatus.IN_PROGRESS) -> None:
        self.known, self.status = tags, status

    def __call__(self) -> "Jobs":
        return self

    def describe(self, name: str) -> tuple[Any, Any]:
        if self.known is None:
            raise JobNotFound(f"there is no training job {name}")
        return type("Job", (), {"arn": "arn", "status": self.status}), {}

    def tags(self, arn: str) -> dict[str, str]:
        return self.known or {}


def test_a_wait_goes_on_over_a_relaunch_and_shows_each_change() -> None:
    deployment = Deployment(FIRST, TRAINS, TRAINS, WAITS, SECOND, DONE)
    assert deployment.wait() == DONE
    assert [line.removeprefix("gpt: ") for line in deployment.lines] == [
        "watching, attempt 1 (gpt)",
        "watching and trains, attempt 1 (gpt)",
        "waiting, attempt 1 (gpt)",
        "watching and trains, attempt 2 (gpt-a002)",
        "completed, attempt 2 (gpt-a002)",
    ]


def test_training_is_reached_by_the_first_job_that_trains() -> None:
    assert Deployment(FIRST, TRAINS, DONE).wait(WaitGoal.TRAINING) == TRAINS
    assert has_reached(DONE, WaitGoal.TRAINING) and not has_reached(WAITS, WaitGoal.TRAINING)


def test_a_held_run_ends_the_wait_and_has_not_completed() -> None:
    ended = Deployment(TRAINS, HELD).wait()
    assert ended == HELD and not has_reached(HELD, WaitGoal.COMPLETED)


def test_the_limit_is_kept_to_the_second() -> None:
    deployment = Deployment(TRAINS)
    assert deployment.wait(limit_s=40) == TRAINS
    assert deployment.now == 40


def test_a_tagged_job_is_waited_for_until_it_is_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sagemaker, "SageMakerJobs", Jobs({"rerail:policy": "default"}))
    assert Deployment(None, None, DONE).wait() == DONE


@pytest.mark.parametrize(
    ("jobs", "answers", "complaint"),
    [
        (Jobs(None), [None], "there is no run 'gpt' in here"),
        (Jobs({}), [None], "gpt is a training job without the tag rerail:policy"),
        (Jobs({"rerail:policy": "x"}, JobStatus.FAILED), [None], "a training job without a run, and it is Failed"),
        (Jobs({"rerail:policy": "x"}), [None], "gpt has not become a run within 180 s"),
    ],
)
def test_what_never_becomes_a_run_is_an_error(
    jobs: Jobs, answers: list[None], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sagemaker, "SageMakerJobs", jobs)
    with pytest.raises(typer.Exit) as ended:
        Deployment(*answers).wait()
    assert ended.value.exit_code == 2
    assert complaint in capsys.readouterr().err


def test_a_network_that_is_down_for_a_moment_ends_no_wait() -> None:
    assert Deployment(TRAINS, DOWN, DOWN, DONE).wait() == DONE
    with pytest.raises(EndpointConnectionError):
        Deployment(TRAINS, DOWN).wait()
    assert wait.SILENCE_S >= 600
    with pytest.raises(EndpointConnectionError):  # at the first look it is a mistake of the settings
        Deployment(DOWN, DONE).wait()
