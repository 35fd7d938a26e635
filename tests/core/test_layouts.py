"""Saves of scripts that know nothing of Rerail: recognised, dated, and never taken as whole while they are not."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.model.checkpoint_layouts import (
    Layout,
    LayoutCheckpoint,
    StoredObject,
    find_checkpoints,
    find_copies,
    find_pointers,
    find_single_files,
    find_undated,
    format_pointer,
    parse_pointer,
)
from rerail.model.checkpoints import find_newest_usable

START = datetime(2026, 1, 31, 3, tzinfo=UTC)
BIG = 1 << 20

# What a whole save of each layout holds, by names within it and sizes; `{step}` is its own step.
HUGGING_FACE = {
    "config.json": 900,
    "model.safetensors": 4 * BIG,
    "optimizer.pt": 8 * BIG,
    "rng_state.pth": 14_000,
    "scheduler.pt": 1_000,
    "trainer_state.json": 5_000,
    "training_args.bin": 5_300,
}
SHARDED = {
    **{name: size for name, size in HUGGING_FACE.items() if name != "model.safetensors"},
    "model-00001-of-00003.safetensors": 4 * BIG,
    "model-00002-of-00003.safetensors": 4 * BIG,
    "model-00003-of-00003.safetensors": BIG,
    "model.safetensors.index.json": 20_000,
}
DEEPSPEED_TRAINER = {
    "config.json": 900,
    "global_step{step}/mp_rank_00_model_states.pt": 4 * BIG,
    "global_step{step}/zero_pp_rank_0_mp_rank_00_optim_states.pt": 8 * BIG,
    "latest": 14,
    "trainer_state.json": 5_000,
}
SHARDS = {".metadata": 90_000, "__0_0.distcp": 4 * BIG, "__1_0.distcp": 4 * BIG}
MEGATRON = {"mp_rank_00/model_optim_rng.pt": 9 * BIG, "mp_rank_01/model_optim_rng.pt": 9 * BIG}
ZERO = {
    "mp_rank_00_model_states.pt": 4 * BIG,
    "zero_pp_rank_0_mp_rank_00_optim_states.pt": 8 * BIG,
    "zero_pp_rank_1_mp_rank_00_optim_states.pt": 8 * BIG,
}
PLAIN = {"model.pt": 4 * BIG, "optimizer.pt": 8 * BIG, "args.json": 100}
FOLDERS: list[tuple[Layout, str, Mapping[str, int]]] = [
    (Layout.HUGGING_FACE, "checkpoint-{step}/", HUGGING_FACE),
    (Layout.HUGGING_FACE, "output/checkpoint-{step}/", SHARDED),
    (Layout.HUGGING_FACE, "checkpoint-{step}/", DEEPSPEED_TRAINER),
    (Layout.TORCHTITAN, "outputs/checkpoint/step-{step}/", SHARDS),
    (Layout.MEGATRON, "iter_{step:07d}/", MEGATRON),
    (Layout.DEEPSPEED, "global_step{step}/", ZERO),
    (Layout.STEPS, "step_{step}/", PLAIN),
    (Layout.STEPS, "step-{step}/", PLAIN),
    (Layout.STEPS, "checkpoint-{step}/", PLAIN),
    (Layout.LIGHTNING, "epoch=0-step={step}.ckpt/", SHARDS),
]
FILES = ["epoch=0-step={step}.ckpt", "lightning_logs/version_0/checkpoints/gpt-step={step}-val_loss=2.31.ckpt"]


def save(place: str, step: int, files: Mapping[str, int], *, at: datetime | None = None) -> list[StoredObject]:
    """The objects of one save; each step takes a minute."""
    at = at or START + timedelta(minutes=step)
    folder = place.format(step=step)
    return [StoredObject(f"{folder}{name.format(step=step)}", size, at) for name, size in files.items()]


def history(place: str, files: Mapping[str, int], *steps: int) -> list[StoredObject]:
    return [key for step in steps for key in save(place, step, files)]


def whole(found: list[LayoutCheckpoint]) -> list[int]:
    return [checkpoint.step for checkpoint in found if checkpoint.is_whole]


@pytest.mark.parametrize(("layout", "place", "files"), FOLDERS)
def test_a_script_s_saves_are_known_by_their_layout(layout, place, files):
    """Three of them: newest first, each with its own layout, step and age."""
    found = find_checkpoints(history(place, files, 500, 1500, 1000))
    assert [(checkpoint.layout, checkpoint.step, checkpoint.is_whole) for checkpoint in found] == [
        (layout, step, True) for step in (1500, 1000, 500)
    ]
    assert found[0].saved_at == START + timedelta(minutes=1500)
    assert found[0].place == place.format(step=1500)


@pytest.mark.parametrize("place", FILES)
def test_a_single_file_is_a_save(place):
    """Lightning's: it appears when all of it is uploaded."""
    found = find_checkpoints(history(place, {"": 12 * BIG}, 500, 1000))
    assert [(checkpoint.layout, checkpoint.step, checkpoint.is_whole) for checkpoint in found] == [
        (Layout.LIGHTNING, step, True) for step in (1000, 500)
    ]
    assert whole(find_checkpoints(history(place, {"": 12 * BIG}, 500))) == [500]


@pytest.mark.parametrize(("layout", "place", "files"), FOLDERS)
def test_a_first_save_counts_where_its_layout_marks_it_whole(layout, place, files):
    """The Trainer's own state, DCP's metadata, or a pointer that names it; a bare folder needs one more beside it."""
    listed = history(place, files, 500)
    expected = [500] if layout in (Layout.HUGGING_FACE, Layout.TORCHTITAN) else []
    assert whole(find_checkpoints(listed)) == expected
    pointers = {"latest": "global_step500\n", "latest_checkpointed_iteration.txt": "500"}
    assert whole(find_checkpoints(listed, pointers)) == (
        [500] if layout in (Layout.MEGATRON, Layout.DEEPSPEED) else expected
    )


torn = st.data()


@given(torn, st.sampled_from(FOLDERS), st.sets(st.integers(1, 9_000), min_size=4, max_size=9))
def test_an_unfinished_save_is_never_taken_as_whole(data, layout, steps):
    """Whichever of its files are not there yet, or are cut short, in whatever order they are listed: as long as most of
    the saves are whole, those are told from the others."""
    _, place, files = layout
    ordered = sorted(steps)
    broken = data.draw(st.sets(st.sampled_from(ordered), max_size=(len(ordered) - 1) // 2 - (len(ordered) % 2 == 0)))
    listed = []
    for step in ordered:
        mine = dict(files)
        if step in broken:
            names = [name for name in mine if mine[name] >= BIG] if data.draw(st.booleans()) else []
            if names:
                name = data.draw(st.sampled_from(names))
                mine[name] = data.draw(st.integers(0, int(mine[name] * 0.98)))
            else:
                for name in data.draw(st.sets(st.sampled_from(sorted(mine)), min_size=1)):
                    del mine[name]
        listed += save(place, step, mine)
    found = find_checkpoints(data.draw(st.permutations(listed)))
    assert whole(found) == sorted(steps - broken, reverse=True)


@given(st.data(), st.sampled_from([HUGGING_FACE, SHARDED, DEEPSPEED_TRAINER]))
def test_of_the_trainer_s_saves_even_the_first_is_not_taken_as_whole_before_its_time(data, files):
    """Alone, with weights, optimizer or the Trainer's state not there yet."""
    needed = [n for n in files if n.startswith(("model-", "model.safetensors", "optimizer", "global_step", "trainer_"))]
    needed = [n for n in needed if not n.endswith("index.json")]
    gone = data.draw(st.sampled_from(needed if files is not DEEPSPEED_TRAINER else ["trainer_state.json"]))
    assert whole(find_checkpoints(save("checkpoint-{step}/", 500, {n: s for n, s in files.items() if n != gone}))) == []


key_parts = st.sampled_from(
    [
        *("checkpoint-5", "checkpoint-x", "step-7", "step_8", "iter_0000009", "global_step3", "latest", "last.ckpt"),
        *("epoch=1-step=4.ckpt", "step=99999999999999999999.ckpt", "quarantine", "manifest.json", "trainer_state.json"),
        *("model-00001-of-99999999999.safetensors", "model-1-of-0.bin", ".metadata", "__0_0.distcp", "a.tmp", "", ".."),
        *(
            "x.pt.sagemaker-uploading",
            "model.safetensors",
            "optimizer.pt",
            "ümlaut.pt",
            "%2F",
            "latest_checkpointed_iteration.txt",
        ),
    ]
)
listings = st.lists(
    st.builds(
        StoredObject,
        key=st.lists(key_parts, min_size=1, max_size=4).map("/".join),
        bytes=st.integers(0, 1 << 40),
        at=st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
    ),
    max_size=40,
    unique_by=lambda stored: stored.key,
)


@given(listings, st.dictionaries(st.text(max_size=9), st.text(max_size=9)))
def test_any_listing_can_be_read(listed, pointers):
    """Each object belongs to one save at most, and a save has something in it."""
    found = find_checkpoints(listed, pointers)
    keys = [stored.key for checkpoint in found for stored in checkpoint.files.values()]
    assert len(keys) == len(set(keys))
    assert all(checkpoint.files for checkpoint in found)
    others = {stored.key for stored in (*find_pointers(listed), *find_copies(listed))}
    assert not others & set(keys)
    assert not {stored.key for stored in find_undated(listed)} & set(keys)


def test_what_an_uploader_leaves_is_no_file_of_a_save():
    """Its marks are neither needed nor missed."""
    listed = history("checkpoint-{step}/", HUGGING_FACE, 500, 1000)
    listed += save("checkpoint-{step}/", 500, {"model.safetensors.sagemaker-uploading": 0, "x.tmp": 3})
    found = find_checkpoints(listed)
    assert whole(found) == [1000, 500]
    assert all("sagemaker" not in name for checkpoint in found for name in checkpoint.files)


def test_a_file_that_is_overwritten_in_place_has_no_step():
    """Rerail never resumes from it; the newest is listed first."""
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    listed = [StoredObject("ckpt.pt", 10, noon), StoredObject("best/model_best.pt", 10, noon + timedelta(minutes=1))]
    listed += [StoredObject("train.log", 10, noon), StoredObject("last.ckpt", 10, noon)]
    found = find_single_files(listed, uri="s3://b/run/")
    assert [file.uri for file in found] == [
        "s3://b/run/best/model_best.pt",
        "s3://b/run/last.ckpt",
        "s3://b/run/ckpt.pt",
    ]
    assert find_newest_usable(found) is None and {file.layout for file in found} == {Layout.FILE}


def test_after_a_save_with_a_manifest_the_next_is_complete_with_its_own():
    """A save of such a script that is under way is not taken for one of a script that knows no manifests."""
    listed = history("checkpoint-{step}/", HUGGING_FACE, 500, 1000)
    listed += save("checkpoint-{step}/", 500, {"manifest.json": 400})
    newer, older = find_checkpoints(listed)
    assert (newer.missing, newer.has_manifest, older.missing, older.has_manifest) == (
        ("manifest.json",),
        False,
        (),
        True,
    )
    others = history("checkpoint-{step}/", HUGGING_FACE, 500, 1000)
    others += save("step-{step}/", 9000, {"manifest.json": 400, "rank-0.pt": 5})
    assert [found.is_whole for found in find_checkpoints(others) if not found.has_manifest] == [True, True]


def test_a_trainer_that_never_saves_its_optimizer_is_believed():
    """`save_only_model`: what all the others lack is nobody's loss."""
    files = {name: size for name, size in HUGGING_FACE.items() if name != "optimizer.pt"}
    assert whole(find_checkpoints(history("checkpoint-{step}/", files, 100, 200))) == []
    assert whole(find_checkpoints(history("checkpoint-{step}/", files, 100, 200, 300))) == [300, 200, 100]


def test_saves_of_another_folder_are_not_compared():
    """A small model's checkpoints beside a large one's."""
    small = {name: size // 8 for name, size in HUGGING_FACE.items()}
    listed = history("teacher/checkpoint-{step}/", HUGGING_FACE, 500, 1000)
    listed += history("student/checkpoint-{step}/", small, 500, 1000)
    assert whole(find_checkpoints(listed)) == [1000, 1000, 500, 500]


def test_fewer_ranks_than_before_are_believed_when_most_saves_are_of_them():
    """A relaunch on fewer machines writes fewer shards; while most are of before, in doubt they are not whole."""
    few = {name: size for name, size in SHARDS.items() if name != "__1_0.distcp"}
    before = history("step-{step}/", SHARDS, 100, 200)
    assert whole(find_checkpoints([*before, *history("step-{step}/", few, 300)])) == [200, 100]
    assert whole(find_checkpoints([*before, *history("step-{step}/", few, 300, 400, 500, 600)])) == [
        600,
        500,
        400,
        300,
        200,
        100,
    ]


def test_pointers_and_copies_are_distinguished_from_other_files():
    """`latest` means something beside DeepSpeed's folders only; `last.ckpt` anywhere; TensorBoard's files never."""
    listed = history("zero/global_step{step}/", ZERO, 500)
    listed += history("mega/iter_{step:07d}/", MEGATRON, 500)
    for key in ("zero/latest", "mega/latest_checkpointed_iteration.txt", "latest", "mega/latest", "run/last-v1.ckpt"):
        listed.append(StoredObject(key, 9, START))
    listed += [
        StoredObject("runs/events.out.tfevents.17", 9, START),
        StoredObject("best.pt", 9, START),
        StoredObject("epoch=3.ckpt", 9, START),
    ]
    assert [pointer.key for pointer in find_pointers(listed)] == [
        "zero/latest",
        "mega/latest_checkpointed_iteration.txt",
    ]
    assert [copy.key for copy in find_copies(listed)] == ["run/last-v1.ckpt"]
    assert [stored.key for stored in find_undated(listed)] == ["run/last-v1.ckpt", "best.pt", "epoch=3.ckpt"]


@pytest.mark.parametrize(
    ("key", "text", "step"),
    [
        ("latest", "global_step500\n", 500),
        ("a/latest", "epoch3", None),
        ("latest_checkpointed_iteration.txt", "500", 500),
        ("latest_checkpointed_iteration.txt", "release", None),
        ("latest", "", None),
        ("other.txt", "500", None),
    ],
)
def test_a_pointer_names_a_step(key, text, step):
    assert parse_pointer(key, text) == step
    if step is not None:
        assert parse_pointer(key, format_pointer(key, 300)) == 300
