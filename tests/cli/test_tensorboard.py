"""`rerail tensorboard`: each event file belongs to the attempt that wrote it, and none lands outside the folder."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from moto import mock_aws
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from cli import place
from cli.backtest.series import BadInput, LogSeries
from cli.main import app
from cli.place import Place
from cli.tensorboard import command, events
from cli.tensorboard.curves import Curves
from cli.tensorboard.events import EventFile, bring, find_folder, find_writer, list_event_files
from rerail.aws.sagemaker import SageMakerJobs
from rerail.model.run import Attempt, JobStatus, Run, RunState
from rerail.model.sample import Sample
from tests.aws.places import fill, make_bucket
from tests.cli.cloud import Cloud, Deployed

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
FIRST = Attempt(1, "gpt", JobStatus.FAILED, created_at=NOON)
SECOND = Attempt(2, "gpt-a002", JobStatus.COMPLETED, created_at=NOON + HOUR)
RUN = Run("gpt", "default", RunState.COMPLETED, NOON, (FIRST, SECOND), checkpoint_uri="s3://bucket/gpt/checkpoints/")


def named(at: datetime) -> str:
    return f"events.out.tfevents.{int(at.timestamp())}.algo-1.27.0"


@pytest.mark.parametrize(
    "key, stored, attempt",
    [
        (f"tb/gpt-a002/{named(NOON)}", NOON, 2),
        (f"tb/gpt/{named(NOON + 3 * HOUR)}", NOON, 1),
        (f"tb/{named(NOON + HOUR / 2)}", NOON + 5 * HOUR, 1),
        (f"tb/{named(NOON + 2 * HOUR)}", NOON, 2),
        ("tb/my.tfevents", NOON + 2 * HOUR, 2),
        (f"tb/{named(NOON - HOUR)}", NOON, None),
    ],
)
def test_a_file_belongs_to_the_attempt_that_wrote_it(key, stored, attempt):
    """By the job in its path, else by the time in its name, else by when it was stored; older is not its own."""
    assert find_writer(RUN, key, stored) == attempt


def test_the_files_of_all_attempts_come_home_each_to_its_folder(tmp_path, monkeypatch):
    """Only files that are new or have grown are fetched. Names that this machine cannot store are left out."""
    with mock_aws():
        s3 = make_bucket("bucket")
        first, second = f"gpt/tb/train/{named(NOON)}", f"gpt/tb/train/{named(NOON + HOUR)}"
        for key, body in ((first, b"one"), (second, b"two"), ("gpt/tb/other.txt", b"no")):
            s3.put_object(Bucket="bucket", Key=key, Body=body)
        found = list(list_event_files(s3, RUN, ["s3://bucket/gpt/tb/", "s3://bucket/gpt/"], []))
        assert [(file.attempt, file.key) for file in found] == [(1, first), (2, second)]
        assert bring(s3, found, tmp_path) == []
        s3.put_object(Bucket="bucket", Key=first, Body=b"new")
        s3.put_object(Bucket="bucket", Key=second, Body=b"two and more")
        assert bring(s3, list(list_event_files(s3, RUN, ["s3://bucket/gpt/tb/"], [])), tmp_path) == []
        assert (tmp_path / "attempt-001" / "train" / named(NOON)).read_bytes() == b"one"
        assert (tmp_path / "attempt-002" / "train" / named(NOON + HOUR)).read_bytes() == b"two and more"
        names = ("train", f"train/{named(NOON)}/tfevents", "x" * 300, "a\0", "../../tfevents", "tfevents")
        assert len(bring(s3, [EventFile("bucket", first, 3, 1, name) for name in names], tmp_path)) == 4
        assert (tmp_path / "attempt-001" / "tfevents").read_bytes() == b"new"
        s3.put_object(Bucket="bucket", Key="gpt/archived", Body=b"x", StorageClass="GLACIER")
        unreadable = (EventFile("bucket", f"gpt/{key}", 1, 1, key) for key in ("archived", "deleted"))
        assert len(bring(s3, [*unreadable, EventFile("bucket", second, 12, 2, "after")], tmp_path)) == 2
        assert (tmp_path / "attempt-002" / "after").exists()
    assert not (tmp_path.parent / "tfevents").exists()


def test_a_folder_that_many_runs_share_gives_each_its_own(tmp_path):
    """Where the run's jobs have folders, those of other jobs are not the run's, whenever they were written."""
    with mock_aws():
        s3 = make_bucket("bucket")
        for job in ("gpt", "gpt-a002", "bert"):
            s3.put_object(Bucket="bucket", Key=f"tb/{job}/{named(NOON + 2 * HOUR)}", Body=b"x")
        found = list_event_files(s3, RUN, ["s3://bucket/tb/"], [])
        assert {(file.attempt, file.path.split("/")[0]) for file in found} == {(1, "gpt"), (2, "gpt-a002")}


@pytest.mark.threat("T39")
def test_what_others_add_without_end_is_neither_listed_nor_downloaded_without_end(tmp_path, monkeypatch):
    """Say what was left out, and download the files of the newest attempt."""
    monkeypatch.setattr(events, "MOST_PAGES", 1)
    with mock_aws():
        s3 = make_bucket("bucket")
        fill("bucket", (f"tb/{number:04d}/{named(NOON + number * HOUR)}" for number in range(1_001)), b"xx")
        problems = []
        found = list(list_event_files(s3, RUN, ["s3://bucket/tb/"], problems))
        assert (len(found), len(problems)) == (1_000, 1)
        for limit, size, left_out in (("MOST_FILES", 3, 997), ("MOST_BYTES", 5, 998)):
            monkeypatch.setattr(events, limit, size)
            assert f"{left_out} of 1000 event files were left out" in bring(s3, found, tmp_path)[0]
    assert [path.name for path in tmp_path.iterdir()] == [find_folder(2)]


def test_files_are_looked_for_where_sagemaker_copies_them_and_beside_the_checkpoints(monkeypatch):
    described = {"gpt": {"TensorBoardOutputConfig": {"S3OutputPath": "s3://bucket/tb"}}, "gpt-a002": {}}
    monkeypatch.setattr(SageMakerJobs, "describe", lambda self, name: (None, described[name]))
    assert events.find_places(RUN) == ["s3://bucket/tb/", "s3://bucket/gpt/checkpoints/"]
    assert events.find_places(replace(RUN, checkpoint_uri="")) == ["s3://bucket/tb/"]


def rows(first: int, last: int) -> tuple[Sample, ...]:
    return tuple(Sample(step=n, at=NOON + n * timedelta(seconds=1), loss=10.0 / n) for n in range(first, last + 1))


def drawn(folder: Path) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    return [(event.step, float(event.tensor_proto.float_val[0])) for event in accumulator.Tensors("loss")]


def test_curves_are_drawn_for_each_attempt_and_only_what_is_new_is_added(tmp_path):
    """A run that goes on grows on the screen, without a point twice; a step that no file can have is left out."""
    logs = {"gpt": (*rows(1, 4), replace(rows(1, 1)[0], step=1 << 63), *rows(5, 5)), "gpt-a002": rows(3, 4)}
    stale = tmp_path / find_folder(1) / "events.out.tfevents.1.old"
    stale.parent.mkdir()
    stale.write_bytes(b"from another time")
    curves = Curves(RUN, tmp_path, lambda job: [LogSeries("minutes", rows(1, 1)), LogSeries("log", logs[job])])
    assert curves.write(RUN) == {1: 6, 2: 2}
    logs["gpt-a002"] = rows(3, 8)
    assert curves.write(RUN) == {1: 6, 2: 6}
    first = dict(drawn(tmp_path / find_folder(1)))
    assert first == pytest.approx({n: 10.0 / n for n in range(1, 6)}, rel=1e-6)
    assert [step for step, _ in drawn(tmp_path / find_folder(2))] == [3, 4, 5, 6, 7, 8]


def test_a_job_without_a_line_has_no_curve(tmp_path):
    def nothing(job: str) -> list[LogSeries]:
        raise BadInput(f"the job {job} left no line", "print some")

    assert Curves(RUN, tmp_path, nothing).write(RUN) == {1: 0, 2: 0}


def test_several_runs_are_compared_each_below_its_name(tmp_path, monkeypatch):
    """One folder for each run, with one for each attempt; TensorBoard is started on their common folder."""
    records = {name: replace(RUN, id=name, checkpoint_uri="") for name in ("gpt", "bert")}
    monkeypatch.setattr(place, "find", lambda *, local: Deployed(Cloud({})))
    monkeypatch.setattr(Place, "runs", property(lambda self: type("Runs", (), {"load": staticmethod(records.get)})))
    monkeypatch.setattr(SageMakerJobs, "describe", lambda self, name: (None, {}))
    monkeypatch.setattr(command, "make_curves", lambda *, local: lambda job: [LogSeries("log", rows(1, len(job)))])
    served = []
    monkeypatch.setattr(command, "serve", lambda folder, port, refreshes: served.append((folder, len(refreshes))))
    words = ("tensorboard", "gpt", "bert", "gpt", "--logdir", str(tmp_path), "--json")
    shown = json.loads(CliRunner().invoke(app, words).stdout)
    assert served == [(tmp_path, 2)] and shown["logdir"] == str(tmp_path)
    parts = {part["run"]: [attempt["folder"] for attempt in part["attempts"]] for part in (shown, *shown["others"])}
    assert parts == {name: [f"{name}/metrics/{find_folder(n)}" for n in (1, 2)] for name in records}
    assert [len(drawn(tmp_path / folder)) for folder in parts["bert"]] == [3, 8]
