"""Checkpoints in S3, on the local AWS: the manifest comes last, and no name is used twice."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from rerail_agent.checkpoints import Saver, open_store
from rerail_agent.checkpoints.manifest import METADATA
from rerail_agent.checkpoints.s3_store import S3Store
from tests.agent.checkpoints.ranks import LoggedLines, Ranks, manifest, same, settle, state
from tests.agent.checkpoints.test_several_ranks import large

pytestmark = pytest.mark.slow

pytest.importorskip("s3torchconnector")
ROOT = Path(__file__).resolve().parents[3]
READY_WITHIN_S = 120


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An S3 client of a local AWS that is there for this module, with the environment that training jobs have."""
    home = tmp_path_factory.mktemp("aws")
    command = [sys.executable, "-m", "local.emulator", "--state", str(home), "--with-parent"]
    emulator = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while not (home / "ready.json").exists():
            assert emulator.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        endpoint = json.loads((home / "ready.json").read_text())["endpoint"]
        names = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "000000000000", "AWS_SECRET_ACCESS_KEY": "local"}
        with pytest.MonkeyPatch.context() as patched:
            for name, value in (names | {"AWS_ENDPOINT_URL": endpoint}).items():
                patched.setenv(name, value)
            patched.delenv("AWS_PROFILE", raising=False)
            # boto3.client would use the default session, which may have the credentials of an earlier test.
            yield boto3.Session(region_name="us-east-1").client("s3")
    finally:
        emulator.terminate()
        emulator.wait()


@pytest.fixture
def bucket(s3: Any) -> str:
    name = f"bucket-{os.urandom(4).hex()}"
    s3.create_bucket(Bucket=name)
    return name


def keys(s3: Any, bucket: str) -> list[str]:
    return [item["Key"] for item in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def save(saver: Saver, step: int, **changes: Any) -> Any:
    saver.save(state(step), manifest(step, **changes))
    [ended] = saver.wait(120)
    return ended


def test_a_state_comes_back_from_s3(s3: Any, bucket: str) -> None:
    """Three ranks write it directly, another number of ranks reads it; it outlives the machine at once."""
    uri = f"s3://{bucket}/runs/a b"
    with Ranks([uri] * 3) as three:
        for step in (10, 20):
            [ended] = three.save(step, large)[0]
            assert (ended.error, ended.durability) == (None, "remote")
            assert ended.path == f"{uri}/step-{step:09d}/"
        assert three.restored(large) == [(20, True)] * 3
        assert three.all(lambda saver, rank: saver.save(large(20, rank), manifest(20))) == [False] * 3
    with Ranks([uri] * 2) as two:
        assert [step for step, _ in two.restored(large)] == [20, 20]
    last = sorted(s3.list_objects_v2(Bucket=bucket)["Contents"], key=lambda item: item["LastModified"])[-1]
    assert last["Key"] == "runs/a b/step-000000020/manifest.json"


def test_damage_in_s3_falls_back(s3: Any, bucket: str) -> None:
    """A flipped bit, a missing object and a missing manifest: never restored, and a replay makes room."""
    logged = LoggedLines()
    saver = Saver(open_store(f"s3://{bucket}"), log=logged.append)
    for step in (10, 20, 30, 40):
        assert save(saver, step).error is None
    shards = {int(key[5:14]): key for key in keys(s3, bucket) if key.endswith(".distcp")}
    body = bytearray(s3.get_object(Bucket=bucket, Key=shards[20])["Body"].read())
    body[len(body) // 2] ^= 1
    s3.put_object(Bucket=bucket, Key=shards[20], Body=bytes(body))
    s3.delete_object(Bucket=bucket, Key=shards[30])
    s3.delete_object(Bucket=bucket, Key="step-000000040/manifest.json")
    assert saver.newest() == 10
    assert [line[:36] for line in logged] == [f"checkpoint step-0000000{step} is damaged" for step in (30, 20)]
    later = Saver(saver.place)
    for step in (20, 30, 40):
        assert save(later, step, attempt=2).error is None
    found = state(99)
    assert later.load(found, later.newest()).attempt == 2
    assert same(found, state(40))
    used = [key for key in keys(s3, bucket) if key.endswith(".distcp")]
    assert not set(used) & {shards[20], shards[30], shards[40]}  # names of its own
    saver.close()
    later.close()


@pytest.mark.parametrize("moment", ["after it", "before its index", "before its manifest"])
def test_of_two_jobs_that_save_one_step_one_has_a_checkpoint(
    s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Both began when the step was free; the index has the same name in both. The other's save fails, and is told."""
    one, other = (Saver(open_store(f"s3://{bucket}/a"), log=lambda line: None) for _ in range(2))
    first = {"before its index": "_write_once", "before its manifest": "write"}.get(moment)
    for saver in (one, other):
        saver.prepare(state(1))
        assert saver._writer is not None
        saver._writer.end()  # so that the commit runs in this process
    ended: list[Any] = []
    if first:
        original = getattr(S3Store, first)

        def interrupted(place: S3Store, step: int, file: str, *rest: Any, **options: Any) -> Any:
            if not ended and file in (METADATA, "manifest.json"):
                ended.append(None)
                ended[0] = save(other, 10, attempt=2)
            return original(place, step, file, *rest, **options)

        monkeypatch.setattr(S3Store, first, interrupted)
    errors = [save(one, 10).error, (ended[0] if ended else save(other, 10, attempt=2)).error]
    assert sum(error is None for error in errors) == 1, errors
    assert one.newest() == other.newest() == 10
    names = {key.rpartition("/")[2] for key in keys(s3, bucket)}
    assert len(names) == 3, names  # the other has left nothing
    one.close()
    other.close()


def test_a_checkpoint_whose_files_another_job_deletes_meanwhile_is_a_failure(
    s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To that job they are what a killed save has left."""
    saver = Saver(open_store(f"s3://{bucket}/a"))
    saver.prepare(state(1))
    assert saver._writer is not None
    saver._writer.end()
    original = S3Store._write_once
    monkeypatch.setattr(S3Store, "_write_once", lambda place, *given: place.drop(10) or original(place, *given))
    assert "was deleted or replaced meanwhile: another job saves to" in save(saver, 10).error
    assert (saver.newest(), keys(s3, bucket)) == (0, [])
    saver.close()


def test_pruning_in_s3(s3: Any, bucket: str) -> None:
    """Torn and outdated ones go, quarantine and strangers' objects stay; archived ones are passed over."""
    saver = Saver(open_store(f"s3://{bucket}/a"))
    for step in (1, 99):
        s3.put_object(Bucket=bucket, Key=f"a/step-{step:09d}/manifest.json", Body=b"{}", StorageClass="GLACIER")
    for key in ("step-000000005/__0_1.distcp", "notes.txt", "quarantine/a1-step-000000001/manifest.json"):
        s3.put_object(Bucket=bucket, Key=f"a/{key}", Body=b"{}")
    saver.prune(keep=1, doublings=0)
    for step in (10, 20):
        assert save(saver, step).error is None
    deadline = time.monotonic() + READY_WITHIN_S
    left = {"notes.txt", "quarantine", *(f"step-{step:09d}" for step in (1, 20, 99))}
    while (folders := {key.split("/")[1] for key in keys(s3, bucket)}) != left:
        assert time.monotonic() < deadline, folders
        time.sleep(0.05)
    saver.quarantine(after=20, tainted=lambda manifest: True)
    assert saver.newest() == 20
    saver.close()


def refuse_to_copy(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """Refuse copies of objects with this end of their names, as S3 does; the local AWS copies them."""
    copy = S3Store._copy

    def refuse(place: S3Store, source: str, target: str, size: int) -> None:
        if source.endswith(end):
            raise OSError("S3: Client error: The operation is not valid for the object's storage class")
        copy(place, source, target, size)

    monkeypatch.setattr(S3Store, "_copy", refuse)


@pytest.mark.threat("T26")
def test_an_object_that_cannot_be_copied_holds_up_no_rollback(
    s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer has archived it, or encrypted it with another key: it stays, and the checkpoint does not count.

    It is a part of what was moved, so that neither retention nor another save of the step deletes it.
    """
    refuse_to_copy(monkeypatch, "archived")
    log: list[str] = []
    saver = Saver(open_store(f"s3://{bucket}/a"), log=log.append)
    for step in (10, 20):
        save(saver, step)
    left = {f"a/step-000000020/archived{end}" for end in ("", ".left")}
    s3.put_object(Bucket=bucket, Key="a/step-000000020/archived", Body=b"x")
    for attempt in (1, 2):
        saver.quarantine(after=10, tainted=lambda found: True)
        assert saver.newest() == 10
        assert {key for key in keys(s3, bucket) if "a/step-000000020" in key} == left
        assert f"a/quarantine/a{attempt}-step-000000020/manifest.json" in keys(s3, bucket)
        assert log[-1].endswith(f"a{attempt}-step-000000020, without 1 of its objects, which S3 does not copy")
        assert save(saver, 20, attempt=2).error is None
    later = Saver(open_store(f"s3://{bucket}/a"))  # it finds them when it starts
    later.prune(keep=1, doublings=0)
    for step in (30, 40):
        assert save(later, step, attempt=2).error is None
    later.close()
    assert settle(lambda: {key for key in keys(s3, bucket) if "a/step-000000020" in key} == left)
    saver.close()


@pytest.mark.threat("T26")
def test_an_index_that_cannot_be_copied_is_not_written_over(
    s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the same name in each checkpoint: another save of the step fails, and the next step is saved."""
    refuse_to_copy(monkeypatch, METADATA)
    saver = Saver(open_store(f"s3://{bucket}/a"))
    for step in (10, 20):
        save(saver, step)
    index = s3.get_object(Bucket=bucket, Key=f"a/step-000000020/{METADATA}")["ETag"]
    saver.quarantine(after=10, tainted=lambda found: True)
    assert "is a part of a checkpoint in quarantine" in save(saver, 20, attempt=2, reason="emergency").error
    assert s3.get_object(Bucket=bucket, Key=f"a/step-000000020/{METADATA}")["ETag"] == index
    assert save(saver, 30, attempt=2).error is None
    saver.close()


@pytest.mark.threat("T26")
def test_names_that_others_take_in_quarantine_slow_no_rollback(s3: Any, bucket: str) -> None:
    """They could take thousands of numbers, each of which costs a request."""
    saver = Saver(open_store(f"s3://{bucket}/a"))
    for step in (10, 20):
        save(saver, step)
    for end in ("", *(f"-{number}" for number in range(2, 21))):
        s3.put_object(Bucket=bucket, Key=f"a/quarantine/a1-step-000000020{end}/manifest.json", Body=b"{}")
    saver.quarantine(after=10, tainted=lambda found: True)
    assert saver.newest() == 10
    moved = {key.split("/")[2] for key in keys(s3, bucket) if "quarantine" in key and key.endswith(".distcp")}
    assert [len(name) for name in moved] == [len(f"a1-step-000000020-{64 * 'f'}")]
    saver.close()


@pytest.mark.parametrize("end", ["manifest.json", ""])
def test_a_checkpoint_whose_manifest_cannot_be_copied_stays_whole(
    s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It still counts, so it must not be reported as moved."""
    saver = Saver(open_store(f"s3://{bucket}/a"))
    for step in (10, 20):
        save(saver, step)
    before = [key for key in keys(s3, bucket) if "quarantine" not in key]
    refuse_to_copy(monkeypatch, end)
    with pytest.raises(OSError, match="does not copy the manifest of a/step-000000020/; nothing was deleted"):
        saver.quarantine(after=10, tainted=lambda found: True)
    assert [key for key in keys(s3, bucket) if "quarantine" not in key] == before
    saver.close()


@pytest.mark.threat("T18")
def test_what_others_put_in_quarantine_is_not_taken_for_a_copy(
    s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any of its requests and begun again, it ends with one whole copy, and no original that counts.

    Objects of the same sizes, without a manifest, look like a copy that was begun.
    """
    saver = Saver(open_store(f"s3://{bucket}/a"))
    for step in (10, 20):
        save(saver, step)
    before = {
        key.rpartition("/")[2]: s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        for key in keys(s3, bucket)
        if "step-000000020" in key
    }
    for name in before.keys() - {"manifest.json"}:
        s3.put_object(Bucket=bucket, Key=f"a/quarantine/a1-step-000000020/{name}", Body=bytes(len(before[name])))
    for moment in range(20):
        left = [moment]

        def deadly(name: str, left: list[int] = left) -> Any:
            original = getattr(S3Store, name)

            def call(*args: Any) -> Any:
                if left[0] == 0:
                    raise KeyboardInterrupt
                left[0] -= 1
                return original(*args)

            return call

        with monkeypatch.context() as patched:
            for name in ("_copy", "_sizes", "_content"):
                patched.setattr(S3Store, name, deadly(name))
            try:
                saver.quarantine(after=10, tainted=lambda found: True)
                survived = True
            except KeyboardInterrupt:
                survived = False
        if survived:
            break
    assert survived
    assert saver.newest() == 10
    moved = {key.rpartition("/"): key for key in keys(s3, bucket) if "quarantine" in key}
    assert {folder for folder, _, _ in moved} == {"a/quarantine/a1-step-000000020"}
    assert {name: s3.get_object(Bucket=bucket, Key=key)["Body"].read() for (_, _, name), key in moved.items()} == before
    saver.close()


@pytest.mark.threat("T26")
def test_an_empty_object_is_a_damaged_checkpoint(s3: Any, bucket: str) -> None:
    """S3 refuses any range of it: a manifest or a shard that others have emptied must keep no job from starting."""
    saver = Saver(open_store(f"s3://{bucket}/run"), log=lambda line: None)
    for step in (10, 20):
        assert save(saver, step).error is None
    shard = next(key for key in keys(s3, bucket) if key.startswith("run/step-000000020/__"))
    for key in (shard, "run/step-000000030/manifest.json"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    saver.close()
    successor = Saver(open_store(f"s3://{bucket}/run"), log=lambda line: None)
    assert successor.newest() == 10
    assert save(successor, 30).error is None
    assert successor.newest() == 30
    successor.close()
