"""A run whose checkpoint folder is more than Rerail reads: it is held or reported, and no other run notices."""

import io
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto import mock_aws

from rerail.aws import folder_listing
from rerail.aws import s3 as aws_s3
from rerail.aws.clients import client
from rerail.aws.s3 import S3Checkpoints
from rerail.decisions.quarantine import PLACE
from rerail.messages.messages import CommandReceived, FindingsReceived
from rerail.model.actions import QuarantineCheckpoints
from rerail.model.checkpoint_layouts import StoredObject, find_checkpoints
from rerail.model.errors import BoundsExceeded, QuarantineFailed
from rerail.model.finding import Finding, Kind, Level
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import OperatorVerb
from tests.aws.places import fill, make_bucket, our_own_clients
from tests.core.failures import NODE_LOST
from tests.fakes import BUCKET, MIDNIGHT, FakeCheckpoints, World

NAMES = ("model.safetensors", "optimizer.pt", "trainer_state.json")
URI = "s3://shared/run/"


class Poisoned(FakeCheckpoints):
    """Refuse the folders of some runs, as the bounds do."""

    may_pass = False

    def list_checkpoints(
        self, uri: str, *, upto: int | None = None, signing_key: str = "", signed_only: bool = True
    ) -> Any:
        self._check(uri)
        return super().list_checkpoints(uri, upto=upto, signing_key=signing_key, signed_only=signed_only)

    def list_saves(self, uri: str) -> Any:
        self._check(uri)
        return super().list_saves(uri)

    def _check(self, uri: str) -> None:
        if "poisoned" in uri:
            raise BoundsExceeded(f"{uri} has too much", advice="keep less", may_pass=self.may_pass)


@pytest.fixture
def world() -> World:
    """A run `gpt` whose folder is read, and a run `big` whose folder is refused."""
    world = World()
    world.checkpoints = Poisoned(world.clock)
    world.sagemaker.defined_metrics = ("step", "loss")
    world.adopt("big", uri="s3://bucket/poisoned/")
    return world.with_saves()


def notices(world: World) -> list[str]:
    return [notice.severity for notice in world.bus.notices if "cannot be listed" in notice.title]


@pytest.mark.threat("T26")
def test_a_healthy_run_is_reported_once_and_goes_on(world):
    """Before anything fails, its owner learns of it; the message names the run and the remedy."""
    world.minutes(60)
    assert notices(world) == ["inform"]
    (notice,) = [notice for notice in world.bus.notices if "cannot be listed" in notice.title]
    assert (notice.run, notice.todo) == ("big", "Keep less")
    assert (world.run("big").state, world.run().state) == (RunState.WATCHING, RunState.WATCHING)


@pytest.mark.threat("T26")
def test_a_run_that_fails_is_held_and_never_begins_again(world):
    """Its checkpoints are not known, so the next job would start from step 0; released, it is the same."""
    world.sagemaker.fail("big", NODE_LOST)
    world.lose_node(minutes=10)
    assert (world.run("big").state, world.run("big").current.status) == (RunState.HELD, JobStatus.FAILED)
    assert "page" in notices(world)
    assert (world.run().current.job_name, world.run().current.resumed_from_step) == ("gpt-a002", 500)
    world.supervisor().handle(CommandReceived("c1", "big", OperatorVerb.RELEASE, "ada", ""))
    world.minutes(5)
    assert (world.run("big").state, len(world.run("big").attempts)) == (RunState.HELD, 1)
    world.checkpoints.saved["s3://bucket/poisoned/"] = []
    world.checkpoints._check = lambda uri: None
    world.checkpoints.save(700, uri="s3://bucket/poisoned/")
    world.supervisor().handle(CommandReceived("c2", "big", OperatorVerb.RELEASE, "ada", ""))
    world.minutes(5)
    assert (world.run("big").state, world.run("big").current.resumed_from_step) == (RunState.WATCHING, 700)


@pytest.mark.threat("T26")
def test_a_slow_answer_holds_no_run(world):
    """Time alone may pass: the relaunch waits for it, and its owner is told once."""
    world.checkpoints.may_pass = True
    world.lose_node("big", minutes=10)
    assert (world.run("big").state, len(world.run("big").attempts)) == (RunState.WATCHING, 1)
    assert notices(world) == ["inform"]
    world.checkpoints._check = lambda uri: None
    world.minutes(2)
    assert world.run("big").current.number == 2


@pytest.mark.threat("T26")
def test_a_divergence_that_cannot_be_rolled_back_pages(world):
    """The job is not stopped, because there is nothing that it could be resumed from."""
    finding = Finding(Kind.DIVERGENCE, Level.INTERVENE, 480, 350, "9.1 for 80 rows")
    world.supervisor().handle(FindingsReceived("big", "big", (finding,)))
    assert (world.run("big").state, world.sagemaker.jobs["big"].status) == (RunState.HELD, JobStatus.IN_PROGRESS)
    assert notices(world)[-1] == "page"


@pytest.mark.threat("T26")
@pytest.mark.parametrize("asked", [True, False])
def test_a_stop_by_a_person_is_not_held(world, asked):
    """By a command, or in the console: the run ends, for which no checkpoint is needed."""
    if asked:
        world.supervisor().handle(CommandReceived("c1", "big", OperatorVerb.STOP, "ada", ""))
    world.sagemaker.stop("big")
    world.minutes(30)
    assert world.run("big").state is RunState.STOPPED
    assert "page" not in notices(world)


@pytest.mark.threat("T26")
def test_the_supervisor_is_woken_before_all_runs_are_checked(world):
    """While one run's folder still takes its time, the other run's failure is on its way."""
    released = threading.Event()
    woken: list[Any] = []

    def wake(messages: Any, *, at: datetime) -> None:
        woken.extend(messages)
        if {"run": "gpt"} in messages:
            released.set()

    def slow(uri: str) -> None:
        if "poisoned" in uri:
            assert released.wait(30), "the sweep waits for the slowest run"

    world.queue.wake = wake
    world.checkpoints._check = slow
    world.sagemaker.fail("big", NODE_LOST)
    world.sagemaker.fail("gpt", NODE_LOST)
    world.round().run()
    assert {"run": "big"} in woken


@pytest.mark.threat("T26")
def test_runs_that_a_sweep_does_not_reach_are_left_to_the_supervisor(world):
    """A sweep that ends in time wakes it for the rest, which is harmless."""
    report = world.round().run(has_time=lambda: False)
    assert report.due == 2
    assert sorted(message["run"] for message in world.queue.waiting) == ["big", "gpt"]


# ---------------------------------------------------------------------- what S3 holds


@pytest.fixture
def s3() -> Iterator[Any]:
    """An empty S3 with one bucket."""
    with our_own_clients(), mock_aws():
        make_bucket("shared")
        yield client("s3")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can exceed."""
    monkeypatch.setattr(folder_listing, "WHOLE_OBJECTS", 10)
    monkeypatch.setattr(folder_listing, "MAX_OBJECTS", 300)
    monkeypatch.setattr(folder_listing, "MAX_CALLS", 100)
    monkeypatch.setattr(aws_s3, "BATCH", 4)


def put(*names: str, body: bytes = b"x" * 10) -> None:
    fill("shared", (f"run/{name}" for name in names), body)


def save(*steps: int, folder: str = "") -> None:
    for step in steps:
        put(*(f"{folder}checkpoint-{step}/{name}" for name in NAMES))


def page_of_ten(params: dict[str, Any], **_: Any) -> dict[str, Any]:
    return {**params, "MaxKeys": 10}


@pytest.fixture
def pages(s3: Any) -> Iterator[None]:
    """Listings come in pages of ten."""
    s3.meta.events.register("provide-client-params.s3.ListObjectsV2", page_of_ten)
    yield
    s3.meta.events.unregister("provide-client-params.s3.ListObjectsV2", page_of_ten)


@pytest.mark.threat("T26")
@pytest.mark.parametrize("folder", ["", "output/deep/"])
def test_of_a_large_folder_the_newest_checkpoints_are_read(s3, small, pages, folder):
    """With its pointers; and so many more as it takes to find one that can be resumed from."""
    save(*range(100, 3000, 100), folder=folder)
    put(*(f"{folder}checkpoint-{step}/model.safetensors" for step in range(3000, 3600, 100)))
    found = S3Checkpoints().list_checkpoints(URI)
    assert max(checkpoint.step for checkpoint in found if checkpoint.is_whole) == 2900
    assert {checkpoint.step for checkpoint in found} >= set(range(2900, 3600, 100))
    assert len(found) < 30
    older = S3Checkpoints().list_checkpoints(URI, upto=1500)
    assert 1500 in {checkpoint.step for checkpoint in older if checkpoint.is_whole}
    assert len(S3Checkpoints().list_saves(URI).times) == 4


@pytest.mark.threat("T26")
def test_a_large_folder_without_a_complete_checkpoint_is_read_to_the_limit(s3, small, pages, monkeypatch):
    """It is not refused for that; beside the newest, the oldest checkpoints are known."""
    monkeypatch.setattr(aws_s3, "LIMIT", 16)
    put(*(f"checkpoint-{step}/model.safetensors" for step in range(100, 6000, 100)))
    put("checkpoint-100/trainer_state.json")
    found = S3Checkpoints().list_checkpoints(URI)
    assert 16 <= len(found) < 30
    assert [checkpoint.step for checkpoint in found if checkpoint.is_whole] == [100]


@pytest.mark.threat("T26")
def test_of_a_large_folder_everything_newer_is_quarantined(s3, small, pages):
    """In as many turns as it takes; the rest stays."""
    save(*range(100, 3000, 100))
    now = datetime.now(UTC)
    times = {"saved_before": now + timedelta(minutes=1), "saved_after": now - timedelta(minutes=1)}
    S3Checkpoints().quarantine(QuarantineCheckpoints("gpt", 1, URI, 1000, **times), lambda: None)
    keys = {item["Key"] for item in s3.get_paginator("list_objects_v2").paginate(Bucket="shared").search("Contents[]")}
    assert {key for key in keys if not key.startswith(PLACE)} == {
        f"run/checkpoint-{step}/{name}" for step in range(100, 1100, 100) for name in NAMES
    }
    assert len(keys) == 29 * len(NAMES)


def test_a_folder_within_all_limits_is_listed(s3, small, pages, monkeypatch):
    """Ten objects as a whole. With more, what was listed at first does not count twice: 300 objects in 32 pages."""
    put(*(f"checkpoint-100/{number}" for number in range(10)))
    assert folder_listing.FolderListing("shared", "run/").is_whole
    put(*(f"data/{number}" for number in range(298)))
    monkeypatch.setattr(folder_listing, "MAX_CALLS", 32)
    assert len(folder_listing.FolderListing("shared", "run/").objects) == 298


def many_objects() -> None:
    put(*(f"data/{number}" for number in range(301)))


def many_folders() -> None:
    put(*(f"data/{number}/x" for number in range(120)))


def one_large_checkpoint() -> None:
    put(*(f"checkpoint-100/{number}.pt" for number in range(301)))


@pytest.mark.threat("T26")
@pytest.mark.parametrize("fill_folder", [many_objects, many_folders, one_large_checkpoint])
def test_a_folder_without_end_is_refused(s3, small, pages, fill_folder: Callable[[], None]):
    """The error names the folder, what was exceeded and what to do; the number of calls is bounded."""
    fill_folder()
    calls: list[Any] = []
    s3.meta.events.register("before-call.s3.ListObjectsV2", lambda **facts: calls.append(facts))
    with pytest.raises(BoundsExceeded, match=r"s3://shared/run/.*more than.*keep fewer"):
        S3Checkpoints().list_checkpoints(URI)
    assert len(calls) <= 101
    with pytest.raises(BoundsExceeded):
        S3Checkpoints().list_saves(URI)
    with pytest.raises(QuarantineFailed, match="by hand"):
        S3Checkpoints().quarantine(QuarantineCheckpoints("gpt", 1, URI, None, MIDNIGHT), lambda: None)


@pytest.mark.threat("T26")
def test_a_listing_ends_when_its_time_is_over(s3, monkeypatch):
    """A slow answer is no reason to hold a run, so the error says that another try may succeed."""
    save(100)
    monkeypatch.setattr(folder_listing, "MAX_SECONDS", 0.0)
    with pytest.raises(BoundsExceeded, match="longer than") as error:
        S3Checkpoints().list_checkpoints(URI)
    assert error.value.may_pass


@pytest.mark.threat("T26")
def test_a_manifest_is_read_to_its_limit_only(s3, monkeypatch):
    """A large one is not fetched; one that grows after it was listed is read in part, and is malformed."""
    monkeypatch.setattr(aws_s3, "MANIFEST_BYTES", 1000)
    put("step-000000100/manifest.json", body=b" " * 1001)
    with pytest.raises(BoundsExceeded, match=r"step-000000100/manifest.json has more than the 1,000 bytes"):
        S3Checkpoints().list_checkpoints(URI)
    asked: list[dict[str, Any]] = []

    class Endless(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size == 1001
            return b" " * size

    class Client:
        def get_object(self, **request: Any) -> dict[str, Any]:
            asked.append(request)
            return {"Body": Endless()}

    monkeypatch.setattr(aws_s3, "client", lambda service: Client())
    assert aws_s3._read("shared", "run/step-000000100/", (("manifest.json", 10),), "", MIDNIGHT, "") is None
    assert asked[0]["Range"] == "bytes=0-1000"


@pytest.mark.threat("T26")
def test_pointers_are_bounded(s3):
    """Each is an object to fetch."""
    for number in range(21):
        put(f"{number}/global_step5/model.pt", f"{number}/latest")
    with pytest.raises(BoundsExceeded, match="21 files"):
        S3Checkpoints().list_checkpoints(URI)


@pytest.mark.threat("T26")
def test_a_checkpoint_names_few_missing_files():
    """What one has and the others lack would otherwise be named in each of them, and stored in each decision."""
    stored = [StoredObject(f"checkpoint-{n}/{'abcdefghij'[n % 10]}{'x' * n}", 10, MIDNIGHT) for n in range(1, 200)]
    assert max(len(checkpoint.missing) for checkpoint in find_checkpoints(stored)) < 30


@pytest.mark.threat("T26")
def test_keys_as_strange_as_s3_takes_them_are_read(s3):
    """Newlines, dots, empty parts, escapes, longer than a file system allows: nothing else is found or raised."""
    strange = ("checkpoint-5\n/a", "checkpoint-5/../../b", "//checkpoint-6//c", "checkpoint-%37/d", "step=7\n.ckpt")
    put(f"{'it1.' * 61}step=8.ckpt.pt", f"{'a/' * 50}checkpoint-9/e")
    put(*strange, *(f"checkpoint-{'9' * 30}/{name}" for name in NAMES))
    found = S3Checkpoints().list_checkpoints("s3://shared/run")
    assert {checkpoint.step for checkpoint in found} == {5, 6}
    assert BUCKET not in {checkpoint.uri for checkpoint in found}


@pytest.mark.threat("T26")
def test_hashed_names_of_more_hosts_are_compared_by_size():
    """Digits of a hash count nothing: a file of them is no reason to raise, nor one to call a save complete."""
    stored = [
        StoredObject(f"checkpoint_{step}/{name}", size, MIDNIGHT)
        for step, hosts, size in ((1000, 2, 90), (2000, 2, 90), (3000, 4, 20))
        for host in range(hosts)
        for name in (
            "_METADATA",
            f"process_{host}/manifest.ocdbt",
            f"process_{host}/d/{step + host:x}".ljust(40, "7a"[host % 2]),
        )
    ]
    found = {checkpoint.step: checkpoint.missing for checkpoint in find_checkpoints(stored)}
    assert found == {1000: (), 2000: (), 3000: ("process_#/d/* (4 of 2)",)}
