"""Checkpoints: when one exists, when it is whole, and which one a run carries on from."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from rerail.model.checkpoints import Checkpoint, Health, find_newest_step, find_newest_usable, read_manifest
from rerail.model.errors import BadManifest

URI = "s3://bucket/run/step-000000060/manifest.json"
SAVED = datetime(2026, 1, 31, 3, tzinfo=UTC)
MANIFEST = {
    "schema": 1,
    "run": "gpt",
    "attempt": 2,
    "step": 60,
    "consumed_samples": 480,
    "world_size": 2,
    "files": [
        {"name": "rank-0.pt", "bytes": 100, "checksum": "xxh3_64:0123456789abcdef"},
        {"name": "rank-1.pt", "bytes": 200, "checksum": "xxh3_64:0123456789abcdef"},
    ],
    "loss": 2.5,
    "saved_at": "2026-01-31T03:00:00Z",
    "reason": "periodic",
    "health": "clean",
}
SIZES = {"rank-0.pt": 100, "rank-1.pt": 200, "manifest.json": 500}


def read(sizes=SIZES, **changes) -> Checkpoint:
    return read_manifest(json.dumps({**MANIFEST, **changes}), uri=URI, sizes=sizes)


def a_checkpoint(step: int, *, minute: int = 0, **facts) -> Checkpoint:
    return Checkpoint(f"s3://bucket/run/step-{step}/", step, 1, SAVED + timedelta(minutes=minute), **facts)


def test_a_manifest_becomes_a_checkpoint():
    assert read() == Checkpoint(
        "s3://bucket/run/step-000000060/", 60, 2, SAVED, reason="periodic", consumed_samples=480
    )
    assert read().is_whole


@pytest.mark.parametrize(
    ("sizes", "missing"),
    [
        ({"rank-0.pt": 100}, ("rank-1.pt",)),
        ({"rank-0.pt": 100, "rank-1.pt": 199}, ("rank-1.pt",)),
        ({}, ("rank-0.pt", "rank-1.pt")),
    ],
)
def test_a_checkpoint_is_whole_when_every_file_is_there_with_its_size(sizes, missing):
    assert read(sizes).missing == missing
    assert not read(sizes).is_whole


def test_files_beside_the_checkpoint_do_not_spoil_it():
    """Whatever else lies in the folder, such as an uploader's own marks, is no concern of the manifest."""
    assert read({**SIZES, "rank-0.pt.sagemaker-uploading": 1}).is_whole


def test_files_may_be_in_folders_and_begin_with_a_dot():
    files = [{"name": name, "bytes": 7} for name in (".metadata", "__0_0.distcp", "optimizer/__1_0.distcp")]
    assert read({file["name"]: 7 for file in files}, files=files).is_whole


def test_unknown_fields_of_a_manifest_are_ignored():
    assert read(mood="hopeful", layout={"tensors": [1]}, skipped=[[1, 2]]) == read()


@pytest.mark.parametrize(("reason", "kept"), [("emergency", "emergency"), (7, ""), ("\ud800", ""), ("x" * 99, "")])
def test_the_reason_is_a_short_text_or_empty(reason, kept):
    assert read(reason=reason).reason == kept


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        *[("stall_s", value, value) for value in (0, 0.5, 86_399.5)],
        *[("write_s", value, None) for value in (-0.5, 86_400, True, "1", None)],
        ("write_s", 12, 12.0),
        *[("restart", value, value) for value in (1, 2)],
        *[("restart", value, 0) for value in (0, -1, True, 1.5, "2")],
        *[("consumed_samples", value, value) for value in (1, 480)],
        *[("consumed_samples", value, None) for value in (0, -1, True, 1.5, 10**20)],
        *[(field, 0, 0) for field in ("step", "attempt")],
    ],
)
def test_a_number_outside_of_its_range_counts_as_unknown(field, value, kept):
    """What only informs people or bounds a window never makes a checkpoint unusable."""
    found = getattr(read(**{field: value}), field)
    assert (found, type(found)) == (kept, type(kept) if field not in ("stall_s", "write_s") or kept is None else float)


def test_health_is_clean_by_default():
    """A manifest without the field counts as clean; one that says suspect is not resumed from."""
    without = {name: value for name, value in MANIFEST.items() if name != "health"}
    assert read_manifest(json.dumps(without), uri=URI, sizes=SIZES).health is Health.CLEAN
    assert read(health="suspect").health is Health.SUSPECT


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"schema": 2}, "field 'schema' is 2; this version reads 1"),
        ({"schema": None}, "field 'schema' is None"),
        ({"step": "60"}, "field 'step' is '60'; it must be a whole number, 0 or more"),
        ({"step": -1}, "field 'step' is -1"),
        ({"step": 1.5}, "field 'step' is 1.5"),
        ({"step": True}, "field 'step' is True"),
        ({"step": None}, "field 'step' is None"),
        ({"attempt": []}, "field 'attempt' is []"),
        ({"attempt": 10**20}, "field 'attempt' is 1000"),
        ({"saved_at": "yesterday"}, "field 'saved_at' must be a time such as 2026-01-31T03:00:00Z"),
        ({"saved_at": 1769828400}, "field 'saved_at' must be a time"),
        ({"saved_at": "2026-01-31T03:00:00"}, "field 'saved_at' has no time zone"),
        ({"saved_at": "9999-12-31T23:59:59-12:00"}, "field 'saved_at' is before 2000 or after 2199"),
        ({"health": "fine"}, "field 'health' must be one of clean, suspect, quarantined"),
        ({"health": {}}, "field 'health' must be one of"),
        ({"files": None}, "field 'files' must list at least one file"),
        ({"files": []}, "field 'files' must list at least one file"),
        ({"files": {}}, "field 'files' must list at least one file"),
        ({"files": ["rank-0.pt"]}, "each entry of 'files' needs a 'name' and a size in 'bytes'"),
        ({"files": [{"name": "rank-0.pt"}]}, "each entry of 'files' needs"),
        ({"files": [{"name": 1, "bytes": 1}]}, "each entry of 'files' needs"),
        ({"files": [{"name": "rank-0.pt", "bytes": "100"}]}, "each entry of 'files' needs"),
        *(
            ({"files": [{"name": name, "bytes": 1}]}, "does not lie in the checkpoint's folder")
            for name in (
                "../step-2/rank-0.pt",
                "/etc/passwd",
                "a//b",
                "./a",
                "a/..",
                "",
                "..",
                "a\\b",
                "a\nb",
                "\ud800",
            )
        ),
    ],
)
def test_a_manifest_that_cannot_be_believed_names_its_field(changes, complaint):
    """The message opens with the object and says which field and what it should be."""
    with pytest.raises(BadManifest) as error:
        read(**changes)
    assert str(error.value).startswith(f"{URI}: ")
    assert complaint in str(error.value)


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe\x00", "[]", "null", '"step"', "[" * 100_000, '{"a":' * 100_000])
def test_what_is_no_json_object_is_no_manifest(text):
    """Torn, binary, foreign or absurdly deep: one kind of error, so that one bad file cannot end a round."""
    with pytest.raises(BadManifest, match="is ignored"):
        read_manifest(text, uri=URI, sizes=SIZES)


def test_a_run_resumes_from_the_newest_whole_and_clean_one():
    """Torn, suspect and quarantined ones are passed over, however new."""
    saved = [
        a_checkpoint(100, missing=("rank-1.pt",)),
        a_checkpoint(90, health=Health.SUSPECT),
        a_checkpoint(80, health=Health.QUARANTINED),
        a_checkpoint(70),
        a_checkpoint(60, minute=1),
    ]
    assert find_newest_usable(saved) == saved[3]
    assert find_newest_usable(saved[:3]) is None


def test_of_two_saves_of_one_step_the_later_counts():
    """A step that was trained twice was saved twice; the later save belongs to the later attempt."""
    early, late = a_checkpoint(70, minute=1), a_checkpoint(70, minute=2)
    assert find_newest_usable([early, late]) == find_newest_usable([late, early]) == late


def test_no_checkpoint_is_step_zero():
    """Nobody looked, nothing found and nothing usable all mean the same to a budget: no progress."""
    assert find_newest_step(None) == find_newest_step([]) == find_newest_step([a_checkpoint(9, missing=("x",))]) == 0


def test_before_a_step_does_not_include_it():
    saved = [Checkpoint(f"s3://b/step-{step}/", step, 1, datetime(2026, 1, 31, tzinfo=UTC)) for step in (90, 100)]
    assert find_newest_usable(saved).step == 100
    assert find_newest_usable(saved, before_step=100).step == 90
