"""Checkpoints in S3: torn saves, foreign files and long histories, as they lie there."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import ClientError

from rerail.aws import s3 as aws_s3
from rerail.aws.s3 import BATCH, S3Checkpoints
from rerail.model.checkpoints import Health, find_newest_step
from rerail.model.errors import BoundsExceeded, StateUnknown
from rerail.model.manifest_signature import make_signature
from tests.aws.places import make_bucket
from tests.fakes import KEY

URI = "s3://bucket/runs/gpt/"


@pytest.fixture
def s3():
    return make_bucket("bucket")


def put(s3, key: str, body: bytes | str = b"") -> None:
    s3.put_object(Bucket="bucket", Key=key, Body=body)


def manifest(step: int, files: dict[str, int], **changes) -> str:
    entries = [{"name": name, "bytes": size, "checksum": "xxh3_64:0"} for name, size in files.items()]
    table = {"schema": 1, "run": "gpt", "attempt": 1, "step": step, "saved_at": "2026-01-31T03:00:00Z"}
    return json.dumps({**table, "files": entries, "health": "clean", **changes})


def save(s3, step: int, *, prefix: str = "runs/gpt/", files=None, **changes) -> None:
    """A whole checkpoint, shards first and the manifest last."""
    files = files or {"rank-0.pt": 3, "rank-1.pt": 4}
    for name, size in files.items():
        put(s3, f"{prefix}step-{step:09d}/{name}", b"x" * size)
    put(s3, f"{prefix}step-{step:09d}/manifest.json", manifest(step, files, **changes))


def steps(uri: str = URI) -> list[int]:
    return [checkpoint.step for checkpoint in S3Checkpoints().list_checkpoints(uri)]


def test_checkpoints_are_listed_newest_first(s3):
    for step in (100, 60, 1000):
        save(s3, step)
    (newest, *_) = found = S3Checkpoints().list_checkpoints(URI)
    assert [checkpoint.step for checkpoint in found] == [1000, 100, 60]
    assert newest.uri == "s3://bucket/runs/gpt/step-000001000/"
    assert newest.is_whole and newest.health is Health.CLEAN


@pytest.mark.parametrize("uri", ["s3://bucket/runs/gpt", "s3://bucket/runs/gpt/", "s3://bucket/runs/gpt//"])
def test_a_folder_is_meant_however_it_is_written(s3, uri):
    save(s3, 60)
    save(s3, 99, prefix="runs/gpt-2/")
    assert steps(uri) == [60]


def test_both_ways_of_naming_a_folder_are_known(s3):
    """`step-<n>` is ours, `checkpoint-<n>` that of other libraries; anything else is no checkpoint."""
    save(s3, 60)
    for folder in ("checkpoint-80", "quarantine-90", "my-checkpoint-95", "checkpoint-x"):
        put(s3, f"runs/gpt/{folder}/model/__0_0.distcp", b"abc")
        put(s3, f"runs/gpt/{folder}/.metadata", b"abcd")
        files = {"model/__0_0.distcp": 3, ".metadata": 4}
        put(s3, f"runs/gpt/{folder}/manifest.json", manifest(80, files))
    assert steps() == [80, 60]
    assert S3Checkpoints().list_checkpoints(URI)[0].is_whole


@pytest.mark.parametrize("uri", ["s3://bucket", "s3://bucket/"])
def test_a_bucket_may_be_the_folder(s3, uri):
    save(s3, 60, prefix="")
    assert steps(uri) == [60]


@pytest.mark.parametrize("folder", ["run?lr=1", "run#2", "run%20x", "läufe"])
def test_a_key_is_no_url(s3, folder):
    """Characters that mean something in a URL are plain characters in a key."""
    save(s3, 60, prefix=f"{folder}/")
    assert steps(f"s3://bucket/{folder}/") == [60]


def test_a_torn_save_is_seen_and_not_resumed_from(s3):
    save(s3, 60)
    save(s3, 80)
    save(s3, 100)
    put(s3, "runs/gpt/step-000000080/rank-1.pt", b"x")
    s3.delete_object(Bucket="bucket", Key="runs/gpt/step-000000100/rank-0.pt")
    found = S3Checkpoints().list_checkpoints(URI)
    assert [checkpoint.missing for checkpoint in found] == [("rank-0.pt",), ("rank-1.pt",), ()]
    assert find_newest_step(found) == 60


def test_foreign_files_are_no_checkpoints(s3):
    """The uploader's marks, folders of other tools, and what only begins like a step are passed over."""
    save(s3, 60)
    put(s3, "runs/gpt/step-000000060/rank-0.pt.sagemaker-uploading")
    for key in (
        "manifest.json",
        "step-70",
        "latest/manifest.json",
        "epoch-3/manifest.json",
        "old/step-90/manifest.json",
    ):
        put(s3, f"runs/gpt/{key}", manifest(90, {"a": 0}))
    for folder in ("step-000000080.tmp", "step-000000080-backup", "step-", "step-x"):
        put(s3, f"runs/gpt/{folder}/a", b"")
        put(s3, f"runs/gpt/{folder}/manifest.json", manifest(80, {"a": 0}))
    assert steps() == [60]


@pytest.mark.parametrize("body", ["", b"\xff\xfe", manifest(80, {"a": 1}, schema=2)])
def test_a_manifest_that_cannot_be_believed_is_passed_over(s3, body):
    """It is left where it is, and the checkpoints beside it count."""
    save(s3, 60)
    put(s3, "runs/gpt/step-000000080/manifest.json", body)
    assert steps() == [60]


def test_of_a_long_history_only_the_newest_manifests_are_read(s3):
    """More steps than a page of the listing holds: every page is listed, and the newest few are opened."""
    for step in range(1, 51):
        save(s3, step, files={"rank-0.pt": 1})
    s3.meta.events.register("provide-client-params.s3.ListObjectsV2", page_of_seven)
    try:
        assert steps() == list(range(50, 50 - BATCH, -1))
        older = [checkpoint.step for checkpoint in S3Checkpoints().list_checkpoints(URI, upto=12)]
        assert older == list(range(12, 0, -1)), "what an operator rolls back to may be older than those"
    finally:
        s3.meta.events.unregister("provide-client-params.s3.ListObjectsV2", page_of_seven)


def test_where_all_of_the_newest_are_suspect_older_manifests_are_read(s3):
    """A loss that went wrong unseen spoils more saves than are read at first; the clean one before them is found."""
    for step in range(1, 2 * BATCH + 6):
        save(s3, step, files={"rank-0.pt": 1}, health="clean" if step <= 3 else "suspect")
    found = S3Checkpoints().list_checkpoints(URI)
    assert find_newest_step(found) == 3


def test_what_the_job_deletes_while_we_look_is_left_out(s3, monkeypatch):
    """A manifest that was listed and is gone blinds nobody to the others."""
    for step in (1, 2):
        save(s3, step)
    listed = aws_s3.FolderListing

    def then_deleted(bucket: str, prefix: str):
        found = listed(bucket, prefix)
        s3.delete_object(Bucket="bucket", Key="runs/gpt/step-000000002/manifest.json")
        return found

    monkeypatch.setattr(aws_s3, "FolderListing", then_deleted)
    assert steps() == [1]


def page_of_seven(params, **_):
    return {**params, "MaxKeys": 7}


def test_steps_are_compared_as_numbers(s3):
    for folder, step in (("step-9", 9), ("step-10", 10), ("step-000000008", 8)):
        put(s3, f"runs/gpt/{folder}/a", b"x")
        put(s3, f"runs/gpt/{folder}/manifest.json", manifest(step, {"a": 1}))
    assert steps() == [10, 9, 8]


def test_where_nothing_has_a_manifest_a_script_s_own_saves_are_found(s3):
    """By their layout, newest first, each as old as its newest file; what is not whole is seen and not resumed from."""
    for step in (80, 100):
        for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
            put(s3, f"runs/gpt/checkpoint-{step}/{name}", b"x")
    s3.delete_object(Bucket="bucket", Key="runs/gpt/checkpoint-100/trainer_state.json")
    newest, older = S3Checkpoints().list_checkpoints(URI)
    assert (newest.step, newest.missing[0], newest.layout) == (100, "trainer_state.json", "huggingface")
    assert (older.step, older.is_whole, older.attempt) == (80, True, 0)
    assert older.uri == "s3://bucket/runs/gpt/checkpoint-80/"
    assert abs(older.saved_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert find_newest_step([newest, older]) == 80
    save(s3, 60)
    assert steps() == [60, 100, 80]
    with_key = S3Checkpoints().list_checkpoints(URI, signing_key=KEY)
    assert [checkpoint.step for checkpoint in with_key] == [60], "an agent resumes from manifests alone"
    unproved = S3Checkpoints().list_checkpoints(URI, signing_key=KEY, signed_only=False)
    assert [checkpoint.step for checkpoint in unproved] == [60, 100, 80]


def test_the_newest_folders_of_each_name_are_listed(s3, monkeypatch):
    """In a large folder, manifests that another run left at higher steps do not hide what the script saves now."""
    monkeypatch.setattr("rerail.aws.folder_listing.WHOLE_OBJECTS", 10)
    s3.meta.events.register("provide-client-params.s3.ListObjectsV2", page_of_seven)
    try:
        for step in range(1000, 1000 + 2 * BATCH):
            save(s3, step, files={"rank-0.pt": 1})
        for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
            put(s3, f"runs/gpt/checkpoint-80/{name}", b"x")
        assert 80 in steps()
    finally:
        s3.meta.events.unregister("provide-client-params.s3.ListObjectsV2", page_of_seven)


def test_unsigned_manifests_do_not_hide_a_signed_one(s3):
    table = json.loads(manifest(100, {"rank-0.pt": 1}))
    save(s3, 100, files={"rank-0.pt": 1}, signature=make_signature(table, key=KEY))
    for step in range(1000, 1000 + BATCH + 5):
        save(s3, step, files={"rank-0.pt": 1}, signature="0" * 64)
    found = S3Checkpoints().list_checkpoints(URI, signing_key=KEY)
    assert [checkpoint.step for checkpoint in found if checkpoint.is_signed] == [100]
    assert not any(checkpoint.is_signed for checkpoint in S3Checkpoints().list_checkpoints(URI, signing_key="f" * 64))


def test_a_number_that_is_no_step_is_seen_as_a_file_without_one(s3):
    """Epochs are saves, and never resumed from by Rerail's choice; a file with a step comes before them."""
    for name in ("epoch_1.pth", "epoch_2.pth"):
        put(s3, f"runs/gpt/{name}", b"x")
    found = S3Checkpoints().list_checkpoints(URI)
    assert {(save.step, save.layout, save.is_whole) for save in found} == {(0, "file", False)}
    assert len(S3Checkpoints().list_saves(URI).files) == 2
    put(s3, "runs/gpt/step_100.pt", b"x")
    (dated,) = S3Checkpoints().list_checkpoints(URI)
    assert (dated.uri, dated.step, dated.layout, dated.is_whole) == (
        "s3://bucket/runs/gpt/step_100.pt",
        100,
        "steps",
        True,
    )


def test_a_pointer_is_read_where_it_decides(s3):
    """A first save of DeepSpeed's counts when `latest` names it."""
    put(s3, "runs/gpt/global_step500/mp_rank_00_model_states.pt", b"x")
    assert not S3Checkpoints().list_checkpoints(URI)[0].is_whole
    put(s3, "runs/gpt/latest", b"global_step500")
    assert S3Checkpoints().list_checkpoints(URI)[0].is_whole
    put(s3, "runs/gpt/latest", b"\xff" * 100_000)
    assert not S3Checkpoints().list_checkpoints(URI)[0].is_whole


def test_a_bucket_that_cannot_be_read_blinds(s3):
    """Not knowing is not the same as knowing that there is nothing."""
    with pytest.raises(StateUnknown, match="checkpoints under s3://elsewhere/x: .*NoSuchBucket"):
        S3Checkpoints().list_checkpoints("s3://elsewhere/x")


@pytest.mark.threat("T26")
@pytest.mark.parametrize(
    "code", ["InvalidObjectState", "InvalidRequest", "KMS.DisabledException", "AccessDenied", "403"]
)
def test_an_object_that_its_writer_made_unreadable_hides_no_other(s3, monkeypatch, code):
    """Archived, encrypted or denied, it is passed over; if nothing else is there, a person is needed, or the role."""
    read, forged = s3.get_object, ("step-000000999/manifest.json", "latest")

    def get_object(**place):
        if place["Key"].endswith(forged):
            raise ClientError({"Error": {"Code": code, "Message": "kms:Decrypt" * (code != "403")}}, "GetObject")
        return read(**place)

    monkeypatch.setattr(s3, "get_object", get_object)
    put(s3, "runs/gpt/global_step5/model.pt")
    for alone in forged:
        put(s3, f"runs/gpt/{alone}", b"{}")
        with pytest.raises(StateUnknown, match=f"{alone} cannot be read: it is (archived|encrypted)|403") as refused:
            steps()
        assert code == "403" or (isinstance(refused.value, BoundsExceeded) and not refused.value.may_pass)
        s3.delete_object(Bucket="bucket", Key=f"runs/gpt/{alone}")
    for name in forged:
        put(s3, f"runs/gpt/{name}", b"{}")
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        put(s3, f"runs/gpt/checkpoint-7/{name}", b"x")
    assert 7 in steps(), "a script's own"
    s3.delete_object(Bucket="bucket", Key=f"runs/gpt/{forged[0]}")
    assert 7 in steps(), "without manifests too"
    save(s3, 80)
    assert steps()[0] == 80


def test_a_manifest_is_read_once_as_long_as_nothing_beside_it_changes(s3):
    """A run that proves its progress is looked at each minute; a file that is gone is seen all the same."""
    read: list[str] = []
    s3.meta.events.register("provide-client-params.s3.GetObject", lambda params, **_: read.append(params["Key"]))
    save(s3, 100)
    checkpoints = S3Checkpoints()
    assert checkpoints.list_checkpoints(URI) == checkpoints.list_checkpoints(URI)
    assert len(read) == 1
    s3.delete_object(Bucket="bucket", Key="runs/gpt/step-000000100/rank-1.pt")
    assert not checkpoints.list_checkpoints(URI)[0].is_whole


def test_save_times_are_read_from_a_listing_alone(s3):
    """No manifest is read for it, and nothing counts that is no save of ours."""
    save(s3, 100)
    save(s3, 200)
    put(s3, "runs/gpt/logs/manifest.json")
    put(s3, "runs/gpt/step-000000300/model.pt")
    read: list[str] = []
    s3.meta.events.register("provide-client-params.s3.GetObject", lambda params, **_: read.append(params["Key"]))
    assert (len(S3Checkpoints().list_saves(URI).times), read) == (2, [])


def test_save_times_include_checkpoints_without_manifests(s3):
    """Those of their newest files."""
    for step in (80, 100):
        for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
            put(s3, f"runs/gpt/checkpoint-{step}/{name}", b"x")
    assert len(S3Checkpoints().list_saves(URI).times) == 2
