"""Checkpoints of scripts that know nothing of Rerail: whose layout is it, which step, and is all of it there?

Such saves have no manifest and no checksums. One is whole when what its layout needs is there, and every kind of file
that those beside it have, in the usual number and size; it is as old as the newest of its files. In doubt it is not
whole.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from rerail.model.checkpoints import MANIFEST, STEP_FOLDER, Checkpoint


class Layout(StrEnum):
    """How a script's saves are named and what is in them; `manifest` is ours."""

    MANIFEST = "manifest"
    HUGGING_FACE = "huggingface"
    LIGHTNING = "lightning"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    DEEPSPEED = "deepspeed"
    STEPS = "steps"


class StoredObject(NamedTuple):
    """An object below the checkpoint folder: its key from there on, its size, when it was written, its ETag."""

    key: str
    bytes: int
    at: datetime
    etag: str = ""


@dataclass(frozen=True, slots=True)
class LayoutCheckpoint:
    """One save of a script: a folder (`place` ends with a slash) or a single file, of a step, with the objects in it by
    their names within. `missing` says what is not there, or not all of it."""

    layout: Layout
    place: str
    step: int
    files: Mapping[str, StoredObject] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """All that the layout needs is there."""
        return not self.missing

    @property
    def parent(self) -> str:
        """The folder that it lies in, with its slash; "" is the checkpoint folder itself."""
        return _parent(self.place)

    @property
    def saved_at(self) -> datetime:
        """When the newest of its files was written."""
        return max(stored.at for stored in self.files.values())


# A name of one part of a key, and the layout that it belongs to. A Lightning file may be a folder too (sharded saves).
_NAMES: tuple[tuple[Layout, re.Pattern[str]], ...] = (
    (Layout.HUGGING_FACE, re.compile(r"checkpoint-(\d{1,18})")),
    (Layout.LIGHTNING, re.compile(r"(?:.*[-_])?step=(\d{1,18})(?!\d).*\.ckpt")),
    (Layout.MEGATRON, re.compile(r"iter_(\d{7,18})")),
    (Layout.DEEPSPEED, re.compile(r"global_step(\d{1,18})")),
    (Layout.STEPS, re.compile(r"step[-_](\d{1,18})")),
)
# What the uploader and writers leave beside a file while they are at work.
_PASSING = re.compile(r"(?:^|/)[^/]*(?:\.sagemaker-[^/]*|\.tmp)$")
QUARANTINE = "quarantine/"
LATEST, TRACKER = "latest", "latest_checkpointed_iteration.txt"
_TEXTS = {LATEST: Layout.DEEPSPEED, TRACKER: Layout.MEGATRON}
_LAST = re.compile(r"last(?:-v\d+)?\.ckpt")
_PART_OF = re.compile(r"(.*-)(\d{1,6})-of-(\d{1,6})(\..+)")
_SHARDED = re.compile(r"__\d+_\d+\.distcp")
# Binary state does not grow within a run; what is smaller is a piece of it. Text and small files do as they like.
_STATE = (".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".distcp")
_OTHER_STATE = (".h5", ".npz", ".msgpack", ".pkl", ".tar", ".index")
_WEIGHTY, _ENOUGH = 1 << 16, 0.99
# Without these a script falls over a save, if it takes it for one.
WEIGHTS, SHARDS, STATE, METADATA = "the weights", "the shards", "trainer_state.json", ".metadata"
UNLOADABLE = frozenset({WEIGHTS, SHARDS, STATE, METADATA})
# So many others without an optimizer are a script that does not save one.
_HABIT = 2


def find_checkpoints(
    stored: Sequence[StoredObject], pointers: Mapping[str, str] | None = None
) -> list[LayoutCheckpoint]:
    """The saves among these objects, newest step first; `pointers` are the texts of `pointer_files` by their keys.

    A folder in which anything has a manifest is of scripts that write them: that one has none of these."""
    if has_manifests(stored):
        return []
    grouped: dict[tuple[Layout, str, int], dict[str, StoredObject]] = defaultdict(dict)
    for each in stored:
        if (found := _place(each.key)) and not _PASSING.search(each.key):
            grouped[found][each.key.removeprefix(found[1]) or each.key.rpartition("/")[2]] = each
    bare = [LayoutCheckpoint(layout, place, step, files) for (layout, place, step), files in grouped.items()]
    named = [_renamed(save, bare) for save in bare]
    known = {place: text.strip() for place, text in (pointers or {}).items()}
    judged = [_judged(save, [other for other in named if _beside(save, other)], known) for save in named]
    return sorted(judged, key=lambda save: (save.step, save.saved_at), reverse=True)


def has_manifests(stored: Sequence[StoredObject]) -> bool:
    """Whoever saves there writes manifests: nothing without one is a checkpoint."""
    return any(_is_manifest(each.key) for each in stored)


def find_pointers(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """The small text files that name the save to go on from: their texts are worth reading."""
    parents = {(found[0], _parent(found[1])) for each in stored if (found := _place(each.key))}
    return [
        each
        for each in stored
        if (_TEXTS.get(each.key.rpartition("/")[2]), _parent(each.key)) in parents and _place(each.key) is None
    ]


def find_copies(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """Single files that are the last save once more: `last.ckpt`, whatever step that is of."""
    return [each for each in stored if _LAST.fullmatch(each.key.rpartition("/")[2]) and _place(each.key) is None]


def find_undated(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """What may well be saves, and nobody can tell of which step."""
    return [each for each in stored if _place(each.key) is None and _is_state(each.key)]


def parse_pointer(pointer: str, text: str) -> int | None:
    """The step that a pointer's text names; None where it names none."""
    layout = _TEXTS.get(pointer.rpartition("/")[2])
    match = re.fullmatch(r"(?:global_step|iter_)?(\d{1,18})", text.strip())
    return int(match[1]) if layout and match else None


def format_pointer(pointer: str, step: int) -> str:
    """The text of a pointer that names this step."""
    return str(step) if pointer.rpartition("/")[2] == TRACKER else f"global_step{step}"


def make_checkpoint(save: LayoutCheckpoint, *, uri: str) -> Checkpoint:
    """The save as the supervisor reckons with it; which attempt made it is not known from here."""
    return Checkpoint(
        uri=f"{uri}{save.place}",
        step=save.step,
        attempt=0,
        saved_at=save.saved_at,
        missing=save.missing,
        layout=save.layout,
    )


def _is_manifest(key: str) -> bool:
    folder, _, name = key.rpartition("/")
    return name == MANIFEST and bool(STEP_FOLDER.search(folder.rpartition("/")[2]))


def _is_state(key: str) -> bool:
    return key.endswith((*_STATE, *_OTHER_STATE)) and not key.startswith(QUARANTINE) and not _PASSING.search(key)


def _parent(place: str) -> str:
    """The folder that a file or a folder lies in, with its slash; "" is the checkpoint folder itself."""
    return place[: place.rstrip("/").rfind("/") + 1]


def _place(key: str) -> tuple[Layout, str, int] | None:
    """The layout, the place and the step of the outermost save that the key lies in."""
    if key.startswith(QUARANTINE) or key.endswith("/"):
        return None
    parts = key.split("/")
    for depth, part in enumerate(parts):
        is_file = depth == len(parts) - 1
        for layout, name in _NAMES:
            match = name.fullmatch(part)
            if match and (layout is Layout.LIGHTNING or not is_file):
                place = "/".join(parts[: depth + 1])
                return layout, place if is_file else f"{place}/", int(match[1])
    return None


def _renamed(save: LayoutCheckpoint, others: Sequence[LayoutCheckpoint]) -> LayoutCheckpoint:
    """Two names are used by several: what lies in such folders tells whose they are."""
    files = [name for other in others if _beside(save, other) or other is save for name in other.files]
    if save.layout is Layout.HUGGING_FACE and STATE not in files:
        return LayoutCheckpoint(Layout.STEPS, save.place, save.step, save.files)
    if save.layout is Layout.STEPS and any(_SHARDED.fullmatch(name) for name in files):
        return LayoutCheckpoint(Layout.TORCHTITAN, save.place, save.step, save.files)
    return save


def _beside(save: LayoutCheckpoint, other: LayoutCheckpoint) -> bool:
    same_kind = save.place.endswith("/") == other.place.endswith("/")
    return other is not save and other.layout is save.layout and other.parent == save.parent and same_kind


def _judged(
    save: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]
) -> LayoutCheckpoint:
    missing = [*_NEEDS[save.layout](save, others, pointers), *_unlike(save, others), *_parts(save)]
    if all(stored.bytes == 0 for stored in save.files.values()):
        missing.append("anything but empty files")
    return LayoutCheckpoint(save.layout, save.place, save.step, save.files, tuple(dict.fromkeys(missing)))


def _hugging_face(
    save: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]
) -> Iterator[str]:
    """The Trainer writes the weights, then the optimizer and the scheduler, then its own state."""
    if STATE not in save.files:
        yield STATE
    if not any(_is_weights(name) for name in save.files):
        yield WEIGHTS
    without = sum(not _has_optimizer(other) for other in others)
    if not _has_optimizer(save) and without < max(_HABIT, len(others)):
        yield "the optimizer's state"


def _is_weights(name: str) -> bool:
    first = name.partition("/")[0]
    of_weights = re.fullmatch(r"(?:adapter_)?(?:pytorch_)?model(?:-\d+-of-\d+)?\.(?:safetensors|bin)", first)
    return bool(of_weights) or ("/" in name and (first.startswith(("pytorch_model_fsdp", "global_step"))))


def _has_optimizer(save: LayoutCheckpoint) -> bool:
    return any(name.startswith(("optimizer", "global_step")) for name in save.files)


def _torchtitan(
    save: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]
) -> Iterator[str]:
    """The metadata are written when every rank has written its shards."""
    if METADATA not in save.files:
        yield METADATA
    if not any(name.endswith(".distcp") for name in save.files):
        yield SHARDS


def _pointed_at(
    save: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]
) -> Iterator[str]:
    """The pointer is written when the save is whole."""
    name = next(name for name, layout in _TEXTS.items() if layout is save.layout)
    pointed = parse_pointer(name, pointers.get(f"{save.parent}{name}", ""))
    if not others and (pointed is None or pointed < save.step):
        yield f"{name}, which names a save when it is whole"


def _alone(save: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]) -> Iterator[str]:
    """Nothing in it says that it is whole, but another one that looks the same."""
    if not others:
        yield "another save to compare it with"


def _one_file(save: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]) -> Iterator[str]:
    """A file appears in S3 when it is uploaded; a sharded save is a folder."""
    if save.place.endswith("/"):
        yield from _alone(save, others, pointers)


_Needs = Callable[[LayoutCheckpoint, Sequence[LayoutCheckpoint], Mapping[str, str]], Iterator[str]]
_NEEDS: Mapping[Layout, _Needs] = {
    Layout.HUGGING_FACE: _hugging_face,
    Layout.LIGHTNING: _one_file,
    Layout.TORCHTITAN: _torchtitan,
    Layout.MEGATRON: _pointed_at,
    Layout.DEEPSPEED: _pointed_at,
    Layout.STEPS: _alone,
}


def _unlike(save: LayoutCheckpoint, others: Sequence[LayoutCheckpoint]) -> Iterator[str]:
    """What the others have: every kind of file, as many as most of them, each of a size that is usual for it."""
    kinds = [_kinds(other) for other in others]
    mine = _kinds(save)
    for kind in sorted({kind for counted in kinds for kind in counted}):
        most = Counter(counted[kind] for counted in kinds if counted[kind]).most_common()
        usual = max(number for number, times in most if times == most[0][1])
        if mine[kind] < usual:
            yield f"{kind} ({mine[kind]} of {usual})"
    sizes: dict[str, list[int]] = defaultdict(list)
    for other in others:
        for name, stored in other.files.items():
            sizes[_own(other, name)].append(stored.bytes)
    for name, stored in save.files.items():
        of_others = sorted(sizes.get(_own(save, name), [0]))
        usual_size = of_others[len(of_others) // 2]
        if name.endswith(_STATE) and usual_size >= _WEIGHTY and stored.bytes < _ENOUGH * usual_size:
            yield f"{name} (cut short)"


def _kinds(save: LayoutCheckpoint) -> Counter[str]:
    return Counter(re.sub(r"\d+", "#", name) if save.place.endswith("/") else "#" for name in save.files)


def _own(save: LayoutCheckpoint, name: str) -> str:
    """The file's name, as the same file of another save would have it."""
    return name.replace(str(save.step), "#") if save.place.endswith("/") else "#"


def _parts(save: LayoutCheckpoint) -> Iterator[str]:
    """Files that say of how many they are one."""
    for name in save.files:
        if match := _PART_OF.fullmatch(name):
            numbers = range(1, int(match[3]) + 1) if int(match[3]) <= len(save.files) else ()
            there = [
                f"{match[1]}{number:0{len(match[2])}d}-of-{match[3]}{match[4]}" in save.files for number in numbers
            ]
            if not there or not all(there):
                yield f"{match[1]}*-of-{match[3]}{match[4]}"
