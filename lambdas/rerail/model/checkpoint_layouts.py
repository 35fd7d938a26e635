"""Checkpoints of scripts that do not use Rerail: recognize their layout and step, and check that they are complete.

Such checkpoints have no manifest and no checksums. `LAYOUTS` says for each layout how its checkpoints are named and
what they need. Besides, a checkpoint must have each kind of file that at least half of its siblings have, in the usual
number and size; a set of shards may also be judged by itself. Its time is that of its newest file. In doubt it counts
as incomplete.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from math import gcd
from posixpath import commonprefix
from typing import NamedTuple

from rerail.model.checkpoints import MANIFEST, STEP_FOLDER, Checkpoint


class Layout(StrEnum):
    """The layout as records store it; `manifest` is Rerail's own. `KnownLayout.name` is finer, and never stored."""

    MANIFEST = "manifest"
    HUGGING_FACE = "huggingface"
    LIGHTNING = "lightning"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    DEEPSPEED = "deepspeed"
    STEPS = "steps"
    # A file or folder whose step is unknown, such as `ckpt.pt`, which the script overwrites in place.
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


class Counts(StrEnum):
    """What the number in a checkpoint's name counts. Epochs and saves order checkpoints, but tell no step."""

    STEPS = "step"
    EPOCHS = "epoch"
    SAVES = "save"
    # Steps, unless the numbers are so close together that they count saves: `_resolve_counts`.
    UNSURE = "unsure"


QUARANTINE = "quarantine/"
LATEST, TRACKER = "latest", "latest_checkpointed_iteration.txt"
# Pointers that hold a number or the name of a checkpoint: nanotron's, detectron2's and mmengine's, TensorFlow's.
LATEST_STEP, LAST_NAME, TENSORFLOW = "latest.txt", "last_checkpoint", "checkpoint"
SYMLINK = "latest-rank0.pt.symlink"
# A script that finds a checkpoint without one of these fails to load it.
WEIGHTS, SHARDS, STATE, METADATA = "the weights", "the shards", "trainer_state.json", ".metadata"
WITHOUT_LATEST = f"{LATEST}, without which DeepSpeed loads nothing"
UNLOADABLE = frozenset({WEIGHTS, SHARDS, STATE, METADATA, WITHOUT_LATEST})
BARE, COMPANION = "bare numbers", "files that belong to another of the same number"
OPTIMIZER, UNKNOWN_STEP = "the optimizer's state", "a step in its name"


@dataclass(frozen=True, slots=True, eq=False)
class KnownLayout:
    """One layout: what its checkpoints are called, and what each of them needs."""

    # The frameworks that write it.
    name: str
    # The whole name of a checkpoint's folder, or of each of its files; its group is the number.
    pattern: str
    layout: Layout = Layout.STEPS
    counts: Counts = Counts.STEPS
    # Layouts with the same names are told apart by a file that at least one checkpoint has.
    sign: str = ""
    # What each checkpoint needs, in words, and the names of files that prove it.
    needs: tuple[tuple[str, str], ...] = ()
    # The file beside the checkpoints that names the last one, written once that is complete.
    pointer: str = ""
    # What it needs proves that it is complete; otherwise only a pointer or a comparison with siblings does.
    is_proven: bool = False
    # Its loader needs more than weights, whatever the script.
    needs_optimizer: bool = False


_N = r"(\d{1,18})"
_CHECKPOINT, _OF_RANKS = rf"checkpoint-{_N}/", r"(?:-(?:shard|rank-)\d+)*"
_DISTCP = r"(?:.*/)?__\d+_\d+\.distcp"
_DISTRIBUTED = ((METADATA, r"(?:.*/)?\.metadata"), (SHARDS, _DISTCP))
_ORBAX, _COMMITTED = r"(?:.*/)?(?:_CHECKPOINT_METADATA|_METADATA|manifest\.ocdbt)|checkpoint", r"commit_success\.txt"
_ORBAX_NEEDS = (("commit_success.txt", _COMMITTED), ("the manifest", r".*/(?:manifest\.ocdbt|_METADATA|\.zarray)"))
_WEIGHTS = (
    r"(?:(?:adapter_)?(?:pytorch_)?model(?:-\d+-of-\d+)?\.(?:safetensors|bin)|(?:model_state|adapter_model)\S*\.pdparams"
    r"|model-\d+-of-\d+\.pdparams|tf_model\.h5)|pytorch_model_fsdp(?:[^/]*/.*|\.bin)|global_step[^/]*/.*model_states\.pt"
)
_GAN = (("the generator", r"G_.*"), ("the discriminator", r"D_.*"))
_HF = ((STATE, STATE), (WEIGHTS, _WEIGHTS))
# A suffix of state that a framework writes. `.bin` and `.safetensors` hold weights.
_SUFFIX = r"\.(?:pt|pth|ckpt|bin|safetensors|h5|keras|npz|msgpack|pkl|tar|hdf5|pdparams|pdopt|index|data-\d+-of-\d+)"
# What follows a number in a name: not a part of several, nor the fraction of a metric.
_REST = rf"(?!\d|-of-|\.\d)(?:[-_.].*)?{_SUFFIX}"
_BEFORE, _METRIC = r"(?:checkpoint|ckpt|model|epoch[-_]?\d+)", r"(?:[-_](?:[a-z]+[-_])?(?:loss|acc|ppl)\S*)?"
_TF = r"\.(?:index|meta|data-\d+-of-\d+)"
_TF_NEEDS = (("the index", r".*\.index"), (SHARDS, r".*\.data-\d+-of-\d+"))

# Of rows with the same pattern, the first counts whose sign is there. Folders before files.
LAYOUTS = (
    KnownLayout(
        "Hugging Face Trainer, PaddleNLP", _CHECKPOINT, Layout.HUGGING_FACE, sign=STATE, needs=_HF, is_proven=True
    ),
    KnownLayout("diffusers, accelerate", _CHECKPOINT, needs_optimizer=True),
    KnownLayout("Megatron", r"iter_(\d{7,18})/", Layout.MEGATRON, pointer=TRACKER),
    KnownLayout("DeepSpeed, OpenRLHF", rf"global_step{_N}/", Layout.DEEPSPEED, pointer=LATEST),
    KnownLayout("verl, RLinf", rf"global_step_{_N}/", pointer=TRACKER),
    KnownLayout("torchtitan", rf"step[-_]{_N}/", Layout.TORCHTITAN, sign=_DISTCP, needs=_DISTRIBUTED, is_proven=True),
    KnownLayout("Levanter", rf"step[-_]{_N}/", sign=r"metadata\.json", needs=(("metadata.json", r"metadata\.json"),)),
    KnownLayout("torchtune and others", rf"step[-_]{_N}/"),
    KnownLayout("OLMo-core", rf"step{_N}/", sign=r"\.metadata\.json", needs=((".metadata.json", r"\.metadata\.json"),)),
    KnownLayout("OLMo", rf"step{_N}/"),
    KnownLayout("OLMo, unsharded", rf"step{_N}-unsharded/", needs_optimizer=True),
    KnownLayout("SageMaker model parallel", rf"[a-zA-Z_-]*{_N}_partial/"),
    KnownLayout("SageMaker model parallel 2", rf".+-{_N}steps/"),
    KnownLayout("Composer, sharded", rf"ep\d+-ba{_N}/", needs=_DISTRIBUTED, pointer=SYMLINK, is_proven=True),
    KnownLayout("Lightning, sharded", rf"(?:.*[-_])?step={_N}(?!\d).*\.ckpt/", Layout.LIGHTNING),
    KnownLayout("NeMo", rf"(?:.*-)?step={_N}(?:-.*)?/", sign=_DISTCP, needs=_DISTRIBUTED, is_proven=True),
    KnownLayout("NeMo, zarr", rf"(?:.*-)?step={_N}(?:-.*)?/"),
    KnownLayout("NeMo 2, epochs", rf"(?:.*-)?epoch={_N}(?:-.*)?/", counts=Counts.EPOCHS),
    KnownLayout("XTuner", rf"iter_{_N}\.pth/", pointer=LAST_NAME),
    KnownLayout("other scripts", rf"(?:ckpt|iter|iteration)[-_]?{_N}/", counts=Counts.UNSURE),
    KnownLayout(
        "ColossalAI and others", rf"(?:{_BEFORE}[-_])*(?:global_?)?(?:step|iter|iteration)s?[-_]?{_N}{_METRIC}/"
    ),
    KnownLayout("kohya, state", rf".+-step{_N}-state/"),
    KnownLayout("orbax, Flax, T5X", rf"checkpoint_{_N}/", sign=_ORBAX),
    KnownLayout("accelerate", rf"checkpoint_{_N}/", counts=Counts.UNSURE, sign=r"optimizer\.bin", needs_optimizer=True),
    KnownLayout("accelerate, Ray", rf"checkpoint_{_N}/", counts=Counts.SAVES, needs_optimizer=True),
    KnownLayout("torchtune", rf"epoch[-_]?{_N}/", counts=Counts.EPOCHS),
    KnownLayout("orbax on GCS", rf"{_N}/", counts=Counts.UNSURE, sign=_COMMITTED, needs=_ORBAX_NEEDS, is_proven=True),
    KnownLayout("orbax, MaxText", rf"{_N}/", counts=Counts.UNSURE, sign=_ORBAX),
    KnownLayout("nanotron", rf"{_N}/", counts=Counts.UNSURE, sign=r"checkpoint_metadata\.json", pointer=LATEST_STEP),
    KnownLayout(BARE, rf"{_N}/", counts=Counts.UNSURE),
    KnownLayout("Lightning", rf"(?:.*[-_])?step={_N}(?!\d).*\.ckpt", Layout.LIGHTNING, is_proven=True),
    KnownLayout("Composer", rf"ep\d+-ba{_N}(?:-rank\d+)?(?:\.\w+)*", pointer=SYMLINK),
    KnownLayout("TensorFlow", rf"model\.ckpt-{_N}{_TF}", needs=_TF_NEEDS, pointer=TENSORFLOW, is_proven=True),
    KnownLayout("TensorFlow 2", rf"ckpt-{_N}{_TF}", counts=Counts.SAVES, needs=_TF_NEEDS, is_proven=True),
    KnownLayout("fairseq", rf"checkpoint_\d+_{_N}{_OF_RANKS}\.pt", is_proven=True),
    KnownLayout("SageMaker XGBoost", rf"xgboost-checkpoint\.{_N}", counts=Counts.SAVES, is_proven=True),
    KnownLayout("fairseq, epochs", rf"checkpoint{_N}{_OF_RANKS}\.pt", counts=Counts.EPOCHS, is_proven=True),
    KnownLayout(
        "Stable-Baselines3", rf".*_{_N}_steps\.(?:zip|pkl)", needs=(("the model", r".*\.zip"),), is_proven=True
    ),
    KnownLayout("BasicSR", rf"(?:net_[a-z]+_(?=\d+\.pth)|(?=\d+\.state)){_N}\.(?:pth|state)"),
    KnownLayout("VITS", rf"[GD]_(?!23{{5,}}\.){_N}\.pth", needs=_GAN, is_proven=True),
    KnownLayout(
        "file with a step",
        rf"(?:.*[-_.])?(?:global_?)?(?:steps?|iterations?|iters?|it|updates?|ba)[-_=]?{_N}{_REST}",
        pointer=LAST_NAME,
        is_proven=True,
    ),
    KnownLayout(
        "file with an epoch", rf"(?:.*[-_.])?(?:epochs?|ep|cp)[-_=]?{_N}{_REST}", counts=Counts.EPOCHS, is_proven=True
    ),
    KnownLayout(
        "ESPnet", rf"{_N}epoch\.pth", counts=Counts.EPOCHS, needs=(("checkpoint.pth, from which it resumes", r"(?!)"),)
    ),
    KnownLayout(
        "file with a number",
        rf"(?:.*[-_.])?(?:ckpt|checkpoint|chkpt|model|state|snapshot)[-_=.]?{_N}{_REST}",
        counts=Counts.UNSURE,
        pointer=LAST_NAME,
    ),
    KnownLayout(
        COMPANION,
        rf"(?:optim(?:izer)?|opt|sched(?:uler)?|scaler|rng|ema(?:_[\d.]+)?|meta|trainer)[-_]?{_N}(?:[-_.].*)?\.(?:pt|pth|json)",
    ),
)


def _compile_names(*, are_folders: bool) -> tuple[re.Pattern[str], list[tuple[KnownLayout, ...]]]:
    """Return one expression for all names, with a group for each pattern, and the rows of each group."""
    by_pattern: dict[str, list[KnownLayout]] = defaultdict(list)
    for row in LAYOUTS:
        if row.pattern.endswith("/") == are_folders:
            by_pattern[row.pattern.removesuffix("/")].append(row)
    return re.compile("|".join(by_pattern), re.ASCII), [tuple(rows) for rows in by_pattern.values()]


_FOLDERS, _FILES = _compile_names(are_folders=True), _compile_names(are_folders=False)
_POINTERS = frozenset(row.pointer for row in LAYOUTS if row.pointer)
# Not every script whose checkpoints are so named writes them.
_OPTIONAL_POINTERS = (LAST_NAME, SYMLINK)
_LIGHTNING, _COMPANION = (next(row for row in LAYOUTS if row.name == name) for name in ("Lightning", COMPANION))
# Names of what a writer or an uploader has not finished.
_TEMPORARY = re.compile(r"\.sagemaker-[^/]*$|\.tmp(?:-\d+)?(?:/|$)|\.orbax-checkpoint-tmp|(?:^|/)tmp-checkpoint-\d+/")
_SYMLINK = re.compile(r"latest(?:-sharded)?-rank\d+(?:\.pt)?\.symlink", re.ASCII)
_UNFINISHED, _RECIPE, _OF_SKYRL = "-unfinished", "recipe_state/recipe_state.pt", "latest_ckpt_global_step.txt"
_MAX_POINTER_BYTES = 10_000
# A single file so named is evaluated, exported or read, and never resumed from because of the number in its name.
_NOT_SAVED = re.compile(
    r"(?:^|[-_./ ])(?:best|eval|evaluation|final|export|tokenizer|vocab|shard|events|wandb)(?:[-_./ ]|$)", re.IGNORECASE
)
_DATE = re.compile(r"(?:20[0-4]\d)[-_]?(?:0\d|1[0-2])[-_]?(?:[0-2]\d|3[01])|(?<!\d)1[3-9]\d{8}(?!\d)", re.ASCII)
_YEAR = re.compile(r"20[1-4]\d|(?:20[1-4]\d)[01]\d[0-3]\d(?:\d{4,6})?|1[3-9]\d{8}", re.ASCII)
_LAST = re.compile(r"last(?:-v\d+)?\.ckpt")
# Copies of the last of several files with a step.
_MAY_BE_LAST = re.compile("last|latest|newest|current")
_LAST_OF_FILES = re.compile(rf"(?:.*[-_.])?(?:last|latest|newest|current)(?:-?[-_a-z]*\d+)?{_SUFFIX}", re.ASCII)
# Sets that say how many files they have.
_PART_OF = re.compile(r"(.*-)(\d{1,6})-of-(\d{1,6})(\..+)?", re.ASCII)
_OF_WORLD = re.compile(r"(.*world_size_)(\d{1,6})(_rank_)(\d{1,6})(.*)", re.ASCII)
_DECLARED = re.compile(r"#-of-#|world_size_#_rank_#")
# Shards of which metadata or their own names tell how many there are: what else is in one folder may be an export.
_DESCRIBES_ITSELF = re.compile(r"(?:^|/)(?!optim)[^/]+/[^/]+\.distcp$|^[^/]+\.distcp$|world_size_\d+_rank_")
# A number of random states tells how many ranks there were, and any number can be loaded.
_OF_EACH_RANK = re.compile(r"(?:.*/)?(?:rng_state|random_states?)_#\.\w+")
# Ranks are numbered from 0.
_RANK = re.compile(r"(?:rank_?|__)(\d+)", re.ASCII)
# The folders of parts that are saved beside each other, each with its own checkpoints.
_PEERS = re.compile(r"_(?:actor|critic)|models|training_states|(?:mp|tp)_rank_\d+\w*", re.ASCII)
# Binary state keeps its size within a run, other state about, so a smaller file is truncated. Text may vary.
_STATE_SUFFIXES = (".pt", ".pth", ".tar", ".bin", ".safetensors", ".ckpt", ".distcp", ".pdparams", ".pdopt")
_OTHER_STATE_SUFFIXES = (".h5", ".keras", ".npz", ".msgpack", ".pkl", ".index", ".state")
_BINARY = re.compile(rf".*(?:{'|'.join(map(re.escape, _STATE_SUFFIXES))}|\.data-\d+-of-\d+)", re.ASCII)
_SIZED = re.compile(rf"{_BINARY.pattern}|.*(?:{'|'.join(map(re.escape, _OTHER_STATE_SUFFIXES))}|\.zip)", re.ASCII)
_GROWS = re.compile(r"buffer|replay|history")
_MIN_CHECKED_BYTES, _MIN_SIZE_SHARE = 1 << 16, 0.99
# The files of orbax, and archives and buffers, differ somewhat in size from save to save.
_MIN_VARYING_SHARE = 0.9
_HASH = re.compile(r"[0-9a-f]{16,}")
_HOLDS_OPTIMIZER = re.compile(
    r"optim|opt_state|(?:^|[-_/])opt(?:\.|-\d{4})|(?:recipe|training|random)_state|\.distcp$|(?:^|/)global_step"
)
# Where a run was, without its weights and optimizer.
_POSITION = r"(?:rng|random|(?:[a-z]+_)?scheduler|data|sampler|extra_state)"
_HOLDS_STATE = re.compile(
    r"(?:^|/)(?!(?:pytorch_)?model|adapter|mm_projector|lora|ema|weights|consolidated|non_lora|unet|"
    rf"{_POSITION})[^/]*\.(?:pt|pth|ckpt|tar|pkl|npz|msgpack)$"
)
_HOLDS_WEIGHTS = re.compile(r"\.(?:safetensors|bin)$")
_IS_NO_EXPORT = re.compile(rf"{_HOLDS_OPTIMIZER.pattern}|(?:^|/){_POSITION}")
_NEEDS_NO_OPTIMIZER = re.compile(rf"(?:^|/){_POSITION}[^/]*$|{_HOLDS_WEIGHTS.pattern}")
# What a script may leave in one folder and not in another; `.zarray` describes an array.
_BESIDE = re.compile(
    r"(?:.*/)?(?:core(?:(?:\.[a-z]+\d*)?(?:\.[\d#]+)+)?|events\.out\..*|\.(?!z).*|.*\.(?:log|out|err|lock|txt|md|png|jpe?g|gif|mp4|wav|html|csv|tb))"
)
# What a script writes at a step besides: samples, results and settings.
_NO_STATE = re.compile(rf"(?!.*model\.)(?:{_BESIDE.pattern}|.*\.(?:jsonl?|ya?ml|svg|pdf|webp|mp3|parquet|arrow|ply))")
_MAX_SINGLE_FILES = 20
# At most so many kinds of missing files are named.
_MAX_MISSING = 20
# Of file systems: a longer name or a deeper folder comes from no job, and reading it would take long.
_MAX_NAME, _MAX_DEPTH = 255, 50
# Numbers of steps are multiples of at least this, unlike the ids of jobs.
_MIN_ROUND = 10
# Numbers of steps are so many times larger than the number of checkpoints.
_MIN_STEPS_EACH = 100
# Of so many without an optimizer's state, the script checkpoints none.
_MIN_WITHOUT_OPTIMIZER = 3


@dataclass(frozen=True, slots=True)
class LayoutCheckpoint:
    """A checkpoint without a manifest: a folder, a file, or several files with one number."""

    layout: Layout
    # The path below the checkpoint folder; for a folder it ends with a slash.
    place: str
    # The number in its name: see `counts`.
    step: int
    # The objects by their names within the checkpoint.
    files: Mapping[str, StoredObject] = field(default_factory=dict)
    # Descriptions of what is missing or incomplete.
    missing: tuple[str, ...] = ()
    counts: Counts = Counts.STEPS
    # The frameworks that write this layout.
    name: str = ""

    @property
    def is_whole(self) -> bool:
        """Return whether the checkpoint is complete."""
        return not self.missing

    @property
    def has_step(self) -> bool:
        """Return whether its number is a step; otherwise Rerail cannot tell what a rollback to it would undo."""
        return self.counts is Counts.STEPS

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

    def list_names(self) -> list[str]:
        """Return the names by which a pointer may refer to it: its own and those of its files."""
        return [self.place[len(self.parent) :].rstrip("/"), *self.files]


def find_checkpoints(
    stored: Sequence[StoredObject], pointers: Mapping[str, str] | None = None
) -> list[LayoutCheckpoint]:
    """Return the checkpoints among these objects, newest step first; those without a step follow.

    `pointers` are the contents of the files from `find_pointers` by key. Those with a manifest are among them: others
    are compared with them, and whoever resumes from manifests passes them over.
    """
    known = {place: text.strip() for place, text in (pointers or {}).items()}
    unfinished = {item.key.removesuffix(_UNFINISHED) for item in stored if item.key.endswith(_UNFINISHED)}
    beside = {_parent(_parent(item.key)) for item in stored if item.key.endswith(_RECIPE)}
    groups = [_Siblings(row, siblings) for row, siblings in _find_siblings(stored)]
    for group in groups if any(group.with_optimizer for group in groups) else ():
        group.is_beside_optimizer = True
    checked = [
        _with_missing(checkpoint, group, known, unfinished, beside)
        for group in groups
        for checkpoint in group.checkpoints
    ]
    order = sorted(_with_peers(checked), key=lambda found: (found.step, found.saved_at), reverse=True)
    return sorted(order, key=lambda found: not found.has_step)


def has_manifests(stored: Sequence[StoredObject]) -> bool:
    """Return whether a checkpoint folder has a manifest."""
    return any(_is_manifest(item.key) for item in stored)


def find_folder_step(folder: str) -> int | None:
    """Return the step of a checkpoint folder, named with its final slash; None if it is another folder.

    The name alone must tell: a folder whose number may count something else is another folder.
    """
    located = None if folder.startswith(QUARANTINE) else _locate_folder(folder[:-1])
    is_step = located and located.place == folder and all(row.counts is Counts.STEPS for row in located.rows)
    return located.number if located and is_step else None


def find_pointers(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """Return the small text files that name the checkpoint to resume from."""
    named = [item for item in stored if _get_pointer(item.key) in _POINTERS and item.bytes <= _MAX_POINTER_BYTES]
    if not named:
        return []
    found = _find_siblings(stored)
    steps = [(row.pointer, save.parent) for row, siblings in found for save in siblings if save.has_step]
    # A script chooses DeepSpeed's tags, so these two may name any folder.
    places = {(pointer, parent) for own, parent in steps for pointer in (own, LATEST, TRACKER)}
    inside = {item.key for _, siblings in found for save in siblings for item in save.files.values()}
    return [item for item in named if (_get_pointer(item.key), _parent(item.key)) in places and item.key not in inside]


def find_copies(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """Return the files that are copies of the last checkpoint, such as `last.ckpt`, whose step is unknown."""
    named = [item for item in stored if _MAY_BE_LAST.search(_get_name(item.key)) and not _is_passed_over(item.key)]
    if not named:
        return []
    found = [checkpoint for _, siblings in _find_siblings(stored) for checkpoint in siblings]
    inside = {item.key for checkpoint in found for item in checkpoint.files.values()}
    beside = {checkpoint.parent for checkpoint in found if not checkpoint.place.endswith("/")}
    return [
        item
        for item in named
        if item.key not in inside
        and (_LAST if _parent(item.key) not in beside else _LAST_OF_FILES).fullmatch(_get_name(item.key))
    ]


def find_undated(stored: Sequence[StoredObject]) -> list[StoredObject]:
    """Return the files that may be checkpoints, or belong to one, but whose step cannot be determined."""
    found = [checkpoint for _, siblings in _find_siblings(stored) for checkpoint in siblings if checkpoint.has_step]
    dated = {item.key for checkpoint in found for item in checkpoint.files.values()}
    return [item for item in stored if item.key not in dated and _is_state(item.key)]


def find_single_files(stored: Sequence[StoredObject], *, uri: str) -> list[Checkpoint]:
    """Return the files that a script overwrites in place, newest first; none where there are checkpoints with a step.

    They count as incomplete, since their step is unknown: Rerail never resumes from them, and their change is a save.
    So do checkpoints whose number counts epochs or saves.
    """
    groups = _find_siblings(stored)
    folders = [found for _, group in groups for found in group if not found.has_step and found.place.endswith("/")]
    inside = {item.key for found in folders for item in found.files.values()}
    single = [item for item in dict.fromkeys((*find_undated(stored), *find_copies(stored))) if item.key not in inside]
    lacks, layout = (UNKNOWN_STEP,), Layout.FILE
    files = [
        Checkpoint(
            f"{uri}{item.key}", 0, 0, item.at, missing=lacks, layout=layout, etag=item.etag.strip('"'), bytes=item.bytes
        )
        for item in single
    ]
    found = [*files, *(make_checkpoint(folder, uri=uri) for folder in folders)]
    return sorted(found, key=lambda save: (save.saved_at, save.uri), reverse=True)[:_MAX_SINGLE_FILES]


def list_unknown_names(keys: Sequence[str]) -> list[str]:
    """Return the names with a number like a step, of files of no known layout or of the folders that contain them."""
    parts = (
        next((part for part in key.split("/") if _NUMBER.search(part) and not _NO_STEP.search(part)), "")
        for key in keys
        if not _NOT_SAVED.search(key)
    )
    return [name for name in dict.fromkeys(parts) if name]


def list_save_times(checkpoints: Sequence[Checkpoint]) -> list[datetime]:
    """Return when checkpoints were saved, oldest first; the times of several overwritten files are no interval."""
    files = [checkpoint.saved_at for checkpoint in checkpoints if checkpoint.layout == Layout.FILE]
    others = [checkpoint.saved_at for checkpoint in checkpoints if checkpoint.layout != Layout.FILE]
    return sorted([*others, *([max(files)] if files else [])])


def is_truncated(size: int, usual: int, name: str = ".pt") -> bool:
    """Return whether a file of state is smaller than usual within its run; small files may vary."""
    share = _MIN_SIZE_SHARE if _BINARY.fullmatch(name) else _MIN_VARYING_SHARE
    return usual >= _MIN_CHECKED_BYTES and size < share * usual


def parse_pointer(pointer: str, text: str) -> int | None:
    """Return the step that a pointer file names, or None."""
    kind, name = _get_pointer(pointer), _get_pointed_name(text)
    if kind not in _POINTERS:
        return None
    if re.fullmatch(r"\d{1,18}", name, re.ASCII):
        return int(name)
    found = _read_name(name) or _read_name(name.rstrip("/"), is_folder=True)
    if found is None and kind == TENSORFLOW:
        found = _read_name(f"{name}.index")
    return found[1] if found and found[0][0].counts in (Counts.STEPS, Counts.UNSURE) else None


def format_pointer(pointer: str, step: int, text: str = "", names: Collection[str] = ()) -> str:
    """Return the content of a pointer file that names this step; "" if it cannot be written.

    `text` is its content until now, and `names` are those of the new checkpoint and its files.
    """
    kind, old = _get_pointer(pointer), _get_pointed_name(text)
    if kind in (TRACKER, LATEST_STEP):
        return str(step)
    new = next((name for name in names if (_make_kind(name), _get_rank(name)) == (_make_kind(old), _get_rank(old))), "")
    if new:
        return text.strip().splitlines()[0].replace(old, new)
    return f"global_step{step}" if kind == LATEST else ""


def make_checkpoint(checkpoint: LayoutCheckpoint, *, uri: str) -> Checkpoint:
    """Return the checkpoint as a core record, with attempt 0, since its attempt is not known here.

    Without a step it is recorded as a file that is overwritten in place, from which Rerail never chooses to resume.
    """
    has_step = checkpoint.has_step
    return Checkpoint(
        uri=f"{uri}{checkpoint.place}",
        step=checkpoint.step if has_step else 0,
        attempt=0,
        saved_at=checkpoint.saved_at,
        missing=checkpoint.missing if has_step else (*checkpoint.missing, UNKNOWN_STEP),
        layout=checkpoint.layout if has_step else Layout.FILE,
    )


_NUMBER = re.compile(r"\d{2,18}", re.ASCII)
_NO_STEP = re.compile(
    r"(?i)(?:^|[-_.])(?:rank|part|shard|tp|pp|mp|layer|expert|fold|seed|version|v|data|dataset|events|wandb)[-_]?\d|-of-\d"
    r"|20[0-4]\d[-_]?[01]\d[-_]?[0-3]\d|^20[0-4]\d$|^\.|^v?\d+(?:\.\d+)+|\d(?:\.\d+)?[bmkBMK](?:$|[-_.])"
)


def _is_manifest(key: str) -> bool:
    folder, _, name = key.rpartition("/")
    return name == MANIFEST and bool(STEP_FOLDER.search(folder.rpartition("/")[2]))


def _is_state(key: str) -> bool:
    return key.endswith((*_STATE_SUFFIXES, *_OTHER_STATE_SUFFIXES)) and not _is_passed_over(key)


def _is_passed_over(key: str) -> bool:
    """Return whether an object is no part of a checkpoint: in quarantine, a folder's mark, or temporary."""
    may_be_temporary = "tmp" in key or ".sagemaker-" in key
    return key.startswith(QUARANTINE) or key.endswith("/") or (may_be_temporary and bool(_TEMPORARY.search(key)))


def _get_name(key: str) -> str:
    return key.rpartition("/")[2]


def _get_pointer(key: str) -> str:
    """Return the name of a pointer, as one of rank 0: Composer writes one for each rank."""
    name = _get_name(key)
    return SYMLINK if _SYMLINK.fullmatch(name) else TRACKER if name == _OF_SKYRL else name


def _get_rank(name: str) -> str:
    """Return the rank in a file's name, or ""."""
    return name.partition("-rank")[2].partition(".")[0]


def _get_pointed_name(text: str) -> str:
    """Return the last part of the path in the first line of a pointer file, as TensorFlow and others write it."""
    first = next(iter(text.strip().splitlines()), "")
    return first.removeprefix("model_checkpoint_path:").strip().strip('"').rpartition("/")[2]


def _parent(place: str) -> str:
    """Return the folder that contains a path, with its final slash; "" is the checkpoint folder itself."""
    return place[: place.rstrip("/").rfind("/") + 1]


class _Located(NamedTuple):
    """Where a checkpoint is, as far as names tell."""

    rows: tuple[KnownLayout, ...]
    # A folder with its final slash, or the folder that contains a file.
    place: str
    number: int
    # How much the name tells: 0 for a step, 1 for another number, 2 for a bare one.
    rank: int


@lru_cache(maxsize=20_000)
def _read_name(name: str, *, is_folder: bool = False) -> tuple[tuple[KnownLayout, ...], int] | None:
    """Return the rows whose pattern the name has, and its number."""
    names, rows = _FOLDERS if is_folder else _FILES
    match = names.fullmatch(name) if len(name) <= _MAX_NAME else None
    return (rows[match.lastindex - 1], int(match[match.lastindex])) if match and match.lastindex else None


def _locate_folder(path: str) -> _Located | None:
    """Return the outermost checkpoint folder in a path whose name tells most."""
    best: _Located | None = None
    end = 0
    for part in path.split("/", _MAX_DEPTH)[:_MAX_DEPTH]:
        end += len(part) + 1
        if _DIGIT.search(part) and (read := _read_name(part, is_folder=True)):
            found = _Located(read[0], f"{path}/"[:end], read[1], _rank(read[0]))
            if best is None or found.rank < best.rank:
                best = found
            if best.rank == 0:
                break
    return best


_DIGIT = re.compile(r"[0-9]")


def _locate_file(key: str) -> _Located | None:
    """Return the checkpoint that a file belongs to by its own name, or None."""
    name = _get_name(key)
    if not _DIGIT.search(name) or (read := _read_name(name)) is None:
        return None
    rows, number = read
    is_general = rows[0] is not _LIGHTNING
    if is_general and (_NOT_SAVED.search(key) or (rows[0].counts is Counts.UNSURE and _DATE.search(name))):
        return None
    return _Located(rows, _parent(key), number, _rank(rows))


def _rank(rows: Sequence[KnownLayout]) -> int:
    return 2 if rows[-1].name == BARE else int(all(row.counts is not Counts.STEPS for row in rows))


def _find_siblings(stored: Sequence[StoredObject]) -> list[tuple[KnownLayout, list[LayoutCheckpoint]]]:
    """Return the checkpoints in groups of one layout and folder, not checked yet; files and folders are separate."""
    folders: dict[tuple[tuple[KnownLayout, ...], str], dict[tuple[str, int], dict[str, StoredObject]]] = {}
    files: dict[tuple[KnownLayout, str], dict[int, dict[str, StoredObject]]] = {}
    companions: list[tuple[_Located, StoredObject]] = []
    # For each path of a folder: the checkpoint that contains it, the length of its place, and its files.
    located: dict[str, tuple[bool, int, dict[str, StoredObject]]] = {}
    for item in stored:
        key = item.key
        if _is_passed_over(key):
            continue
        path = key[: max(key.rfind("/"), 0)]
        if path not in located:
            place = _locate_folder(path) if path else None
            by_place = folders.setdefault((place.rows, _parent(place.place)), {}) if place else {}
            held = by_place.setdefault((place.place, place.number), {}) if place else {}
            located[path] = (place is None or place.rank == 2, len(place.place) if place else 0, held)
        may_be_file, length, held = located[path]
        if may_be_file and (file := _locate_file(key)):
            if file.rows[0] is _COMPANION:
                companions.append((file, item))
            else:
                by_number = files.setdefault((file.rows[0], file.place), {})
                by_number.setdefault(file.number, {})[_get_name(key)] = item
        else:
            held[key[length:]] = item
    found = []
    for (rows, _), by_place in folders.items():
        row = _choose_row(rows, by_place.values())
        counts = _resolve_counts(row, [number for _, number in by_place])
        bare = [
            LayoutCheckpoint(row.layout, place, number, held, (), counts, row.name)
            for (place, number), held in by_place.items()
            if held
        ]
        if bare and (row.name != BARE or _are_checkpoints(bare)):
            found.append((row, bare))
    return found + _join_files(files, companions)


def _choose_row(rows: Sequence[KnownLayout], siblings: Collection[Mapping[str, StoredObject]]) -> KnownLayout:
    """Return the first of the rows whose sign one of the siblings has."""
    if len(rows) == 1:
        return rows[0]
    names = {name for held in siblings for name in held}
    signed = (row for row in rows if not row.sign or any(map(re.compile(row.sign).fullmatch, names)))
    return next(signed, rows[-1])


def _resolve_counts(row: KnownLayout, numbers: Sequence[int]) -> Counts:
    """Return what the numbers count; of a row that leaves it open, numbers that are close together count saves."""
    if row.counts is not Counts.UNSURE:
        return row.counts
    is_far = max(numbers) - min(numbers) >= _MIN_ROUND * (len(numbers) - 1)  # epochs 299 and 300 are near
    return Counts.STEPS if is_far and max(numbers) >= _MIN_STEPS_EACH * len(numbers) else Counts.SAVES


def _are_checkpoints(bare: Sequence[LayoutCheckpoint]) -> bool:
    """Return whether folders that are named by a bare number are checkpoints, not years, ranks or the ids of jobs."""
    numbers = sorted(found.step for found in bare)
    names = [name for found in bare for name in found.files]
    if all(_YEAR.fullmatch(found.place[len(found.parent) : -1]) for found in bare):
        return False
    if not any(_is_state(name) for name in names):
        return False
    if len(numbers) > 1 and numbers[-1] - numbers[0] < len(numbers):
        return False
    regular = numbers[:-1] if len(numbers) > 2 else numbers  # the last is saved wherever training ends
    return any(map(_HOLDS_OPTIMIZER.search, names)) or (len(numbers) > 1 and gcd(*regular) >= _MIN_ROUND)


def _join_files(
    files: Mapping[tuple[KnownLayout, str], dict[int, dict[str, StoredObject]]],
    companions: Sequence[tuple[_Located, StoredObject]],
) -> list[tuple[KnownLayout, list[LayoutCheckpoint]]]:
    """Return the checkpoints that are files, in groups of one layout and folder, with what else has their number."""
    by_place: dict[tuple[str, int], dict[str, StoredObject]] = {}
    for (_, parent), by_number in files.items():
        for number, held in by_number.items():
            by_place[parent, number] = held
    for companion, item in companions:
        if others := by_place.get((companion.place, companion.number)):
            others[_get_name(item.key)] = item
    found = []
    for (row, parent), by_number in files.items():
        counts = _resolve_counts(row, list(by_number))
        siblings = []
        for number, held in by_number.items():
            parts = [{name: item} for name, item in held.items()] if row is _LIGHTNING else [held]
            siblings += [
                LayoutCheckpoint(row.layout, _name_files(parent, part, number), number, part, (), counts, row.name)
                for part in parts
            ]
        found.append((row, siblings))
    return found


def _name_files(parent: str, files: Collection[str], number: int) -> str:
    """Return the path of a checkpoint that consists of these files: of several, what their names have in common."""
    if len(files) == 1:
        return f"{parent}{next(iter(files))}"
    common = re.sub(r"(?:[-_.](?:rank|shard|data|index|meta)?)*$", "", commonprefix([*files]))
    main = min(files, key=lambda name: ((_read_name(name) or ((_COMPANION,), 0))[0][0] is _COMPANION, name))
    return f"{parent}{common if str(number) in common else main}"


class _Siblings:
    """The common properties of siblings, read once: each is compared with all others in constant time."""

    def __init__(self, row: KnownLayout, checkpoints: Sequence[LayoutCheckpoint]) -> None:
        self.row, self.checkpoints, self.count = row, checkpoints, len(checkpoints)
        # Whether these or checkpoints of another group have the optimizer's state.
        self.is_beside_optimizer = False
        with_manifest = any(checkpoint.has_manifest for checkpoint in checkpoints)
        by_time = sorted(checkpoints, key=lambda found: (found.saved_at, found.step)) if with_manifest else ()
        # The places of those that were saved just after one with a manifest: theirs is still to come.
        self.lack_manifest = {
            later.place for earlier, later in pairwise(by_time) if earlier.has_manifest and not later.has_manifest
        }
        needs = [(what, re.compile(pattern)) for what, pattern in row.needs]
        self.lacking = {
            found.place: [what for what, named in needs if not any(map(named.fullmatch, found.files))]
            for found in checkpoints
        }
        self.with_optimizer = {
            checkpoint.place for checkpoint in checkpoints if any(map(_HOLDS_OPTIMIZER.search, checkpoint.files))
        }
        self.kinds = {checkpoint.place: _count_kinds(checkpoint) for checkpoint in checkpoints}
        # For each kind of file, the number of files and their size in each checkpoint that has what the row needs: an
        # export among them has other kinds.
        numbers: dict[str, list[tuple[int, int]]] = defaultdict(list)
        # The name, size and key in `_sizes` of the files of binary state, by the checkpoint's place.
        self.binary: dict[str, list[tuple[str, int, tuple[str, int]]]] = defaultdict(list)
        self._sizes: dict[tuple[str, int], list[int]] = defaultdict(list)
        for checkpoint in checkpoints:
            kinds = self.kinds[checkpoint.place]
            if not self.lacking[checkpoint.place]:
                for kind, counted in kinds.items():
                    numbers[kind].append(counted)
            for name, stored in checkpoint.files.items():
                if _SIZED.fullmatch(name) and not _GROWS.search(name):
                    key = _make_size_key(checkpoint, name, kinds)
                    self.binary[checkpoint.place].append((name, stored.bytes, key))
                    self._sizes[key].append(stored.bytes)
        for sizes in self._sizes.values():
            sizes.sort()
        self._having = {kind: len(counted) for kind, counted in numbers.items()}
        # The usual number and size of the kinds of which at least half of the siblings have files.
        self._usual = {
            kind: _find_usual(counted)
            for kind, counted in sorted(numbers.items())
            if 2 * len(counted) >= self.count and not _BESIDE.fullmatch(kind)
        }

    def list_too_few(self, checkpoint: LayoutCheckpoint) -> Iterator[str]:
        """Yield the kinds of file of which a checkpoint has fewer than usual, unless ranks of another number wrote."""
        mine = self.kinds[checkpoint.place]
        differing = [kind for kind, usual in self._usual.items() if mine.get(kind, (0, 0)) != usual]
        doubtful = {kind for kind in differing if self._is_too_few(checkpoint, kind)}
        resized = any(mine.get(kind, (0, 0))[0] != self._usual[kind][0] for kind in {*differing} - doubtful)
        named = 0
        for kind in sorted(doubtful):
            number = mine.get(kind, (0, 0))[0]
            is_numbered = "*" not in kind and not _BINARY.fullmatch(kind)
            if number and resized and is_numbered and _is_contiguous(checkpoint, kind):
                continue  # a small file of each rank, while the shards are of another number of ranks
            if named == _MAX_MISSING:
                yield "and more"
                return
            named += 1
            yield f"{kind} ({number} of {self._usual[kind][0]})"

    def _is_too_few(self, checkpoint: LayoutCheckpoint, kind: str) -> bool:
        number, size = self.kinds[checkpoint.place].get(kind, (0, 0))
        usual, usual_size = self._usual[kind]
        if number == usual:
            return "*" in kind and size < _MIN_VARYING_SHARE * usual_size
        if number == 0:
            is_export = bool(_HOLDS_WEIGHTS.search(kind)) and not _IS_NO_EXPORT.search(kind)
            is_extra = self._having[kind] == 1 and "*" not in kind and (is_export or not _BINARY.fullmatch(kind))
            return not (is_extra and self._describes_itself(checkpoint))
        if "*" in kind:
            return size < _MIN_VARYING_SHARE * usual_size
        if _DECLARED.search(kind):
            return False
        if _OF_EACH_RANK.fullmatch(kind):
            return not _is_contiguous(checkpoint, kind)
        if not _BINARY.fullmatch(kind):
            return number < usual
        return size < _MIN_SIZE_SHARE * usual_size or not _is_contiguous(checkpoint, kind)

    def _describes_itself(self, checkpoint: LayoutCheckpoint) -> bool:
        """Return whether a checkpoint proves by itself to be complete: what one other has besides is not needed."""
        if any(name.endswith(".distcp") or _OF_WORLD.fullmatch(name) for name in checkpoint.files):
            return any(map(_DESCRIBES_ITSELF.search, checkpoint.files))
        return self.row.is_proven and bool(self.row.needs) and not self.lacking[checkpoint.place]

    def find_usual_size(self, key: tuple[str, int], own: Sequence[int]) -> int:
        """Return the median size of a file in the others, without these sizes; 0 if none of them has it."""
        sizes = self._sizes.get(key, [])
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


def _find_usual(counted: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the most usual number of files, the larger of two as usual ones, and the median of their size."""
    often = Counter(number for number, _ in counted)
    usual = max(often, key=lambda number: (often[number], number))
    sizes = sorted(size for number, size in counted if number == usual)
    return usual, sizes[len(sizes) // 2]


def _is_contiguous(checkpoint: LayoutCheckpoint, kind: str) -> bool:
    """Return whether each of the numbers in the names of this kind takes all values from its least to its largest."""
    names = [name for name in checkpoint.files if _make_kind(name) == kind]
    if any(min(map(int, ranks)) for ranks in zip(*map(_RANK.findall, names), strict=True)):
        return False
    columns = zip(*(re.findall(r"\d+", name) for name in names), strict=True)
    values = [{int(number) for number in column} for column in columns]
    return all(len(seen) == 1 or (min(seen) <= 1 and max(seen) - min(seen) == len(seen) - 1) for seen in values)


def _with_missing(
    checkpoint: LayoutCheckpoint,
    siblings: _Siblings,
    pointers: Mapping[str, str],
    unfinished: Collection[str],
    beside: Collection[str],
) -> LayoutCheckpoint:
    missing = [
        *siblings.lacking[checkpoint.place],
        *_check_optimizer(checkpoint, siblings, beside),
        *_check_proof(checkpoint, siblings, pointers),
        *_check_shards(checkpoint, siblings),
        *siblings.list_too_few(checkpoint),
        *_list_truncated(checkpoint, siblings),
        *_check_numbered_parts(checkpoint),
    ]
    if all(stored.bytes == 0 or _NO_STATE.fullmatch(name) for name, stored in checkpoint.files.items()):
        missing.append("any state: its files are empty, text or pictures")
    if checkpoint.place.rstrip("/") in unfinished:
        missing.append(f"the end of its save, which deletes {_get_name(checkpoint.place.rstrip('/'))}{_UNFINISHED}")
    if checkpoint.place in siblings.lack_manifest:
        missing.append(MANIFEST)
    return replace(checkpoint, missing=tuple(dict.fromkeys(missing))) if missing else checkpoint


def _check_optimizer(checkpoint: LayoutCheckpoint, siblings: _Siblings, beside: Collection[str]) -> Iterator[str]:
    """Yield the optimizer's state if another has it, also elsewhere, or if the loader cannot do without.

    If three checkpoints of the Trainer have none, it saves none. torchtune keeps that of its last epoch beside all.
    """
    row = siblings.row
    if checkpoint.place in siblings.with_optimizer or (not checkpoint.has_step and checkpoint.parent in beside):
        return
    is_new = row.layout is Layout.HUGGING_FACE and siblings.count < _MIN_WITHOUT_OPTIMIZER
    is_export = siblings.is_beside_optimizer and not any(map(_HOLDS_STATE.search, checkpoint.files))
    if is_new or siblings.with_optimizer or is_export or _holds_only_weights(checkpoint, row):
        yield OPTIMIZER


def _holds_only_weights(checkpoint: LayoutCheckpoint, row: KnownLayout) -> bool:
    """Return whether there is nothing to resume from but weights, by the names of the files."""
    if row.needs or any(map(_HOLDS_STATE.search, checkpoint.files)):
        return False
    return row.needs_optimizer or (
        any(map(_HOLDS_WEIGHTS.search, checkpoint.files))
        and not any(_is_state(name) and not _NEEDS_NO_OPTIMIZER.search(name) for name in checkpoint.files)
    )


def _check_proof(checkpoint: LayoutCheckpoint, siblings: _Siblings, pointers: Mapping[str, str]) -> Iterator[str]:
    """Yield what would prove that the checkpoint is complete: a pointer that names it or a later one, or a sibling."""
    row = siblings.row
    pointed = parse_pointer(row.pointer, pointers.get(f"{checkpoint.parent}{row.pointer}", ""))
    if pointed is not None and pointed >= checkpoint.step:
        return
    is_alone = siblings.count == 1 and not row.is_proven
    if row.pointer and (pointed is not None or (is_alone and row.pointer not in _OPTIONAL_POINTERS)):
        yield f"{row.pointer}, which names a checkpoint once it is complete"
    elif is_alone:
        yield "another checkpoint to compare it with"


def _check_shards(checkpoint: LayoutCheckpoint, siblings: _Siblings) -> Iterator[str]:
    """Yield the shards or metadata that a distributed checkpoint lacks: they are uploaded in any order."""
    names = checkpoint.files
    folders = {_parent(name) for name in names if name.endswith(".distcp")}
    described = {_parent(name) for name in names if _get_name(name) == METADATA}
    lacking = ((METADATA, folders - described), (SHARDS, described - folders))
    yield from (what for what, where in lacking if where)
    if (
        siblings.row.layout is Layout.HUGGING_FACE
        and LATEST not in names
        and any("global_step" in name for name in names)
    ):
        yield WITHOUT_LATEST
    if siblings.count == 1 and siblings.row.is_proven:  # others show which numbers there are
        numbered = (kind for kind in siblings.kinds[checkpoint.place] if "#" in kind and _BINARY.fullmatch(kind))
        yield from (f"{kind} of all ranks" for kind in numbered if not _is_contiguous(checkpoint, kind))


def _list_truncated(checkpoint: LayoutCheckpoint, siblings: _Siblings) -> Iterator[str]:
    """Yield the files that are smaller than usual in the siblings with as many of them."""
    binary = siblings.binary[checkpoint.place]
    own: dict[tuple[str, int], list[int]] = defaultdict(list)
    for _, size, key in binary:
        own[key].append(size)
    usual = {key: siblings.find_usual_size(key, sizes) for key, sizes in own.items()}
    yield from (f"{name} (truncated)" for name, size, key in binary if is_truncated(size, usual[key], name))


def _count_kinds(checkpoint: LayoutCheckpoint) -> dict[str, tuple[int, int]]:
    """Return for each kind of file how many there are, and their size."""
    counted: dict[str, tuple[int, int]] = {}
    for name, stored in checkpoint.files.items():
        if name != MANIFEST:
            kind = _get_kind(checkpoint, name)
            number, size = counted.get(kind, (0, 0))
            counted[kind] = number + 1, size + stored.bytes
    return counted


def _get_kind(checkpoint: LayoutCheckpoint, name: str) -> str:
    """Return the kind of a file; a Lightning checkpoint is one file, in whose name there may be any metrics."""
    return "#" if checkpoint.name == _LIGHTNING.name else _make_kind(name)


@lru_cache(maxsize=20_000)  # names repeat in each checkpoint; a listing has no more
def _make_kind(name: str) -> str:
    """Return the file's name without its numbers, and without what is a hash."""
    return re.sub(r"\d+", "#", _HASH.sub("*", name))


def _make_size_key(checkpoint: LayoutCheckpoint, name: str, kinds: Mapping[str, tuple[int, int]]) -> tuple[str, int]:
    """Return the file's name without the step, and the number of its kind: other ranks write other sizes."""
    kind = _get_kind(checkpoint, name)
    is_folder = checkpoint.place.endswith("/")
    return name.replace(str(checkpoint.step), "#") if is_folder else kind, kinds.get(kind, (0, 0))[0]


def _check_numbered_parts(checkpoint: LayoutCheckpoint) -> Iterator[str]:
    """Yield incomplete sets of files that say how many they are: `...-00001-of-00004`, `..._world_size_4_rank_0`."""
    sets: dict[str, tuple[int, set[int]]] = {}
    for name in checkpoint.files:
        if "-of-" in name and (match := _PART_OF.fullmatch(name)):
            first, part, last, rest = match.groups(default="")
            sets.setdefault(f"{first}*-of-{last}{rest}", (int(last), set()))[1].add(int(part))
        elif "world_size_" in name and (match := _OF_WORLD.fullmatch(name)):
            first, world, middle, rank, rest = match.groups()
            sets.setdefault(f"{first}{world}{middle}*{rest}", (int(world), set()))[1].add(int(rank))
    for described, (number, parts) in sets.items():
        start = 0 if 0 in parts else 1
        if not number or parts != set(range(start, start + min(number, len(parts)))) or len(parts) < number:
            yield described


def _with_peers(checkpoints: Sequence[LayoutCheckpoint]) -> Iterator[LayoutCheckpoint]:
    """Yield the checkpoints; those of an actor, critic or rank are complete if all their peers have the same one."""
    if not any(_PEERS.fullmatch(_get_name(parent[:-1])) for parent in {found.parent for found in checkpoints}):
        yield from checkpoints
        return
    peers: dict[str, set[str]] = defaultdict(set)
    complete: dict[tuple[str, int], set[str]] = defaultdict(set)
    for checkpoint in checkpoints:
        above = _parent(checkpoint.parent)
        name = checkpoint.parent[len(above) : -1]
        if _PEERS.fullmatch(name):
            peers[above].add(name)
            if checkpoint.is_whole:
                complete[above, checkpoint.step].add(name)
    for checkpoint in checkpoints:
        above = _parent(checkpoint.parent)
        name = checkpoint.parent[len(above) : -1]
        others = peers[above] - {name} if _PEERS.fullmatch(name) else set()
        if lacking := others - complete.get((above, checkpoint.step), set()):
            whose = (f"its peer in {name}/" for name in sorted(lacking))
            checkpoint = replace(checkpoint, missing=(*checkpoint.missing, *whose))
        yield checkpoint
