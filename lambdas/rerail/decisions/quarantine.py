"""Plan which objects to move so that a script without an agent resumes from the right checkpoint.

Such a script resumes from whatever is in its checkpoint folder, which SageMaker copies to the machine when a job
starts. Checkpoints after the step to resume from therefore move to a folder outside of it. Pointers to the newest
checkpoint, and copies such as `last.ckpt`, move too and are rewritten for the checkpoint to resume from.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rerail.model.actions import QuarantineCheckpoints
from rerail.model.checkpoint_layouts import (
    LATEST,
    TRACKER,
    LayoutCheckpoint,
    StoredObject,
    find_checkpoints,
    find_copies,
    find_pointers,
    find_undated,
    format_pointer,
    parse_pointer,
)
from rerail.model.checkpoints import split_uri
from rerail.model.errors import QuarantineFailed

PLACE = "rerail-quarantine/"
# All keys that are ever written, as IAM patterns. COPIED: quarantined objects and copies of the last checkpoint.
# WRITTEN: those and the pointers, which are small texts.
COPIED = (f"{PLACE}*", "*/last*.ckpt")
WRITTEN = (*COPIED, f"*/{LATEST}", f"*/{TRACKER}")
MAX_NAMES = 3


@dataclass(frozen=True, slots=True)
class QuarantineMove:
    """One object to move: copied to `target`, then deleted or replaced."""

    source: StoredObject  # its key includes the folder
    target: str  # full key
    text: str = ""  # written in its place, if not empty
    copy_key: str = ""  # full key of the object that is copied in its place, if not empty

    @property
    def is_replaced(self) -> bool:
        """Whether another object or text takes its place."""
        return bool(self.text or self.copy_key)


def plan_moves(
    stored: Sequence[StoredObject], pointers: Mapping[str, str], action: QuarantineCheckpoints
) -> list[QuarantineMove]:
    """Return the moves that are left to do, pointers first.

    Keys of `stored` and `pointers` are relative to the checkpoint folder. Raises QuarantineFailed where the folders
    overlap, or, with `strict`, where the steps of the checkpoints cannot be determined.
    """
    bucket, folder = split_uri(action.uri)
    if PLACE.startswith(folder) or folder.startswith(PLACE):
        raise QuarantineFailed(
            f"quarantined checkpoints go to s3://{bucket}/{PLACE}, which overlaps with {action.uri}: a job would be "
            "given it too",
            advice="move what must not be resumed from away by hand, then release the run; next time give the run a "
            "folder of its own in the bucket",
        )
    checkpoints = find_checkpoints(stored, pointers)
    if action.strict and not checkpoints and (unrecognized := [*find_undated(stored), *find_copies(stored)]):
        names = ", ".join(item.key for item in unrecognized[:MAX_NAMES])
        raise QuarantineFailed(
            f"the steps of the checkpoints under {action.uri} are unknown ({names})",
            advice="move what must not be resumed from out of that folder, then release the run",
        )
    target_folder = f"{PLACE}{action.run}/a{action.attempt:03d}/"
    moves = [*_list_pointer_moves(stored, pointers, checkpoints, action), *_list_rolled_back(checkpoints, action)]
    return [_with_full_keys(move, folder=folder, target_folder=target_folder) for move in moves]


def _with_full_keys(move: QuarantineMove, *, folder: str, target_folder: str) -> QuarantineMove:
    """Return the move with keys from the root of the bucket."""
    source = move.source._replace(key=f"{folder}{move.source.key}")
    return QuarantineMove(
        source, f"{target_folder}{move.source.key}", move.text, f"{folder}{move.copy_key}" if move.copy_key else ""
    )


def _list_rolled_back(
    checkpoints: Sequence[LayoutCheckpoint], action: QuarantineCheckpoints
) -> Iterator[QuarantineMove]:
    """Yield the moves of all files of checkpoints newer than the step to resume from."""
    for checkpoint in checkpoints:
        if _is_newer(checkpoint.step, action) and checkpoint.saved_at <= action.saved_before:
            yield from (QuarantineMove(file, file.key) for file in checkpoint.files.values())


def _is_newer(step: int, action: QuarantineCheckpoints) -> bool:
    """Return whether the step is newer than the one to resume from."""
    return action.resume_step is None or step > action.resume_step


def _list_pointer_moves(
    stored: Sequence[StoredObject],
    pointers: Mapping[str, str],
    checkpoints: Sequence[LayoutCheckpoint],
    action: QuarantineCheckpoints,
) -> Iterator[QuarantineMove]:
    """Yield the moves of pointers to, and copies of, the newest checkpoint: they would lead to a quarantined one."""
    for item in find_pointers(stored):
        step = parse_pointer(item.key, pointers.get(item.key, ""))
        if step is not None and _is_newer(step, action) and item.at <= action.saved_before:
            kept = _find_kept(checkpoints, item, action)
            yield QuarantineMove(item, item.key, text=format_pointer(item.key, kept.step) if kept else "")
    for item in find_copies(stored) if checkpoints else ():
        kept = _find_kept(checkpoints, item, action)
        copy_key = next(iter(kept.files.values())) if kept and len(kept.files) == 1 else None
        if item.at <= action.saved_before and (
            copy_key is None or (copy_key.etag, copy_key.bytes) != (item.etag, item.bytes)
        ):
            yield QuarantineMove(item, item.key, copy_key=copy_key.key if copy_key else "")


def _find_kept(
    checkpoints: Sequence[LayoutCheckpoint], beside: StoredObject, action: QuarantineCheckpoints
) -> LayoutCheckpoint | None:
    """Return the checkpoint to resume from in the same folder, or None."""
    parent = beside.key[: beside.key.rfind("/") + 1]
    return next(
        (
            checkpoint
            for checkpoint in checkpoints
            if (checkpoint.step, checkpoint.parent) == (action.resume_step, parent) and checkpoint.is_whole
        ),
        None,
    )
