"""Checkpoints of scripts that do not use Rerail: recognize their layout and step, and check that they are complete.

Such checkpoints have no manifest and no checksums. A checkpoint is complete if it has the files that its layout needs,
and every kind of file that its siblings have, in the usual number and size. Its time is that of its newest file. In
doubt it counts as incomplete.
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
    """The names that a script gives its checkpoints and their files; `manifest` is Rerail's own layout."""

    MANIFEST = "manifest"
    HUGGING_FACE = "huggingface"
    LIGHTNING = "lightning"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    DEEPSPEED = "deepspeed"
    STEPS = "steps"


class StoredObject(NamedTuple):
    """An object below the checkpoint folder."""

    # Relative to the checkpoint folder.
    key: str
    # The size in bytes.
    bytes: int
    # When it was written.
    at: datetime
    etag: str = ""


@dataclass(frozen=True, slots=True)
class LayoutCheckpoint:
    """A checkpoint without a manifest: a folder or a single file."""

    layout: Layout
    # The path below the checkpoint folder; for a folder it ends with a slash.
    place: str
    step: int
    # The objects by their names within the checkpoint.
    files: Mapping[str, StoredObject] = field(default_factory=dict)
    # Descriptions of what is missing or incomplete.
    missing: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Return whether the checkpoint is complete."""
        return not self.missing

    @property
    def parent(self) -> str:
        """Return the containing folder with its final slash; "" is the checkpoint folder itself."""
        return _parent(self.place)

    @property
    def saved_at(self) -> datetime:
        """Return when the newest file was written."""
        return max(stored.at for stored in self.files.values())


# The layouts by the pattern of one part of a key. A Lightning checkpoint may be a folder too, if it is sharded.
_LAYOUT_PATTERNS: tuple[tuple[Layout, re.Pattern[str]], ...] = (
    (Layout.HUGGING_FACE, re.compile(r"checkpoint-(\d{1,18})")),
    (Layout.LIGHTNING, re.compile(r"(?:.*[-_])?step=(\d{1,18})(?!\d).*\.ckpt")),
    (Layout.MEGATRON, re.compile(r"iter_(\d{7,18})")),
    (Layout.DEEPSPEED, re.compile(r"global_step(\d{1,18})")),
    (Layout.STEPS, re.compile(r"step[-_](\d{1,18})")),
)
# Temporary files of the uploader and of writers.
_TEMPORARY = re.compile(r"(?:^|/)[^/]*(?:\.sagemaker-[^/]*|\.tmp)$")
QUARANTINE = "quarantine/"
LATEST, TRACKER = "latest", "latest_checkpointed_iteration.txt"
_POINTER_LAYOUTS = {LATEST: Layout.DEEPSPEED, TRACKER: Layout.MEGATRON}
_LAST = re.compile(r"last(?:-v\d+)?\.ckpt")
_PART_OF = re.compile(r"(.*-)(\d{1,6})-of-(\d{1,6})(\..+)")
_SHARDED = re.compile(r"__\d+_\d+\.distcp")
# Binary state keeps its size within a run, so a smaller file is truncated. Text and small files may vary.
_STATE_SUFFIXES = (".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".distcp")
_OTHER_STATE_SUFFIXES = (".h5", ".npz", ".msgpack", ".pkl", ".tar", ".index")
_MIN_CHECKED_BYTES, _MIN_SIZE_SHARE = 1 << 16, 0.99
# A script that finds a checkpoint without one of these fails to load it.
WEIGHTS, SHARDS, STATE, METADATA = "the weights", "the shards", "trainer_state.json", ".metadata"
UNLOADABLE = frozenset({WEIGHTS, SHARDS, STATE, METADATA})
# If this many siblings have no optimizer state, the script does not checkpoint any.
_MIN_WITHOUT_OPTIMIZER = 2


def find_checkpoints(
    stored: Sequence[StoredObject], pointers: Mapping[str, str] | None = None
) -> list[LayoutCheckpoint]:
    """Return the checkpoints among these objects, newest step first.

    `pointers` are the contents of the files from `find_pointers` by key. If there is any manifest, return none: then
    the script writes manifests, and other objects are not checkpoints.
    """
    if has_manifests(stored):
        return []
    grouped: dict[tuple[Layout, str, int], dict[str, StoredObject]] = defaultdict(dict)
    for item in stored:
        if (location := _locate(item.key)) and not _TEMPORARY.search(item.key):
            grouped[location][item.key.removeprefix(location[1]) or item.key.rpartition("/")[2]] = item
    bare = [LayoutCheckpoint(layout, place, step, files) for (layout, place, step), files in grouped.items()]
    named = [_with_resolved_layout(checkpoint, bare) for checkpoint in bare]
    known = {place: text.strip() for place, text in (pointers or {}).items()}
    checked = [
        _with_missing(checkpoint, [other for other in named if _is_sibling(checkpoint, other)], known)
        for checkpoint in named
    ]
    return sorted(checked, key=lambda checkpoint: (checkpoint.step, checkpoint.saved_at), reverse=True)


def has_manifests(stored: Sequence[StoredObject]) -> bool:
    """Return whether there is any manifest; then objects without one are not checkpoints."""
    return any(_is_manifest(item.key) for item in stored)


def find_pointers(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """Return the small text files that name the checkpoint to resume from."""
    parents = {(location[0], _parent(location[1])) for item in stored if (location := _locate(item.key))}
    return [
        item
        for item in stored
        if (_POINTER_LAYOUTS.get(item.key.rpartition("/")[2]), _parent(item.key)) in parents
        and _locate(item.key) is None
    ]


def find_copies(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """Return the files that are copies of the last checkpoint, such as `last.ckpt`, whose step is unknown."""
    return [item for item in stored if _LAST.fullmatch(item.key.rpartition("/")[2]) and _locate(item.key) is None]


def find_undated(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """Return the files that may be checkpoints but whose step cannot be determined."""
    return [item for item in stored if _locate(item.key) is None and _is_state(item.key)]


def parse_pointer(pointer: str, text: str) -> int | None:
    """Return the step that a pointer file names, or None."""
    layout = _POINTER_LAYOUTS.get(pointer.rpartition("/")[2])
    match = re.fullmatch(r"(?:global_step|iter_)?(\d{1,18})", text.strip())
    return int(match[1]) if layout and match else None


def format_pointer(pointer: str, step: int) -> str:
    """Return the content of a pointer file that names this step."""
    return str(step) if pointer.rpartition("/")[2] == TRACKER else f"global_step{step}"


def make_checkpoint(checkpoint: LayoutCheckpoint, *, uri: str) -> Checkpoint:
    """Return the checkpoint as a core record, with attempt 0, since its attempt is not known here."""
    return Checkpoint(
        uri=f"{uri}{checkpoint.place}",
        step=checkpoint.step,
        attempt=0,
        saved_at=checkpoint.saved_at,
        missing=checkpoint.missing,
        layout=checkpoint.layout,
    )


def _is_manifest(key: str) -> bool:
    folder, _, name = key.rpartition("/")
    return name == MANIFEST and bool(STEP_FOLDER.search(folder.rpartition("/")[2]))


def _is_state(key: str) -> bool:
    return (
        key.endswith((*_STATE_SUFFIXES, *_OTHER_STATE_SUFFIXES))
        and not key.startswith(QUARANTINE)
        and not _TEMPORARY.search(key)
    )


def _parent(place: str) -> str:
    """Return the folder that contains a path, with its final slash; "" is the checkpoint folder itself."""
    return place[: place.rstrip("/").rfind("/") + 1]


def _locate(key: str) -> tuple[Layout, str, int] | None:
    """Return the layout, path and step of the outermost checkpoint that contains the key, or None."""
    if key.startswith(QUARANTINE) or key.endswith("/"):
        return None
    parts = key.split("/")
    for depth, part in enumerate(parts):
        is_file = depth == len(parts) - 1
        for layout, name in _LAYOUT_PATTERNS:
            match = name.fullmatch(part)
            if match and (layout is Layout.LIGHTNING or not is_file):
                place = "/".join(parts[: depth + 1])
                return layout, place if is_file else f"{place}/", int(match[1])
    return None


def _with_resolved_layout(checkpoint: LayoutCheckpoint, others: Sequence[LayoutCheckpoint]) -> LayoutCheckpoint:
    """Return the checkpoint with its layout resolved by its files, since two folder names are used by several."""
    files = [name for other in others if _is_sibling(checkpoint, other) or other is checkpoint for name in other.files]
    if checkpoint.layout is Layout.HUGGING_FACE and STATE not in files:
        return LayoutCheckpoint(Layout.STEPS, checkpoint.place, checkpoint.step, checkpoint.files)
    if checkpoint.layout is Layout.STEPS and any(_SHARDED.fullmatch(name) for name in files):
        return LayoutCheckpoint(Layout.TORCHTITAN, checkpoint.place, checkpoint.step, checkpoint.files)
    return checkpoint


def _is_sibling(checkpoint: LayoutCheckpoint, other: LayoutCheckpoint) -> bool:
    same_kind = checkpoint.place.endswith("/") == other.place.endswith("/")
    return (
        other is not checkpoint
        and other.layout is checkpoint.layout
        and other.parent == checkpoint.parent
        and same_kind
    )


def _with_missing(
    checkpoint: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]
) -> LayoutCheckpoint:
    missing = [
        *_CHECKS[checkpoint.layout](checkpoint, others, pointers),
        *_compare_with_siblings(checkpoint, others),
        *_check_numbered_parts(checkpoint),
    ]
    if all(stored.bytes == 0 for stored in checkpoint.files.values()):
        missing.append("anything but empty files")
    return LayoutCheckpoint(
        checkpoint.layout, checkpoint.place, checkpoint.step, checkpoint.files, tuple(dict.fromkeys(missing))
    )


def _check_hugging_face(
    checkpoint: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]
) -> Iterator[str]:
    """Yield what is missing: the Trainer writes the weights, then optimizer and scheduler, then its own state."""
    if STATE not in checkpoint.files:
        yield STATE
    if not any(_is_weights(name) for name in checkpoint.files):
        yield WEIGHTS
    without = sum(not _has_optimizer(other) for other in others)
    if not _has_optimizer(checkpoint) and without < max(_MIN_WITHOUT_OPTIMIZER, len(others)):
        yield "the optimizer's state"


def _is_weights(name: str) -> bool:
    first = name.partition("/")[0]
    of_weights = re.fullmatch(r"(?:adapter_)?(?:pytorch_)?model(?:-\d+-of-\d+)?\.(?:safetensors|bin)", first)
    return bool(of_weights) or ("/" in name and (first.startswith(("pytorch_model_fsdp", "global_step"))))


def _has_optimizer(checkpoint: LayoutCheckpoint) -> bool:
    return any(name.startswith(("optimizer", "global_step")) for name in checkpoint.files)


def _check_torchtitan(
    checkpoint: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]
) -> Iterator[str]:
    """Yield what is missing; the metadata are written after all ranks have written their shards."""
    if METADATA not in checkpoint.files:
        yield METADATA
    if not any(name.endswith(".distcp") for name in checkpoint.files):
        yield SHARDS


def _check_pointer(
    checkpoint: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]
) -> Iterator[str]:
    """Yield the pointer file if it does not confirm the checkpoint; it is written once the checkpoint is complete."""
    name = next(name for name, layout in _POINTER_LAYOUTS.items() if layout is checkpoint.layout)
    pointed = parse_pointer(name, pointers.get(f"{checkpoint.parent}{name}", ""))
    if not others and (pointed is None or pointed < checkpoint.step):
        yield f"{name}, which names a checkpoint once it is complete"


def _check_comparable(
    checkpoint: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]
) -> Iterator[str]:
    """Yield a problem if there is no sibling: only a comparison shows whether the checkpoint is complete."""
    if not others:
        yield "another checkpoint to compare it with"


def _check_lightning(
    checkpoint: LayoutCheckpoint, others: Sequence[LayoutCheckpoint], pointers: Mapping[str, str]
) -> Iterator[str]:
    """Check a sharded checkpoint, which is a folder; a single file appears in S3 only once it is uploaded."""
    if checkpoint.place.endswith("/"):
        yield from _check_comparable(checkpoint, others, pointers)


_Check = Callable[[LayoutCheckpoint, Sequence[LayoutCheckpoint], Mapping[str, str]], Iterator[str]]
_CHECKS: Mapping[Layout, _Check] = {
    Layout.HUGGING_FACE: _check_hugging_face,
    Layout.LIGHTNING: _check_lightning,
    Layout.TORCHTITAN: _check_torchtitan,
    Layout.MEGATRON: _check_pointer,
    Layout.DEEPSPEED: _check_pointer,
    Layout.STEPS: _check_comparable,
}


def _compare_with_siblings(checkpoint: LayoutCheckpoint, others: Sequence[LayoutCheckpoint]) -> Iterator[str]:
    """Yield the files that are missing or too small, compared with the usual number and size in the siblings."""
    kinds = [_count_kinds(other) for other in others]
    mine = _count_kinds(checkpoint)
    for kind in sorted({kind for counted in kinds for kind in counted}):
        most = Counter(counted[kind] for counted in kinds if counted[kind]).most_common()
        usual = max(number for number, times in most if times == most[0][1])
        if mine[kind] < usual:
            yield f"{kind} ({mine[kind]} of {usual})"
    sizes: dict[str, list[int]] = defaultdict(list)
    for other in others:
        for name, stored in other.files.items():
            sizes[_without_step(other, name)].append(stored.bytes)
    for name, stored in checkpoint.files.items():
        of_others = sorted(sizes.get(_without_step(checkpoint, name), [0]))
        usual_size = of_others[len(of_others) // 2]
        if (
            name.endswith(_STATE_SUFFIXES)
            and usual_size >= _MIN_CHECKED_BYTES
            and stored.bytes < _MIN_SIZE_SHARE * usual_size
        ):
            yield f"{name} (truncated)"


def _count_kinds(checkpoint: LayoutCheckpoint) -> Counter[str]:
    return Counter(re.sub(r"\d+", "#", name) if checkpoint.place.endswith("/") else "#" for name in checkpoint.files)


def _without_step(checkpoint: LayoutCheckpoint, name: str) -> str:
    """Return the file's name without the step, so that it is the same in all checkpoints."""
    return name.replace(str(checkpoint.step), "#") if checkpoint.place.endswith("/") else "#"


def _check_numbered_parts(checkpoint: LayoutCheckpoint) -> Iterator[str]:
    """Yield incomplete sets of files that are named `...-00001-of-00004...`."""
    for name in checkpoint.files:
        if match := _PART_OF.fullmatch(name):
            numbers = range(1, int(match[3]) + 1) if int(match[3]) <= len(checkpoint.files) else ()
            present = [
                f"{match[1]}{number:0{len(match[2])}d}-of-{match[3]}{match[4]}" in checkpoint.files
                for number in numbers
            ]
            if not present or not all(present):
                yield f"{match[1]}*-of-{match[3]}{match[4]}"
