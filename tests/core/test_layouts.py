"""Saves of scripts that know nothing of Rerail: recognised, dated, and never taken as whole while they are not."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.model.checkpoint_layouts import (
    LAYOUTS,
    Layout,
    LayoutCheckpoint,
    StoredObject,
    find_checkpoints,
    find_copies,
    find_pointers,
    find_single_files,
    find_undated,
    format_pointer,
    list_unknown_names,
    make_checkpoint,
    parse_pointer,
)
from rerail.model.checkpoints import find_newest_usable
from tests.core.layout_listings import FILES as FILE_LISTINGS
from tests.core.layout_listings import LISTINGS, Listing

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
    "global_step{step}/zero_pp_rank_1_mp_rank_00_optim_states.pt": 8 * BIG,
    "latest": 14,
    "trainer_state.json": 5_000,
}
SHARDS = {".metadata": 90_000, "__0_0.distcp": 4 * BIG, "__1_0.distcp": 4 * BIG}
FSDP_TRAINER = {f"{kind}_0/{name}": BIG for kind in ("optimizer", "pytorch_model_fsdp") for name in SHARDS}
FSDP_TRAINER["trainer_state.json"] = 5_000  # huggingface/accelerate#2603
MEGATRON = {"mp_rank_00/model_optim_rng.pt": 9 * BIG, "mp_rank_01/model_optim_rng.pt": 9 * BIG}
ZERO = {
    "mp_rank_00_model_states.pt": 4 * BIG,
    "zero_pp_rank_0_mp_rank_00_optim_states.pt": 8 * BIG,
    "zero_pp_rank_1_mp_rank_00_optim_states.pt": 8 * BIG,
}
PLAIN = {"model.pt": 4 * BIG, "optimizer.pt": 8 * BIG, "args.json": 100}
MINDFORMERS = {f"llama-{kind}-000000{rank}-0000002.safetensors": BIG for kind in ("model", "opt") for rank in (0, 1)}
FOLDERS: list[tuple[Layout, str, Mapping[str, int]]] = [
    (Layout.HUGGING_FACE, "checkpoint-{step}/", HUGGING_FACE),
    (Layout.HUGGING_FACE, "output/checkpoint-{step}/", SHARDED),
    (Layout.HUGGING_FACE, "checkpoint-{step}/", DEEPSPEED_TRAINER),
    (Layout.TORCHTITAN, "outputs/checkpoint/step-{step}/", SHARDS),
    (Layout.MEGATRON, "iter_{step:07d}/", MEGATRON),
    (Layout.DEEPSPEED, "global_step{step}/", ZERO),
    (Layout.STEPS, "step_{step}/", PLAIN),
    (Layout.STEPS, "checkpoint_epoch_0_step_{step}/", PLAIN),
    (Layout.STEPS, "0/step_{step}_loss_1.2345/", {"model.safetensors": 4 * BIG, "opt.safetensors": 8 * BIG}),
    (Layout.STEPS, "checkpoint_{step:06d}/", {"model.safetensors": 4 * BIG, "optimizer.bin": 8 * BIG}),
    (Layout.STEPS, "iteration_{step:08d}/", MINDFORMERS),
    (Layout.STEPS, "step-{step}/", PLAIN),
    (Layout.STEPS, "checkpoint-{step}/", PLAIN),
    (Layout.LIGHTNING, "epoch=0-step={step}.ckpt/", SHARDS),
]


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
    """Newest first, each with its own layout and age. A first one is complete if its layout or a pointer says so."""
    found = find_checkpoints(history(place, files, 500, 1500, 1000))
    assert {(checkpoint.layout, checkpoint.counts) for checkpoint in found} == {(layout, "step")}
    assert whole(found) == [1500, 1000, 500]
    assert found[0].saved_at == START + timedelta(minutes=1500)
    assert found[0].place == place.format(step=1500)
    listed = history(place, files, 500)
    expected = [500] if layout in (Layout.HUGGING_FACE, Layout.TORCHTITAN) else []
    assert whole(find_checkpoints(listed)) == expected
    pointers = {"latest": "global_step500\n", "latest_checkpointed_iteration.txt": "500"}
    pointed = [500] if layout in (Layout.MEGATRON, Layout.DEEPSPEED) else expected
    assert whole(find_checkpoints(listed, pointers)) == pointed


@given(st.data(), st.sampled_from(FOLDERS), st.sets(st.integers(1, 9_000), min_size=4, max_size=9))
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


@given(st.data(), st.sampled_from([HUGGING_FACE, SHARDED, DEEPSPEED_TRAINER, FSDP_TRAINER]))
def test_of_the_trainer_s_saves_even_the_first_is_not_taken_as_whole_before_its_time(data, files):
    """Alone, with weights, optimizer or the Trainer's state not there yet: they are uploaded in any order."""
    ends = ("config.json", "index.json", ".bin", "_1_mp_rank_00_optim_states.pt", "__1_0.distcp")
    needed = [name for name in files if not name.endswith(ends) and not name.startswith(("rng_", "scheduler"))]
    gone = data.draw(st.sampled_from(needed))
    assert whole(find_checkpoints(save("checkpoint-{step}/", 500, {n: s for n, s in files.items() if n != gone}))) == []


@pytest.mark.parametrize(
    ("place", "kept", "lost"),
    [
        ("step_{step}/", ["optim/__0_0.distcp", "optim/.metadata", "rng.pt"], "model/adapter_model.safetensors"),
        ("checkpoint-{step}/", ["model.safetensors", "optimizer.bin", "trainer_state.json"], "scheduler.bin"),
        ("{step}/", ["commit_success.txt", "items/_METADATA", "items/manifest.ocdbt"], f"items/d/{'0f' * 16}"),
        ("{step}/", ["commit_success.txt", "_CHECKPOINT_METADATA", f"items/d/{'0f' * 16}"], "items/manifest.ocdbt"),
    ],
)
def test_what_the_first_has_the_second_needs(place, kept, lost):
    """Unless it may be an export: NVIDIA-NeMo/Automodel has the weights of an adapter beside the optimizer's shards."""
    files = dict.fromkeys((*kept, lost), BIG)
    both = [*save(place, 100, files), *save(place, 200, dict.fromkeys(kept, BIG))]
    assert whole(find_checkpoints(both)) == [100]
    assert whole(find_checkpoints(history(place, files, 100, 200))) == [200, 100]


key_parts = st.sampled_from(
    [
        *("checkpoint-5", "checkpoint-x", "step-7", "step_8", "iter_0000009", "global_step3", "latest", "last.ckpt"),
        *("epoch=1-step=4.ckpt", "step=99999999999999999999.ckpt", "quarantine", "manifest.json", "trainer_state.json"),
        *("model-00001-of-99999999999.safetensors", "model-1-of-0.bin", ".metadata", "__0_0.distcp", "a.tmp", "", ".."),
        *("x.pt.sagemaker-uploading", "model.safetensors", "optimizer.pt", "ümlaut.pt", "%2F"),
        "latest_checkpointed_iteration.txt",
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
    names = [file.uri.removeprefix("s3://b/run/") for file in found]
    assert names == ["best/model_best.pt", "last.ckpt", "ckpt.pt"]
    assert find_newest_usable(found) is None and {file.layout for file in found} == {Layout.FILE}


def test_after_a_save_with_a_manifest_the_next_is_complete_with_its_own():
    """A save of such a script that is under way is not taken for one of a script that knows no manifests."""
    listed = history("checkpoint-{step}/", HUGGING_FACE, 500, 1000)
    listed += save("checkpoint-{step}/", 500, {"manifest.json": 400})
    newer, older = find_checkpoints(listed)
    assert (newer.missing, newer.has_manifest) == (("manifest.json",), False)
    assert (older.missing, older.has_manifest) == ((), True)
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


def test_pointers_and_copies_are_distinguished_from_other_files():
    """`latest` means something beside folders with a step only; `last.ckpt` anywhere; TensorBoard's files never."""
    listed = history("zero/global_step{step}/", ZERO, 500)
    listed += history("mega/iter_{step:07d}/", MEGATRON, 500)
    keys = ["zero/latest", "mega/latest_checkpointed_iteration.txt", "latest", "mega/latest", "run/last-v1.ckpt"]
    keys += ["runs/events.out.tfevents.17", "best.pt", "epoch=3.ckpt"]
    listed += [StoredObject(key, 9, START) for key in keys]
    found = [pointer.key for pointer in find_pointers(listed)]
    assert found == ["zero/latest", "mega/latest_checkpointed_iteration.txt", "mega/latest"]
    assert [copy.key for copy in find_copies(listed)] == ["run/last-v1.ckpt"]
    assert [stored.key for stored in find_undated(listed)] == ["run/last-v1.ckpt", "best.pt", "epoch=3.ckpt"]


@pytest.mark.parametrize(
    ("key", "text", "step"),
    [
        ("latest", "global_step500\n", 500),
        ("a/latest", "epoch3", None),
        ("last_checkpoint", "/opt/ml/epoch_3.pth", None),
        ("latest", "step-500", 500),
        ("latest_ckpt_global_step.txt", "500", 500),
        ("latest_checkpointed_iteration.txt", "release", None),
        ("latest", "", None),
        ("other.txt", "500", None),
    ],
)
def test_a_pointer_names_a_step(key, text, step):
    assert parse_pointer(key, text) == step
    if step is not None:
        assert format_pointer(key, 300, text, ["step-300"]) == text.strip().replace("500", "300")


# Listings of frameworks, and those that users reported


def list_objects(*names: str, size: int = BIG) -> list[StoredObject]:
    """Objects of these names, each written a second after the one before."""
    return [StoredObject(name, size, START + timedelta(seconds=second)) for second, name in enumerate(names)]


def list_saves(listing: Listing, *, killed: bool) -> tuple[list[StoredObject], dict[str, str]]:
    """Return the objects of all saves, the last of which may have been killed, and the pointers."""
    *earlier, last = listing.numbers
    names = [name.format(n=number) for number in earlier for name in listing.files]
    names += [name.format(n=last) for name in (listing.files[: listing.written] if killed else listing.files)]
    names += [name.format(n=last) for name in (listing.marks if killed else ())]
    pointer, text = listing.pointer
    pointers = {pointer: text.replace("{n}", str(earlier[-1] if killed else last))} if pointer else {}
    small = list_objects(*pointers, size=40)
    return [*list_objects(*names, *listing.beside), *small], pointers


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda listing: f"{listing.layout}: {listing.source}")
@pytest.mark.parametrize("killed", [False, True])
def test_a_framework_s_newest_complete_checkpoint_is_found(listing: Listing, killed: bool):
    stored, pointers = list_saves(listing, killed=killed)
    found = find_checkpoints(stored, pointers)
    assert {(save.name, save.counts) for save in found} == {(listing.layout, listing.counts)}
    assert [(save.step, save.is_whole) for save in found] == [
        (number, not (killed and number == listing.numbers[-1])) for number in sorted(listing.numbers, reverse=True)
    ]
    assert [item.key for item in find_pointers(stored)] == [name for name in pointers if listing.counts == "step"]


@pytest.mark.parametrize("listing", [row for row in LISTINGS if row.counts == "step"], ids=lambda row: row.source)
def test_whatever_file_of_state_the_newest_lacks_it_is_not_complete(listing):
    stored, _ = list_saves(listing, killed=False)
    newest = [name.format(n=listing.numbers[-1]) for name in listing.files]
    for lost in (name for name in newest if not name.endswith((".json", ".yaml"))):
        found = find_checkpoints([item for item in stored if item.key != lost])
        assert whole(found) == sorted(listing.numbers[:-1], reverse=True), lost


@pytest.mark.parametrize(("layout", "counts", "source", "name"), FILE_LISTINGS, ids=lambda value: str(value))
def test_a_file_with_a_number_is_a_checkpoint(layout, counts, source, name):
    """The newest counts, unless it is smaller than those before it."""
    numbers = (100, 200, 300) if counts == "step" else (1, 2, 3)
    stored = list_objects(*(name.format(n=number) for number in numbers))
    found = find_checkpoints(stored)
    assert [(save.name, save.counts, save.step, save.is_whole) for save in found] == [
        (layout, counts, number, True) for number in reversed(numbers)
    ]
    assert [save.place for save in found] == [item.key for item in reversed(stored)]
    assert whole(find_checkpoints([*stored[:2], stored[2]._replace(bytes=BIG * 4 // 5)])) == [numbers[1], numbers[0]]
    is_proven = next(row.is_proven for row in LAYOUTS if row.name == layout)
    assert [save.is_whole for save in find_checkpoints(stored[:1])] == [is_proven]
    varying = BIG if name.endswith((".pt", ".pth", ".ckpt", ".tar")) else BIG * 19 // 20
    assert len(whole(find_checkpoints([*stored[:2], stored[2]._replace(bytes=varying)]))) == 3


def test_a_number_that_is_no_step_is_never_recorded_as_one():
    """A rollback to before step 500 must not take epoch 3 for step 3, which may be from after the onset."""
    names = ("epoch_3.pth", "epoch_4.pth", "checkpoint_1/optimizer.bin", "checkpoint_1/random_states_0.pkl")
    stored = list_objects(*names)
    for save in find_checkpoints(stored):
        record = make_checkpoint(save, uri="s3://b/run/")
        assert (record.step, record.layout, record.is_whole) == (0, Layout.FILE, False)
    assert {item.key for item in stored} - {item.key for item in find_undated(stored)} == set()
    single = find_single_files(stored, uri="s3://b/run/")
    assert [save.uri.removeprefix("s3://b/run/") for save in single] == ["checkpoint_1/", "epoch_4.pth", "epoch_3.pth"]


def test_what_grows_is_not_truncated():
    trees = [StoredObject(f"xgboost-checkpoint.{number}", number * BIG, START) for number in (8, 9, 10)]
    assert whole(find_checkpoints(trees)) == [10, 9, 8]
    assert whole(find_checkpoints(history("iter_{step}/", {"model.json": BIG}, 100, 200))) == [200, 100]
    saved = [save("step_{step}/", step, {"all.pt": BIG, "replay_buffer.pkl": step * BIG}) for step in (1, 2, 3)]
    assert whole(find_checkpoints(sum(saved, []))) == [3, 2, 1]


def test_numbers_close_together_count_saves():
    for first in (1, 299):  # the last two epochs may be kept
        names = [f"model_{number}.pt" for number in (first, first + 1)]
        assert [str(save.counts) for save in find_checkpoints(list_objects(*names))] == ["save"] * 2
    assert [str(save.counts) for save in find_checkpoints(list_objects("model_100.pt", "model_200.pt"))] == ["step"] * 2


@pytest.mark.parametrize(
    "names",
    [
        ["rank_3.pt", "rank_4.pt", "shard_12.bin", "shard_13.bin"],
        ["part-00001.bin", "part-00002.bin"],
        ["model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors"],
        ["G_2333333.pth", "D_2333333.pth", "x/G_233333333333.pth"],  # RVC and GPT-SoVITS overwrite these in place
        ["events.out.tfevents.1700000000.host.1.0"],
        ["tokenizer_model_32000.bin"],
        ["wandb/run-20240131_101010-x1/step_5.pt"],
        ["ckpt_20240131.pt", "model-2024-01-31.pt"],
        ["model_0.95.pt", "checkpoint.best_loss_4.3200.pt"],
        ["2024/01/31/model.pt", "2024/02/01/model.pt"],
        ["0/model.pt", "0/optim.pt", "1/model.pt", "1/optim.pt", "2/model.pt", "2/optim.pt"],
        ["1234567/ckpt.pt", "1234599/ckpt.pt"],
        ["best_step_9000.pt", "eval/step_9000.pt", "best_model_epoch_7.pt"],
        ["lr=0.1,max_step=1000/x.pt"],
    ],
)
def test_a_number_that_counts_no_saves_is_not_taken_for_one(names):
    assert find_checkpoints(list_objects(*names)) == []


@pytest.mark.parametrize("name", ["samples/step_{}/0.png", "iter_{}/x.jsonl", "hf/step_{}/model.pt"])
def test_what_else_a_script_writes_at_a_step_is_no_complete_checkpoint(name):
    names = [f"step_{step}/{state}" for step in (1000, 2000) for state in ("model.pt", "optimizer.pt")]
    stored = list_objects(*names, *(name.format(step) for step in (1000, 2000, 3000)))
    assert whole(find_checkpoints(stored)) == [2000, 1000]


@pytest.mark.parametrize(
    "extra", ["core.1234", "core", "core.python.88", "events.out.tfevents.1", "train.log", "eval.json"]
)
def test_what_only_one_folder_has_is_needed_in_no_other(extra):
    stored = [*history("checkpoint-{step}/", HUGGING_FACE, 100, 200), *save("checkpoint-{step}/", 100, {extra: BIG})]
    assert whole(find_checkpoints(stored)) == [200, 100]
    shards = [*history("step-{step}/", SHARDS, 100, 200), *save("step-{step}/", 100, {extra: BIG})]
    assert whole(find_checkpoints(shards)) == [200, 100]


def test_an_export_is_not_complete_and_changes_nothing_for_others():
    """torchtitan's `last_save_in_hf` (pytorch/torchtitan#2137): the last folder has weights only."""
    export = {"model-00001-of-00002.safetensors": 4 * BIG, "model-00002-of-00002.safetensors": 4 * BIG}
    for steps in ([500], [500, 1000], [500, 1000, 1500]):
        stored = [*history("step-{step}/", SHARDS, *steps), *save("step-{step}/", 2000, export)]
        assert whole(find_checkpoints(stored)) == steps[::-1]
    both = [*history("step-{step}/", SHARDS, 500, 1000), *save("step-{step}/", 500, export)]
    assert whole(find_checkpoints(both)) == [1000, 500]


@pytest.mark.parametrize(
    ("ranks", "sizes", "expected"),
    [
        ((2, 2, 4), (4, 4, 2), [300, 200, 100]),
        ((4, 4, 2), (2, 2, 4), [300, 200, 100]),
        ((4, 2, 2), (2, 4, 4), [300, 200, 100]),
        ((4, 4, 2), (2, 2, 2), [200, 100]),
        ((2, 2, 3), (4, 4, 2), [200, 100]),
        ((2, 2, 1, 1, 1, 1), (4,) * 6, [600, 500, 400, 300, 200, 100]),
    ],
    ids=[
        "more ranks",
        "fewer",
        "fewer for long",
        "half of the same ranks",
        "not all of more ranks",
        "most are of half",
    ],
)
def test_shards_of_another_number_of_ranks_are_judged_by_their_set(ranks, sizes, expected):
    """All of the state is there, in more or fewer files."""
    stored = []
    for step, count, size in zip(range(100, 601, 100), ranks, sizes, strict=False):
        files = {f"__{rank}_0.distcp": size * BIG for rank in range(count)}
        stored += save("step-{step}/", step, files | {".metadata": 90_000})
    assert whole(find_checkpoints(stored)) == expected


def test_a_set_that_names_its_number_of_ranks_is_complete_or_not_by_itself():
    def list_verl(step: int, world: int, lost: int = -1) -> list[StoredObject]:
        names = [
            f"actor/{kind}_world_size_{world}_rank_{rank}.pt" for kind in ("model", "optim") for rank in range(world)
        ]
        return save("global_step_{step}/", step, dict.fromkeys(names[:lost] if lost > 0 else names, BIG))

    assert whole(find_checkpoints([*list_verl(10, 4), *list_verl(20, 4), *list_verl(30, 2)])) == [30, 20, 10]
    assert whole(find_checkpoints([*list_verl(10, 2), *list_verl(20, 2), *list_verl(30, 4, lost=7)])) == [20, 10]


@pytest.mark.parametrize(
    ("folder", "files"),
    [
        ("checkpoint-{}", ["mm_projector.bin", "config.json"]),
        ("checkpoint-{}", ["adapter_model.safetensors", "adapter_config.json"]),
        ("checkpoint-{}", ["model.safetensors", "rng_state.pth", "scheduler.pt", "training_args.bin"]),
        ("global_step_{}", ["actor/huggingface/model.safetensors", "data.pt"]),  # exports of verl
        ("step_{}", ["model.safetensors", "lr_scheduler.pt", "dataloader.pt"]),
    ],
)
def test_what_lacks_the_optimizer_is_not_complete(folder, files):
    """haotian-liu/LLaVA#1496: the Trainer fails on the missing trainer_state.json."""
    stored = list_objects(*(f"{folder.format(step)}/{name}" for step in (500, 1000) for name in files))
    assert whole(find_checkpoints(stored)) == []


# XPixelGroup/BasicSR:basicsr/models/base_model.py: it resumes from the state, which names the networks by its step.
BASICSR = (("models/net_g_", ".pth"), ("models/net_d_", ".pth"), ("training_states/", ".state"))


def test_an_actor_is_complete_only_with_its_critic():
    """OpenRLHF/OpenRLHF:openrlhf/trainer/ray: both save the same step, one after the other."""
    names = [f"{role}/global_step{step}/{name}" for role in ("_actor", "_critic") for step in (10, 20) for name in ZERO]
    newest = [f"_actor/global_step30/{name}" for name in ZERO]
    assert whole(find_checkpoints(list_objects(*names, *newest))) == [20, 20, 10, 10]
    parts = [f"{rank}/gpt-step={step}.ckpt" for rank in ("mp_rank_00", "mp_rank_01") for step in (100, 200)]
    assert whole(find_checkpoints(list_objects(*parts, "mp_rank_00/gpt-step=300.ckpt"))) == [200, 200, 100, 100]
    parts = [f"{name}{step}{end}" for step in (100, 200, 300) for name, end in BASICSR]
    assert whole(find_checkpoints(list_objects(*parts))) == [300, 300, 200, 200, 100, 100]
    for lost in parts[-3:]:
        left = find_checkpoints(list_objects(*(part for part in parts if part != lost)))
        assert whole(left) == [200, 200, 100, 100], lost


def test_what_is_written_under_another_name_first_is_not_read():
    names = ["_CHECKPOINT_METADATA", "items/_METADATA", "items/manifest.ocdbt"]
    stored = list_objects(
        *(f"{step}/{name}" for step in (1000, 2000) for name in names),
        *(f"3000.orbax-checkpoint-tmp-7/{name}" for name in names),
    )
    assert [save.place for save in find_checkpoints(stored)] == ["2000/", "1000/"]
    assert find_undated(list_objects("tmp-checkpoint-500/model.safetensors")) == []


@pytest.mark.parametrize(
    ("pointer", "text", "names", "expected"),
    [
        ("latest.txt", "300", ["100"], "100"),
        ("last_checkpoint", "/opt/ml/iter_300.pth", ["iter_100.pth"], "/opt/ml/iter_100.pth"),
        ("last_checkpoint", "model_0009999.pth", ["model_0004999.pth"], "model_0004999.pth"),
        (
            "checkpoint",
            'model_checkpoint_path: "model.ckpt-300"\nall_model',
            ["model.ckpt-100"],
            'model_checkpoint_path: "model.ckpt-100"',
        ),
        (
            "latest-rank0.pt.symlink",
            "run/ep1-ba300-rank0.pt",
            ["ep0-ba100", "ep0-ba100-rank0.pt"],
            "run/ep0-ba100-rank0.pt",
        ),
        ("last_checkpoint", "iter_300.pth", ["step_100"], ""),
    ],
)
def test_a_pointer_is_rewritten_in_its_own_form(pointer, text, names, expected):
    assert format_pointer(pointer, 100, text, names) == expected
    assert parse_pointer(pointer, text) in (300, 9999)


def test_copies_of_the_last_file_are_found_beside_files_only():
    beside = list_objects("checkpoint_1_100.pt", "checkpoint_1_200.pt", "checkpoint_last.pt", "checkpoint_best.pt")
    assert [item.key for item in find_copies(beside)] == ["checkpoint_last.pt"]
    assert find_copies(list_objects("step-100/model.pt", "latest.pt")) == []


def test_names_of_unknown_layouts_are_distinguished_from_those_without_a_step():
    keys = ["weights-at-500/net.pt", "weights-at-500/a.pt", "ckpt.pt", "rank_03.pt", "best_acc_95.pt", "llama-7b/x.pt"]
    assert list_unknown_names(keys) == ["weights-at-500"]
