"""Checkpoints of scripts that do not use Rerail: recognize their layout and step, and check that they are complete.

Such checkpoints have no manifest and no checksums. A checkpoint is complete if it has the files that its layout needs,
and every kind of file that its siblings have, in the usual number and size. Its time is that of its newest file. In
doubt it counts as incomplete.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
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
    # One file that the script overwrites in place, such as `ckpt.pt`: its step is unknown.
    FILE = "file"


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
    def has_manifest(self) -> bool:
        """Return whether there is a manifest, which says more than the layout."""
        return MANIFEST in self.files

    @property
    def is_unfinished(self) -> bool:
        """Return whether its manifest and other files are still to come, as after the save before it."""
        return MANIFEST in self.missing and len(self.missing) > 1

    @property
    def parent(self) -> str:
        """Return the containing folder with its final slash; "" is the checkpoint folder itself."""
        return _parent(self.place)

    @property
    def saved_at(self) -> datetime:
        """Return when the newest file was written."""
        return max(stored.at for stored in self.files.values())


# The folders of checkpoints, in one pattern that reads a key once, and the layout of each of its groups.
_FOLDER = re.compile(
    r"(?:^|/)(?:checkpoint-(\d{1,18})|iter_(\d{7,18})|global_step(\d{1,18})|step[-_](\d{1,18}))/", re.ASCII
)
_FOLDER_LAYOUTS = (Layout.HUGGING_FACE, Layout.MEGATRON, Layout.DEEPSPEED, Layout.STEPS)
# In the name of a Lightning checkpoint, which is a file, or a folder if it is sharded.
_LIGHTNING_STEP, _LIGHTNING_SUFFIX = re.compile(r"(?:^|[-_])step=(\d{1,18})(?!\d)", re.ASCII), ".ckpt"
# In the names of temporary files of the uploader and of writers.
_UPLOADING, _WRITING = ".sagemaker-", ".tmp"
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
UNKNOWN_STEP = "a step in its name"
_MAX_SINGLE_FILES = 20
# At most so many kinds of missing files are named.
_MAX_MISSING = 20
# If this many siblings have no optimizer state, the script does not checkpoint any.
_MIN_WITHOUT_OPTIMIZER = 2


def find_checkpoints(
    stored: Sequence[StoredObject], pointers: Mapping[str, str] | None = None
) -> list[LayoutCheckpoint]:
    """Return the checkpoints among these objects, newest step first.

    `pointers` are the contents of the files from `find_pointers` by key. Those with a manifest are among them: others
    are compared with them, and whoever resumes from manifests passes them over.
    """
    grouped: dict[tuple[Layout, str, int], dict[str, StoredObject]] = defaultdict(dict)
    for item in stored:
        if (location := _locate(item.key)) and not _is_temporary(item.key):
            grouped[location][item.key.removeprefix(location[1]) or item.key.rpartition("/")[2]] = item
    bare = [LayoutCheckpoint(layout, place, step, files) for (layout, place, step), files in grouped.items()]
    named = [checkpoint for siblings in _group_siblings(bare) for checkpoint in _with_resolved_layout(siblings)]
    known = {place: text.strip() for place, text in (pointers or {}).items()}
    checked = [
        _with_missing(checkpoint, group, known)
        for siblings in _group_siblings(named)
        for group in (_Siblings(siblings),)
        for checkpoint in siblings
    ]
    return sorted(checked, key=lambda checkpoint: (checkpoint.step, checkpoint.saved_at), reverse=True)


def has_manifests(stored: Sequence[StoredObject]) -> bool:
    """Return whether a checkpoint folder has a manifest."""
    return any(_is_manifest(item.key) for item in stored)


def find_folder_step(folder: str) -> int | None:
    """Return the step of a checkpoint folder, named with its final slash; None if it is another folder."""
    location = _locate(f"{folder}.")
    return location[2] if location and location[1] == folder else None


def find_pointers(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """Return the small text files that name the checkpoint to resume from."""
    named = [item for item in stored if item.key.rpartition("/")[2] in _POINTER_LAYOUTS]
    if not named:
        return []
    parents = {(location[0], _parent(location[1])) for item in stored if (location := _locate(item.key))}
    return [
        item
        for item in named
        if (_POINTER_LAYOUTS.get(item.key.rpartition("/")[2]), _parent(item.key)) in parents
        and _locate(item.key) is None
    ]


def find_copies(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """Return the files that are copies of the last checkpoint, such as `last.ckpt`, whose step is unknown."""
    return [item for item in stored if _LAST.fullmatch(item.key.rpartition("/")[2]) and _locate(item.key) is None]


def find_undated(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """Return the files that may be checkpoints but whose step cannot be determined."""
    return [item for item in stored if _locate(item.key) is None and _is_state(item.key)]


def find_single_files(stored: Sequence[StoredObject], *, uri: str) -> list[Checkpoint]:
    """Return the files that a script overwrites in place, newest first; none where there are checkpoints with a step.

    They count as incomplete, since their step is unknown: Rerail never resumes from them, and their change is a save.
    """
    single = sorted((*find_undated(stored), *find_copies(stored)), key=lambda item: (item.at, item.key), reverse=True)
    return [
        Checkpoint(
            f"{uri}{item.key}",
            0,
            0,
            item.at,
            missing=(UNKNOWN_STEP,),
            layout=Layout.FILE,
            etag=item.etag.strip('"'),
            bytes=item.bytes,
        )
        for item in dict.fromkeys(single[:_MAX_SINGLE_FILES])
    ]


def list_save_times(checkpoints: Sequence[Checkpoint]) -> list[datetime]:
    """Return when checkpoints were saved, oldest first; the times of several overwritten files are no interval."""
    files = [checkpoint.saved_at for checkpoint in checkpoints if checkpoint.layout == Layout.FILE]
    others = [checkpoint.saved_at for checkpoint in checkpoints if checkpoint.layout != Layout.FILE]
    return sorted([*others, *([max(files)] if files else [])])


def is_truncated(size: int, *, usual: int) -> bool:
    """Return whether a file of binary state is smaller than usual within its run; small files may vary."""
    return usual >= _MIN_CHECKED_BYTES and size < _MIN_SIZE_SHARE * usual


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
        and not _is_temporary(key)
    )


def _is_temporary(key: str) -> bool:
    return _UPLOADING in key.rpartition("/")[2] or key.endswith(_WRITING)


def _parent(place: str) -> str:
    """Return the folder that contains a path, with its final slash; "" is the checkpoint folder itself."""
    return place[: place.rstrip("/").rfind("/") + 1]


def _locate(key: str) -> tuple[Layout, str, int] | None:
    """Return the layout, path and step of the outermost checkpoint that contains the key, or None."""
    if key.startswith(QUARANTINE) or key.endswith("/"):
        return None
    folder = _FOLDER.search(key)
    if _LIGHTNING_SUFFIX in key and (found := _locate_lightning(key, before=folder.start() if folder else len(key))):
        return found
    if folder is None or not folder.lastindex:
        return None
    return _FOLDER_LAYOUTS[folder.lastindex - 1], key[: folder.end()], int(folder[folder.lastindex])


def _locate_lightning(key: str, *, before: int) -> tuple[Layout, str, int] | None:
    """Return the outermost Lightning checkpoint that contains the key and starts before this position, or None."""
    start = 0
    for part in key.split("/"):
        if start >= before and start > 0:
            return None
        end = start + len(part)
        if part.endswith(_LIGHTNING_SUFFIX) and "\n" not in part:
            steps = _LIGHTNING_STEP.findall(part)
            if steps:
                return Layout.LIGHTNING, key[: end + 1], int(steps[-1])
        start = end + 1
    return None


def _group_siblings(checkpoints: Sequence[LayoutCheckpoint]) -> list[list[LayoutCheckpoint]]:
    """Return the checkpoints in groups of one layout and folder; files and folders are never siblings."""
    groups: dict[tuple[Layout, str, bool], list[LayoutCheckpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        groups[checkpoint.layout, checkpoint.parent, checkpoint.place.endswith("/")].append(checkpoint)
    return list(groups.values())


def _with_resolved_layout(siblings: Sequence[LayoutCheckpoint]) -> Sequence[LayoutCheckpoint]:
    """Return siblings with their layout resolved by their files, since two folder names are used by several."""
    layout = siblings[0].layout
    if layout is Layout.HUGGING_FACE and not any(STATE in checkpoint.files for checkpoint in siblings):
        return [replace(checkpoint, layout=Layout.STEPS) for checkpoint in siblings]
    if layout is Layout.STEPS and any(_SHARDED.fullmatch(name) for checkpoint in siblings for name in checkpoint.files):
        return [replace(checkpoint, layout=Layout.TORCHTITAN) for checkpoint in siblings]
    return siblings


class _Siblings:
    """The common properties of siblings, read once: each is compared with all others in constant time."""

    def __init__(self, checkpoints: Sequence[LayoutCheckpoint]) -> None:
        self.count = len(checkpoints)
        by_time = sorted(checkpoints, key=lambda checkpoint: (checkpoint.saved_at, checkpoint.step))
        # The places of those that were saved just after one with a manifest: theirs is still to come.
        self.lack_manifest = {
            later.place for earlier, later in pairwise(by_time) if earlier.has_manifest and not later.has_manifest
        }
        self.without_optimizer = sum(not _has_optimizer(checkpoint) for checkpoint in checkpoints)
        times: dict[str, Counter[int]] = defaultdict(Counter)
        self._sizes: dict[str, list[int]] = defaultdict(list)
        for checkpoint in checkpoints:
            for kind, number in _count_kinds(checkpoint).items():
                times[kind][number] += 1
            for name, stored in checkpoint.files.items():
                self._sizes[_without_step(checkpoint, name)].append(stored.bytes)
        for sizes in self._sizes.values():
            sizes.sort()
        # The two most usual numbers of files, with how often each occurs: one checkpoint changes the order of no more.
        self._usual = {
            kind: sorted(((often, number) for number, often in counted.items()), reverse=True)[:2]
            for kind, counted in sorted(times.items())
        }

    def list_too_few(self, mine: Counter[str]) -> Iterator[str]:
        """Yield the kinds of file of which a checkpoint has fewer than the others usually have."""
        named = 0
        for kind, usual in self._usual.items():
            if named == _MAX_MISSING:
                yield "and more"
                return
            others = [(often - (number == mine[kind]), number) for often, number in usual]
            often, number = max(others)
            if often and mine[kind] < number:
                named += 1
                yield f"{kind} ({mine[kind]} of {number})"

    def find_usual_size(self, name: str, own: Sequence[int]) -> int:
        """Return the median size of a file in the others, without these sizes; 0 if none of them has it."""
        sizes = self._sizes.get(name, [])
        left = len(sizes) - len(own)
        if left <= 0:
            return 0
        index, skipped = left // 2, 0
        before = -1
        for size in sorted(own):
            position = max(bisect_left(sizes, size), before + 1)
            before = position
            if position > index + skipped:
                break
            skipped += 1
        return sizes[index + skipped]


def _with_missing(checkpoint: LayoutCheckpoint, siblings: _Siblings, pointers: Mapping[str, str]) -> LayoutCheckpoint:
    missing = [
        *_CHECKS[checkpoint.layout](checkpoint, siblings, pointers),
        *_compare_with_siblings(checkpoint, siblings),
        *_check_numbered_parts(checkpoint),
    ]
    if all(stored.bytes == 0 for name, stored in checkpoint.files.items() if name != MANIFEST):
        missing.append("anything but empty files")
    if checkpoint.place in siblings.lack_manifest:
        missing.append(MANIFEST)
    return replace(checkpoint, missing=tuple(dict.fromkeys(missing)))


def _check_hugging_face(
    checkpoint: LayoutCheckpoint, siblings: _Siblings, pointers: Mapping[str, str]
) -> Iterator[str]:
    """Yield what is missing: the Trainer writes the weights, then optimizer and scheduler, then its own state."""
    if STATE not in checkpoint.files:
        yield STATE
    if not any(_is_weights(name) for name in checkpoint.files):
        yield WEIGHTS
    others = siblings.count - 1
    if not _has_optimizer(checkpoint) and siblings.without_optimizer - 1 < max(_MIN_WITHOUT_OPTIMIZER, others):
        yield "the optimizer's state"


def _is_weights(name: str) -> bool:
    first = name.partition("/")[0]
    of_weights = re.fullmatch(r"(?:adapter_)?(?:pytorch_)?model(?:-\d+-of-\d+)?\.(?:safetensors|bin)", first)
    return bool(of_weights) or ("/" in name and (first.startswith(("pytorch_model_fsdp", "global_step"))))


def _has_optimizer(checkpoint: LayoutCheckpoint) -> bool:
    return any(name.startswith(("optimizer", "global_step")) for name in checkpoint.files)


def _check_torchtitan(checkpoint: LayoutCheckpoint, siblings: _Siblings, pointers: Mapping[str, str]) -> Iterator[str]:
    """Yield what is missing; the metadata are written after all ranks have written their shards."""
    if METADATA not in checkpoint.files:
        yield METADATA
    if not any(name.endswith(".distcp") for name in checkpoint.files):
        yield SHARDS


def _check_pointer(checkpoint: LayoutCheckpoint, siblings: _Siblings, pointers: Mapping[str, str]) -> Iterator[str]:
    """Yield the pointer file if it does not confirm the checkpoint; it is written once the checkpoint is complete."""
    name = next(name for name, layout in _POINTER_LAYOUTS.items() if layout is checkpoint.layout)
    pointed = parse_pointer(name, pointers.get(f"{checkpoint.parent}{name}", ""))
    if siblings.count == 1 and (pointed is None or pointed < checkpoint.step):
        yield f"{name}, which names a checkpoint once it is complete"


def _check_comparable(checkpoint: LayoutCheckpoint, siblings: _Siblings, pointers: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem if there is no sibling: only a comparison shows whether the checkpoint is complete."""
    if siblings.count == 1:
        yield "another checkpoint to compare it with"


def _check_lightning(checkpoint: LayoutCheckpoint, siblings: _Siblings, pointers: Mapping[str, str]) -> Iterator[str]:
    """Check a sharded checkpoint, which is a folder; a single file appears in S3 only once it is uploaded."""
    if checkpoint.place.endswith("/"):
        yield from _check_comparable(checkpoint, siblings, pointers)


_Check = Callable[[LayoutCheckpoint, _Siblings, Mapping[str, str]], Iterator[str]]
_CHECKS: Mapping[Layout, _Check] = {
    Layout.HUGGING_FACE: _check_hugging_face,
    Layout.LIGHTNING: _check_lightning,
    Layout.TORCHTITAN: _check_torchtitan,
    Layout.MEGATRON: _check_pointer,
    Layout.DEEPSPEED: _check_pointer,
    Layout.STEPS: _check_comparable,
}


def _compare_with_siblings(checkpoint: LayoutCheckpoint, siblings: _Siblings) -> Iterator[str]:
    """Yield the files that are missing or too small, compared with the usual number and size in the siblings."""
    yield from siblings.list_too_few(_count_kinds(checkpoint))
    own: dict[str, list[int]] = defaultdict(list)
    for name, stored in checkpoint.files.items():
        own[_without_step(checkpoint, name)].append(stored.bytes)
    usual = {name: siblings.find_usual_size(name, sizes) for name, sizes in own.items()}
    for name, stored in checkpoint.files.items():
        if not name.endswith(_STATE_SUFFIXES):
            continue
        usual_size = usual[_without_step(checkpoint, name)]
        if is_truncated(stored.bytes, usual=usual_size):
            yield f"{name} (truncated)"


def _count_kinds(checkpoint: LayoutCheckpoint) -> Counter[str]:
    is_folder = checkpoint.place.endswith("/")
    return Counter(_make_kind(name) if is_folder else "#" for name in checkpoint.files if name != MANIFEST)


@lru_cache(maxsize=20_000)  # names repeat in each checkpoint; a listing has no more
def _make_kind(name: str) -> str:
    """Return the file's name without its numbers."""
    return re.sub(r"\d+", "#", name)


def _without_step(checkpoint: LayoutCheckpoint, name: str) -> str:
    """Return the file's name without the step, so that it is the same in all checkpoints."""
    return name.replace(str(checkpoint.step), "#") if checkpoint.place.endswith("/") else "#"


def _check_numbered_parts(checkpoint: LayoutCheckpoint) -> Iterator[str]:
    """Yield incomplete sets of files that are named `...-00001-of-00004...`."""
    sets = dict.fromkeys(
        (match[1], len(match[2]), match[3], match[4])
        for match in map(_PART_OF.fullmatch, checkpoint.files)
        if match is not None
    )
    for first, digits, last, rest in sets:
        # `all` ends at the first missing part, so that this takes no longer than the set has files.
        numbers = range(1, int(last) + 1)
        if not numbers or not all(
            f"{first}{number:0{digits}d}-of-{last}{rest}" in checkpoint.files for number in numbers
        ):
            yield f"{first}*-of-{last}{rest}"
