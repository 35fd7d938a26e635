"""Setting aside in S3: whatever dies, and when, nothing is lost, nothing tainted is left, and repeating mends it."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto.s3 import models

from rerail.aws import quarantine
from rerail.aws.clients import client
from rerail.aws.quarantine import ObjectMover, Sizes
from rerail.aws.s3 import S3Checkpoints
from rerail.decisions.quarantine import PLACE, QuarantineMove
from rerail.model.actions import CopyCheckpoint, QuarantineCheckpoints
from rerail.model.errors import ActionUnfinished, CallFailed, QuarantineFailed, RerailError, Throttled
from rerail.model.file_copies import FileCopy
from tests.aws.places import fill, make_bucket
from tests.crashes import Crash, FaultInjector
from tests.raising import raising

URI, FOLDER = "s3://bucket/runs/gpt/", "runs/gpt/"
TRAINER = ("config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json")
# Stands for a MiB: a part of an upload is 5 MiB at least, but for the last one.
KiB = 1 << 10


@pytest.fixture
def s3(monkeypatch):
    monkeypatch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", 5 * KiB)
    return make_bucket("bucket")


def put(s3: Any, key: str, body: bytes | str = b"x") -> None:
    s3.put_object(Bucket="bucket", Key=f"{FOLDER}{key}", Body=body)


def trainer_saves(*steps: int) -> None:
    for step in steps:
        for name in TRAINER:
            fill("bucket", [f"{FOLDER}checkpoint-{step}/{name}"], f"{name} of {step}".encode())


def action(resume_step: int | None = 400, **changes: Any) -> QuarantineCheckpoints:
    now = datetime.now(UTC)
    times = {"saved_before": now + timedelta(minutes=1), "saved_after": now - timedelta(days=1)}
    facts = {"run": "gpt", "attempt": 1, "uri": URI, "resume_step": resume_step, **times, **changes}
    return QuarantineCheckpoints(**facts)


def allow() -> None:
    """The run may move what is in its folder."""


def contents(s3: Any) -> dict[str, bytes]:
    """Return the bytes of each object; those that one client has read under an ETag are not read again."""
    listed = s3.list_objects_v2(Bucket="bucket").get("Contents", [])
    read: dict[str, bytes] = _read_by.setdefault(s3, {})
    for item in listed:
        if item["ETag"] not in read:
            read[item["ETag"]] = s3.get_object(Bucket="bucket", Key=item["Key"])["Body"].read()
    return {item["Key"]: read[item["ETag"]] for item in listed}


# By client, the bytes of each ETag: the fake S3 encrypts nothing, so equal ETags are equal bytes.
_read_by: WeakKeyDictionary[Any, dict[str, bytes]] = WeakKeyDictionary()


def left(s3: Any) -> set[str]:
    """What the next job would be given."""
    return {key.removeprefix(FOLDER) for key in contents(s3) if key.startswith(FOLDER)}


def quarantined(s3: Any, attempt: int = 1) -> dict[str, bytes]:
    place = f"{PLACE}gpt/a{attempt:03d}/"
    return {key.removeprefix(place): body for key, body in contents(s3).items() if key.startswith(place)}


def patient_checkpoints() -> S3Checkpoints:
    """Move whatever there is in one turn, also on a slow machine."""
    return S3Checkpoints(lambda bucket: ObjectMover(bucket, seconds=3600.0))


def names(*steps: int) -> set[str]:
    return {f"checkpoint-{step}/{name}" for step in steps for name in TRAINER}


def test_what_was_saved_after_the_step_to_resume_from_is_quarantined(s3):
    trainer_saves(300, 400, 500, 600)
    put(s3, "runs/events.out.tfevents.1", b"board")
    before = contents(s3)
    patient_checkpoints().quarantine(action(), allow)
    assert left(s3) == names(300, 400) | {"runs/events.out.tfevents.1"}
    assert quarantined(s3) == {name: before[f"{FOLDER}{name}"] for name in names(500, 600)}
    after = contents(s3)
    patient_checkpoints().quarantine(action(), allow)
    assert contents(s3) == after, "to repeat it changes nothing"


def test_the_tags_of_what_is_moved_or_replaced_are_kept(s3, monkeypatch):
    """Permissions and expiry may depend on them. Nothing is deleted before the pointer names what stays."""
    put(s3, "zero/global_step400/model.pt")
    put(s3, "zero/global_step500/model.pt")
    put(s3, "zero/latest", "global_step500")
    upload_in_parts(s3, "big/epoch=1-step=600.ckpt", b"a" * 5 * KiB, b"b")
    team = [{"Key": "team", "Value": "a + b=c"}]
    for key in contents(s3):
        s3.put_object_tagging(Bucket="bucket", Key=key, Tagging={"TagSet": team})
    named = []

    class Reversed(ObjectMover):
        def move(self, found: Sequence[QuarantineMove]) -> None:
            ObjectMover.move(self, found[::-1])

        def _move(self, move: QuarantineMove) -> None:
            ObjectMover._move(self, move)
            named.append(contents(s3)[f"{FOLDER}zero/latest"])

    monkeypatch.setattr(quarantine, "MOVERS", 1)
    S3Checkpoints(lambda bucket: Reversed(bucket, seconds=3600.0)).quarantine(action(), allow)
    assert len(quarantined(s3)) == 3 and set(named) == {b"global_step400"}
    assert contents(s3)[f"{FOLDER}zero/latest"] == b"global_step400"
    for key in contents(s3):
        assert s3.get_object_tagging(Bucket="bucket", Key=key)["TagSet"] == team, key


def test_checkpoints_with_a_manifest_are_left_to_their_script(s3):
    """It moves them away by itself, and ignores one whose manifest is still to come."""
    trainer_saves(400, 500)
    for step in (400, 500):
        put(s3, f"checkpoint-{step}/manifest.json", b"{}")
    put(s3, "checkpoint-600/model.safetensors")
    before = left(s3)
    patient_checkpoints().quarantine(action(), allow)
    assert left(s3) == before


def test_a_manifest_elsewhere_keeps_no_checkpoint_from_the_quarantine(s3):
    """Another run, or a stranger, left it there: the script resumes from its own files all the same."""
    trainer_saves(300, 400, 500)
    put(s3, "step-000000001/manifest.json", b"{}")
    put(s3, "checkpoint-400/manifest.json", b"{}")
    patient_checkpoints().quarantine(action(), allow)
    assert left(s3) == names(300, 400) | {"step-000000001/manifest.json", "checkpoint-400/manifest.json"}


def test_nothing_is_written_over_what_another_has_quarantined(s3):
    """What lies there already and is not the same stays, and so does the source."""
    trainer_saves(400, 500)
    s3.put_object(Bucket="bucket", Key=f"{PLACE}gpt/a001/checkpoint-500/optimizer.pt", Body=b"older evidence")
    with pytest.raises(QuarantineFailed, match=r"is not the same as .*optimizer\.pt"):
        patient_checkpoints().quarantine(action(), allow)
    assert quarantined(s3)["checkpoint-500/optimizer.pt"] == b"older evidence"
    assert "checkpoint-500/optimizer.pt" in left(s3)


@pytest.mark.threat("T26")
def test_a_pointer_that_cannot_be_read_holds_only_a_rollback(s3, monkeypatch):
    """Refuse to move what a pointer may name if it cannot be read; move everything else."""
    for step in (400, 500):
        put(s3, f"global_step{step}/model.pt")
    put(s3, "latest", "global_step500")
    with monkeypatch.context() as denied:
        denied.setattr(s3, "get_object", raising(refused("AccessDenied")()))
        patient_checkpoints().quarantine(action(500), allow)
        with pytest.raises(QuarantineFailed, match="latest cannot be read: .*AccessDenied"):
            patient_checkpoints().quarantine(action(400), allow)
    assert len(left(s3)) == 3 and not quarantined(s3)


@pytest.mark.threat("T26")
def test_a_name_too_long_for_quarantine_is_moved_under_a_shorter_one(s3):
    """S3 takes 1,024 bytes, of which the quarantine's folder needs more than the run's own."""
    trainer_saves(400, 500)
    put(s3, f"checkpoint-500/{'x' * 990}", b"long")
    patient_checkpoints().quarantine(action(), allow)
    assert left(s3) == names(400)
    assert b"long" in quarantined(s3).values() and max(map(len, contents(s3))) < 990


@pytest.mark.parametrize("lying", [b"torn", b"other evidence", b"newer", None])
def test_what_is_replaced_is_kept_whatever_lies_in_quarantine_already(s3, lying):
    """An earlier version of the same name, or an object of others: each version has a place of its own."""
    put(s3, "ckpt.pt", b"sound")
    sound = patient_checkpoints().copy_file(copied(s3), allow)
    put(s3, "ckpt.pt", b"newer")
    newer = s3.head_object(Bucket="bucket", Key=f"{FOLDER}ckpt.pt")["ETag"].strip('"')
    if lying is not None:
        s3.put_object(Bucket="bucket", Key=f"{PLACE}gpt/a001/ckpt.pt", Body=lying)
    patient_checkpoints().quarantine(restored(sound), allow)
    assert contents(s3)[f"{FOLDER}ckpt.pt"] == b"sound"
    place = "ckpt.pt" if lying in (b"newer", None) else f"ckpt.pt.{newer}"
    assert quarantined(s3) == {"ckpt.pt": lying or b"newer", place: b"newer"}
    put(s3, "ckpt.pt", b"newer")
    s3.put_object(Bucket="bucket", Key=f"{PLACE}gpt/a001/ckpt.pt", Body=b"other")
    s3.put_object(Bucket="bucket", Key=f"{PLACE}gpt/a001/ckpt.pt.{newer}", Body=b"others'")
    with pytest.raises(QuarantineFailed, match="is not the same as"):
        patient_checkpoints().quarantine(restored(sound), allow)
    assert contents(s3)[f"{FOLDER}ckpt.pt"] == b"newer"


# ---------------------------------------------------------------------- large objects


def upload_in_parts(s3: Any, key: str, *parts: bytes) -> None:
    place = {"Bucket": "bucket", "Key": f"{FOLDER}{key}"}
    upload = s3.create_multipart_upload(**place, Metadata={"by": "me"}, ContentType="a/b")["UploadId"]
    done = [
        {"PartNumber": n, "ETag": s3.upload_part(**place, UploadId=upload, PartNumber=n, Body=part)["ETag"]}
        for n, part in enumerate(parts, start=1)
    ]
    s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": done})


def small_parts(**facts: Any) -> Callable[[str], ObjectMover]:
    """As for objects above 5 GiB, in small."""
    return lambda bucket: ObjectMover(bucket, sizes=Sizes(whole=6 * KiB, part=5 * KiB), **{"seconds": 3600.0, **facts})


def test_a_large_object_is_copied_in_parts(s3):
    """With what it knows of itself, and its bytes."""
    put(s3, "epoch=0-step=400.ckpt")
    body = bytes(range(256)) * 48  # 12 KiB
    s3.put_object(Bucket="bucket", Key=f"{FOLDER}epoch=0-step=500.ckpt", Body=body, Metadata={"by": "me"})
    put(s3, "epoch=0-step=600.ckpt", body[: 6 * KiB])
    upload_in_parts(s3, "epoch=0-step=700.ckpt", body)
    S3Checkpoints(small_parts()).quarantine(action(), allow)
    key = f"{PLACE}gpt/a001/epoch=0-step=500.ckpt"
    head = s3.head_object(Bucket="bucket", Key=key)
    assert head["Metadata"] == {"by": "me"}
    heads = [s3.head_object(Bucket="bucket", Key=key.replace("500", step)) for step in ("500", "600", "700")]
    assert [head["ETag"].strip('"').partition("-")[2] for head in heads] == ["3", "", "3"]
    bodies = {"500": body, "600": body[: 6 * KiB], "700": body}
    assert quarantined(s3) == {f"epoch=0-step={step}.ckpt": kept for step, kept in bodies.items()}
    assert left(s3) == {"epoch=0-step=400.ckpt"}


def test_what_was_uploaded_in_parts_is_copied_in_the_same_parts(s3):
    """Then its ETag says that it is the same."""
    upload_in_parts(s3, "epoch=0-step=500.ckpt", b"a" * 7 * KiB, b"b" * 7 * KiB, b"c")
    before = s3.head_object(Bucket="bucket", Key=f"{FOLDER}epoch=0-step=500.ckpt")
    patient_checkpoints().quarantine(action(), allow)
    after = s3.head_object(Bucket="bucket", Key=f"{PLACE}gpt/a001/epoch=0-step=500.ckpt")
    assert [after[name] for name in ("ETag", "Metadata", "ContentType")] == [
        before[name] for name in ("ETag", "Metadata", "ContentType")
    ]


def test_an_empty_object_that_was_uploaded_in_parts_is_moved_too(s3):
    trainer_saves(400, 500)
    upload_in_parts(s3, "checkpoint-500/empty", b"")
    patient_checkpoints().quarantine(action(), allow)
    assert quarantined(s3)["checkpoint-500/empty"] == b""
    assert left(s3) == names(400)


class Ticking:
    """A clock that goes on by a second each time it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_one_object_that_takes_longer_than_a_turn_is_moved_in_several(s3):
    """Parts that were copied are not copied again."""
    body = bytes(range(256)) * 128  # 32 KiB, seven parts
    put(s3, "epoch=0-step=500.ckpt", body)
    time.sleep(1.0)  # S3 counts seconds: a part must be younger than the object
    copied: list[Any] = []
    s3.meta.events.register("provide-client-params.s3.UploadPartCopy", lambda params, **_: copied.append(params))
    for turns in itertools.count(1):
        mover = small_parts(seconds=4.5, clock=Ticking())
        try:
            S3Checkpoints(mover).quarantine(action(), allow)
            break
        except ActionUnfinished:
            assert "epoch=0-step=500.ckpt" in left(s3), "it is there until its copy is"
            assert turns < 20
    s3.meta.events.unregister("provide-client-params.s3.UploadPartCopy")
    assert turns > 1
    assert sorted(params["PartNumber"] for params in copied) == [1, 2, 3, 4, 5, 6, 7]
    assert quarantined(s3) == {"epoch=0-step=500.ckpt": body}
    assert left(s3) == set()
    assert not s3.list_multipart_uploads(Bucket="bucket").get("Uploads")


def test_many_objects_take_as_many_turns_as_they_need(s3):
    trainer_saves(400, *range(500, 520))
    turns = 0
    while True:
        turns += 1
        try:
            S3Checkpoints(lambda bucket: ObjectMover(bucket, seconds=33.5, clock=Ticking())).quarantine(action(), allow)
            break
        except ActionUnfinished:
            assert turns < 10
    assert turns in (3, 4)
    assert left(s3) == names(400)
    assert set(quarantined(s3)) == names(*range(500, 520))


# ---------------------------------------------------------------------- what goes wrong


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[FaultInjector], None]]:
    """Calls in one order, by way of a injector."""
    monkeypatch.setattr(quarantine, "MOVERS", 1)
    yield lambda injector: monkeypatch.setattr(quarantine, "client", lambda name: injector.wrap(client(name)))


def a_rollback(s3: Any) -> dict[str, bytes]:
    """A folder with all that there can be: two layouts, their pointers, a copy, and an object in parts."""
    for step in (400, 500):
        put(s3, f"zero/global_step{step}/model.pt", f"{step}")
        put(s3, f"lit/epoch=0-step={step}.ckpt", f"state of {step}")
    put(s3, "zero/latest", "global_step500")
    put(s3, "lit/last.ckpt", "state of 500")
    upload_in_parts(s3, "big/epoch=1-step=600.ckpt", b"a" * 5 * KiB, b"b" * 5 * KiB, b"c")
    return contents(s3)


def until_done(tries: int = 4) -> int:
    for number in range(1, tries + 1):
        try:
            patient_checkpoints().quarantine(action(), allow)
        except (Crash, RerailError):
            continue
        return number
    raise AssertionError("one fault must not fail it for ever")


def is_as_it_must_be(s3: Any, before: dict[str, bytes]) -> None:
    tainted = ("big/epoch=1-step=600.ckpt", "lit/epoch=0-step=500.ckpt", "zero/global_step500/model.pt")
    replaced = ("lit/last.ckpt", "zero/latest")
    assert quarantined(s3) == {name: before[f"{FOLDER}{name}"] for name in (*tainted, *replaced)}
    clean = {key: body for key, body in before.items() if not key.endswith((*tainted, *replaced))}
    now = {f"{FOLDER}zero/latest": b"global_step400", f"{FOLDER}lit/last.ckpt": b"state of 400"}
    assert {key: body for key, body in contents(s3).items() if key.startswith(FOLDER)} == clean | now


@pytest.mark.slow
def test_a_crash_at_any_call_loses_nothing_and_leaves_nothing_tainted(s3, one_at_a_time):
    """A crash after a call is one before the next; at no moment is an object without its bytes in one of the places."""
    one_at_a_time(calm := FaultInjector())
    a_rollback(s3)
    assert until_done() == 1
    for call in range(1, calm.calls + 2):
        for key in contents(s3):
            s3.delete_object(Bucket="bucket", Key=key)
        before = a_rollback(s3)
        one_at_a_time(FaultInjector(min(call, calm.calls), after=call > calm.calls))
        with pytest.raises(Crash):
            patient_checkpoints().quarantine(action(), allow)
        everything = set(contents(s3).values())
        assert set(before.values()) <= everything, f"call {call} has lost something"
        one_at_a_time(FaultInjector())
        assert until_done() <= 2
        is_as_it_must_be(s3, before)
    assert calm.calls > 25


def refused(code: str) -> Callable[[], ClientError]:
    return lambda: ClientError({"Error": {"Code": code, "Message": "no"}}, "CopyObject")


@pytest.mark.parametrize(
    ("error", "meaning", "said"),
    [
        (
            refused("AccessDenied"),
            QuarantineFailed,
            r"CopyObject for s3://bucket/runs/gpt/checkpoint-500/.*quarantineFolders.*release",
        ),
        (refused("InvalidObjectState"), QuarantineFailed, "cannot be moved: it is archived.*release"),
        (refused("400"), QuarantineFailed, "cannot be moved: it is encrypted"),  # by a key of its writer's own
        (refused("SlowDown"), Throttled, "SlowDown"),
        (refused("PreconditionFailed"), ActionUnfinished, "lists it again"),
        (refused("InternalError"), CallFailed, "InternalError"),
        (lambda: EndpointConnectionError(endpoint_url="s3"), CallFailed, "Could not connect"),
    ],
)
def test_a_refusal_is_distinguished_from_a_delay(s3, one_at_a_time, error, meaning, said):
    """Only what waiting does not mend asks for a human, and names the permission; nothing is deleted."""
    trainer_saves(400, 500)
    before = contents(s3)
    one_at_a_time(FaultInjector(3, error=error))
    with pytest.raises(meaning, match=said):
        patient_checkpoints().quarantine(action(), allow)
    assert contents(s3) == before
    one_at_a_time(FaultInjector())
    patient_checkpoints().quarantine(action(), allow)
    assert left(s3) == names(400)


def test_a_copy_that_is_not_the_same_deletes_nothing(s3, one_at_a_time):
    """Whatever went wrong in between."""
    trainer_saves(400, 500)

    class Damaging(FaultInjector):
        def call(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            result = method(*args, **kwargs)
            if "CopySource" in kwargs:
                client("s3").put_object(Bucket="bucket", Key=kwargs["Key"], Body=b"damaged")
            return result

    one_at_a_time(Damaging())
    with pytest.raises(QuarantineFailed, match="is not the same"):
        patient_checkpoints().quarantine(action(), allow)
    assert names(500) <= left(s3)


@pytest.mark.parametrize("kind", ["FULL_OBJECT", "COMPOSITE"])
def test_a_checksum_of_parts_is_not_compared_with_that_of_the_copy(s3, kind):
    """It depends on where the parts end; one of the whole object must be the copy's too."""
    trainer_saves(400, 500)
    sums = itertools.count()

    def add_checksum(parsed, **_):
        parsed.update(ChecksumCRC32=f"sum-{next(sums)}", ChecksumType=kind)

    s3.meta.events.register("after-call.s3.HeadObject", add_checksum)
    try:
        with nullcontext() if kind == "COMPOSITE" else pytest.raises(QuarantineFailed, match="is not the same"):
            patient_checkpoints().quarantine(action(), allow)
    finally:
        s3.meta.events.unregister("after-call.s3.HeadObject", add_checksum)
    assert (names(500) <= left(s3)) is (kind == "FULL_OBJECT")


@pytest.mark.parametrize(("encryption", "count"), [("AES256", 0), ("aws:kms", 5), ("aws:kms:dsse", 5)])
def test_what_lies_in_quarantine_already_is_copied_again_where_its_etag_is_no_checksum(s3, encryption, count):
    trainer_saves(400, 500)
    for name in TRAINER:
        s3.put_object(Bucket="bucket", Key=f"{PLACE}gpt/a001/checkpoint-500/{name}", Body=f"{name} of 500")
    copies: list[Any] = []
    s3.meta.events.register("before-call.s3.CopyObject", lambda **facts: copies.append(facts))
    s3.meta.events.register(
        "after-call.s3.HeadObject", lambda parsed, **_: parsed.update(ServerSideEncryption=encryption)
    )
    patient_checkpoints().quarantine(action(), allow)
    assert (len(copies), left(s3)) == (count, names(400))


def test_what_changes_while_it_is_moved_is_looked_at_again(s3, one_at_a_time):
    """It is not what was listed: the next turn decides anew."""
    trainer_saves(400, 500)
    moves: list[QuarantineMove] = []

    class Noting(ObjectMover):
        def move(self, found: Sequence[QuarantineMove]) -> None:
            moves.extend(found)

    S3Checkpoints(Noting).quarantine(action(), allow)
    put(s3, "checkpoint-500/optimizer.pt", b"another")
    with pytest.raises(ActionUnfinished, match="has changed"):
        ObjectMover("bucket").move(moves)
    with pytest.raises(ActionUnfinished, match="time budget is used up"):
        ObjectMover("bucket", seconds=0.0, clock=float).move(moves)
    assert "checkpoint-500/optimizer.pt" in left(s3)
    patient_checkpoints().quarantine(action(), allow)
    assert quarantined(s3)["checkpoint-500/optimizer.pt"] == b"another"


def test_what_is_written_over_between_two_turns_is_copied_anew(s3):
    """The copy has no part of the version before: the original is deleted, so the copy must be whole."""
    put(s3, "epoch=0-step=500.ckpt", b"a" * 32 * KiB)
    with pytest.raises(ActionUnfinished):
        S3Checkpoints(small_parts(seconds=4.5, clock=Ticking())).quarantine(action(), allow)
    put(s3, "epoch=0-step=500.ckpt", b"b" * 32 * KiB)
    S3Checkpoints(small_parts()).quarantine(action(), allow)
    assert quarantined(s3) == {"epoch=0-step=500.ckpt": b"b" * 32 * KiB}


@pytest.mark.parametrize("parts", [1, 2], ids=["whole", "in parts"])
def test_only_the_object_that_was_looked_at_is_copied(s3, parts):
    """S3 refuses a copy or deletion if the job has written over the object, which the fake S3 does not check."""
    copies, deletions = [], []
    for operation, made in (("CopyObject", copies), ("UploadPartCopy", copies), ("DeleteObject", deletions)):
        s3.meta.events.register(
            f"before-parameter-build.s3.{operation}", lambda params, to=made, **_: to.append(params)
        )
    trainer_saves(400, 500)
    upload_in_parts(s3, "checkpoint-500/pytorch_model.bin", *[b"x" * 6 * KiB] * parts)
    etag = s3.head_object(Bucket="bucket", Key=f"{FOLDER}checkpoint-500/pytorch_model.bin")["ETag"]
    patient_checkpoints().quarantine(action(), allow)
    of_model = [copy for copy in copies if "pytorch_model.bin" in str(copy["CopySource"])]
    assert len(of_model) == parts and {copy["CopySourceIfMatch"] for copy in of_model} == {etag}
    assert all(copy.get("CopySourceIfMatch") for copy in copies)
    assert etag in [deletion["IfMatch"] for deletion in deletions]
    assert {copy["TaggingDirective"] for copy in copies if "UploadId" not in copy} == {"REPLACE"}


def copied(s3: Any, key: str = "ckpt.pt", *, run: str = "gpt", expired: tuple[FileCopy, ...] = ()) -> CopyCheckpoint:
    """Return the action that copies a file as it is now."""
    head = s3.head_object(Bucket="bucket", Key=f"{FOLDER}{key}")
    etag = head["ETag"].strip('"')
    target = f"rerail-versions/{run}/{etag[:8]}/{key}"
    copy = FileCopy(key, target, etag, head["ContentLength"], head["LastModified"], 1)
    return CopyCheckpoint(run, URI, copy, expired)


def restored(*copies: FileCopy | None, since: datetime | None = None) -> QuarantineCheckpoints:
    since = since or datetime.now(UTC) - timedelta(hours=1)
    return action(None, replaced_since=since, restored=tuple(copy for copy in copies if copy))


def test_a_copied_file_is_restored_and_what_replaced_it_goes_to_quarantine(s3):
    """With its tags; to repeat it changes nothing, and older copies are deleted."""
    upload_in_parts(s3, "ckpt.pt", b"a" * 5 * KiB, b"b")
    s3.put_object_tagging(Bucket="bucket", Key=f"{FOLDER}ckpt.pt", Tagging={"TagSet": [{"Key": "team", "Value": "a"}]})
    checkpoints = S3Checkpoints(small_parts())
    older = checkpoints.copy_file(copied(s3), allow)
    put(s3, "ckpt.pt", b"sound")
    request = copied(s3, expired=(older,))
    sound = checkpoints.copy_file(request, allow)
    assert sound == replace(request.copy, copy_etag=request.copy.etag)
    assert checkpoints.copy_file(request, allow) == sound
    assert set(contents(s3)) == {f"{FOLDER}ckpt.pt", sound.key}
    put(s3, "ckpt.pt", b"torn")
    for _ in range(2):
        checkpoints.quarantine(restored(sound), allow)
        assert contents(s3)[f"{FOLDER}ckpt.pt"] == b"sound" == contents(s3)[sound.key]
        assert quarantined(s3) == {"ckpt.pt": b"torn"}


def test_a_copy_takes_few_requests(s3):
    """Whatever the parts that it was uploaded in. docs/without-agent.md has the number."""
    upload_in_parts(s3, "ckpt.pt", *[b"a" * 5 * KiB] * 6)
    request, made = copied(s3), []
    request = replace(request, expired=(replace(request.copy, key="rerail-versions/gpt/older/ckpt.pt"),))
    s3.meta.events.register("before-call.s3", lambda model, **_: made.append(model.name))
    S3Checkpoints(lambda bucket: ObjectMover(bucket)).copy_file(request, allow)
    heads = ["HeadObject"] * 2
    assert sorted(made) == sorted([*heads, "GetObjectTagging", "CopyObject", "DeleteObject"])
    made.clear()
    S3Checkpoints(small_parts()).copy_file(
        replace(request, copy=replace(request.copy, key="rerail-versions/gpt/b")), allow
    )
    parts = ["UploadPartCopy"] * 6
    upload = ["ListMultipartUploads", "CreateMultipartUpload", *parts, "CompleteMultipartUpload"]
    assert sorted(made) == sorted([*heads, "GetObjectTagging", *upload, "DeleteObject"])


@pytest.mark.threat("T18")
@pytest.mark.parametrize("body", [b"changed", None])
def test_a_copy_that_is_not_the_one_that_was_made_is_not_restored(s3, body):
    put(s3, "ckpt.pt", b"sound")
    copy = S3Checkpoints().copy_file(copied(s3), allow)
    s3.put_object(Bucket="bucket", Key=copy.key, Body=body) if body else s3.delete_object(Bucket="bucket", Key=copy.key)
    put(s3, "ckpt.pt", b"torn")
    with pytest.raises(QuarantineFailed, match="is not the copy that was made"):
        S3Checkpoints().quarantine(restored(copy), allow)
    assert contents(s3)[f"{FOLDER}ckpt.pt"] == b"torn"


def test_a_large_file_is_copied_over_several_turns_unless_it_changes(s3):
    """Then the parts of the unfinished copy are given up."""
    upload_in_parts(s3, "ckpt.pt", b"a" * 5 * KiB, b"b" * 5 * KiB, b"c")
    request, late = copied(s3), S3Checkpoints(small_parts(seconds=0.0, clock=float))
    with pytest.raises(ActionUnfinished):
        late.copy_file(request, allow)
    put(s3, "ckpt.pt", b"newer")
    assert late.copy_file(request, allow) is None
    assert len(s3.list_multipart_uploads(Bucket="bucket")["Uploads"]) == 1
    assert S3Checkpoints(small_parts()).copy_file(request, allow) is None
    assert not s3.list_multipart_uploads(Bucket="bucket").get("Uploads")
    assert set(contents(s3)) == {f"{FOLDER}ckpt.pt"}


def test_parts_that_the_dead_job_has_left_do_not_become_part_of_what_is_restored(s3):
    """SageMaker was uploading the file when the machine was lost: with other content, in parts of the same size."""
    upload_in_parts(s3, "ckpt.pt", b"a" * 5 * KiB, b"b" * 5 * KiB, b"c")
    copy = S3Checkpoints(small_parts()).copy_file(copied(s3), allow)
    put(s3, "ckpt.pt", b"torn")
    place = {"Bucket": "bucket", "Key": f"{FOLDER}ckpt.pt"}
    upload = s3.create_multipart_upload(**place)["UploadId"]
    time.sleep(1.0)  # a part that is older than the copy is never used
    s3.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"z" * 5 * KiB)
    S3Checkpoints(small_parts()).quarantine(restored(copy), allow)
    assert contents(s3)[f"{FOLDER}ckpt.pt"] == b"a" * 5 * KiB + b"b" * 5 * KiB + b"c"


@pytest.mark.threat("T18")
@pytest.mark.parametrize("is_finished", [True, False])
def test_what_others_put_where_a_copy_goes_does_not_become_the_copy(s3, is_finished):
    """An object of the same size and checksum, or parts of an upload, are no proof that a checkpoint was copied."""
    own, others = [tuple(letter * 5 * KiB for letter in letters) for letters in ((b"a", b"b"), (b"y", b"z"))]
    for name in ("checkpoint-500/model.pt", "ckpt.pt"):
        upload_in_parts(s3, name, *own)
    request, planted = copied(s3), []
    time.sleep(0.0 if is_finished else 1.0)  # a part that is older than the checkpoint is never used
    for key in (f"{PLACE}gpt/a001/checkpoint-500/model.pt", request.copy.key):
        planted.append(s3.create_multipart_upload(Bucket="bucket", Key=key)["UploadId"])
        for number, body in enumerate(others, start=1):
            s3.upload_part(Bucket="bucket", Key=key, UploadId=planted[-1], PartNumber=number, Body=body)
        if is_finished:
            s3.put_object(Bucket="bucket", Key=key, Body=b"".join(others))

    def complete_answer(parsed: Any, **_: Any) -> None:
        parsed["ChecksumCRC32"] = "forged"
        for upload in parsed.get("Uploads", ()):
            upload["Initiator"] = {"ID": "another" if upload["UploadId"] in planted else "Rerail"}

    s3.meta.events.register("after-call.s3", complete_answer)
    copy = S3Checkpoints(small_parts()).copy_file(request, allow)
    S3Checkpoints(small_parts()).quarantine(action(saved_before=request.copy.saved_at + timedelta(minutes=1)), allow)
    s3.meta.events.unregister("after-call.s3", complete_answer)
    assert [contents(s3)[copy.key], quarantined(s3)["checkpoint-500/model.pt"]] == [b"".join(own)] * 2


@pytest.mark.threat("T18")
def test_uploads_of_others_without_number_hold_no_rollback(s3, monkeypatch):
    """One page of them is read; the copy is made anew, in one turn or not at all."""
    upload_in_parts(s3, "checkpoint-500/model.pt", b"a" * 5 * KiB, b"b")
    key = f"{PLACE}gpt/a001/checkpoint-500/model.pt"
    page = {"IsTruncated": True, "Uploads": [{"Key": key, "UploadId": str(n)} for n in range(1_000)]}
    monkeypatch.setattr(s3, "list_multipart_uploads", lambda **_: page)
    ticks, aborted = iter([0.0, 0.0, 0.0, *[9.0] * 99]), list[str]()
    s3.meta.events.register("before-call.s3.AbortMultipartUpload", lambda **_: aborted.append("it"))
    with pytest.raises(QuarantineFailed, match="more than 1000 unfinished uploads"):
        S3Checkpoints(lambda bucket: ObjectMover(bucket, seconds=5.0, clock=lambda: next(ticks))).quarantine(
            action(), allow
        )
    assert (left(s3), aborted) == ({"checkpoint-500/model.pt"}, ["it"])
    patient_checkpoints().quarantine(action(), allow)
    assert left(s3) == set() and quarantined(s3)["checkpoint-500/model.pt"] == b"a" * 5 * KiB + b"b"


@pytest.mark.threat("T18")
def test_nothing_is_copied_or_deleted_outside_of_the_runs_own_copies(s3):
    put(s3, "ckpt.pt", b"sound")
    others = replace(copied(s3).copy, key=f"{FOLDER}ckpt.pt")
    for wrong in (replace(copied(s3), copy=others), replace(copied(s3), expired=(others,)), copied(s3, run="other")):
        with pytest.raises(QuarantineFailed, match="is not below"):
            S3Checkpoints().copy_file(replace(wrong, run="gpt"), allow)
    assert set(contents(s3)) == {f"{FOLDER}ckpt.pt"}


@pytest.mark.parametrize("code", ["AccessDenied", "SlowDown", "InternalError"])
def test_a_refused_copy_changes_nothing(s3, monkeypatch, code):
    put(s3, "ckpt.pt", b"sound")
    request = copied(s3)

    monkeypatch.setattr(s3, "copy_object", raising(ClientError({"Error": {"Code": code}}, "CopyObject")))
    expected = {"AccessDenied": QuarantineFailed, "SlowDown": Throttled}.get(code, CallFailed)
    with pytest.raises(expected):
        S3Checkpoints().copy_file(request, allow)
    assert set(contents(s3)) == {f"{FOLDER}ckpt.pt"}
