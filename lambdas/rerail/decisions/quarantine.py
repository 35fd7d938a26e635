"""What has to be moved for a rollback of a script that knows nothing of Rerail, and where to?

It resumes from whatever lies in its checkpoint folder, which SageMaker copies to the machine at the start of a job. So
all that was saved after the step to resume from goes to a place outside of that folder, and what names the last save (a
pointer, or a copy such as `last.ckpt`) is kept there too and then names the one to resume from.
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
from rerail.model.checkpoints import bucket_and_folder
from rerail.model.errors import QuarantineFailed

PLACE = "rerail-quarantine/"
# The keys that are ever written, as IAM matches them: what is set aside and what is the last save once more, both of
# which are copied, and the texts that name the last save.
COPIED = (f"{PLACE}*", "*/last*.ckpt")
WRITTEN = (*COPIED, f"*/{LATEST}", f"*/{TRACKER}")
NAMED = 3


@dataclass(frozen=True, slots=True)
class QuarantineMove:
    """An object that goes aside: copied to `target` and then taken away, or replaced by what the script should find.

    `text` is what is written in its place, `twin` the key of the object that is copied there; keys are whole ones.
    """

    source: StoredObject
    target: str
    text: str = ""
    twin: str = ""

    @property
    def is_replaced(self) -> bool:
        """Something else takes its place."""
        return bool(self.text or self.twin)


def plan_moves(
    stored: Sequence[StoredObject], pointers: Mapping[str, str], action: QuarantineCheckpoints
) -> list[QuarantineMove]:
    """Return the moves that are left to do, pointers first; raises QuarantineFailed.

    Keys of `stored` and `pointers` are relative to the checkpoint folder."""
    bucket, folder = bucket_and_folder(action.uri)
    if PLACE.startswith(folder) or folder.startswith(PLACE):
        raise QuarantineFailed(
            f"what is set aside goes to s3://{bucket}/{PLACE}, and that is not outside of {action.uri}: a job would be "
            "given it too. To do: move aside by hand what must not be resumed from, then release the run; next time "
            "give the run a folder of its own in the bucket"
        )
    found = find_checkpoints(stored, pointers)
    if action.strict and not found and (strange := [*find_undated(stored), *find_copies(stored)]):
        names = ", ".join(each.key for each in strange[:NAMED])
        raise QuarantineFailed(
            f"nobody can tell of which step the saves under {action.uri} are ({names}). To do: move what must not be "
            f"resumed from out of that folder, then release the run"
        )
    place = f"{PLACE}{action.run}/a{action.attempt:03d}/"
    moves = [*_pointers(stored, pointers, found, action), *_tainted(found, action)]
    return [_from_the_bucket(move, folder=folder, place=place) for move in moves]


def _from_the_bucket(move: QuarantineMove, *, folder: str, place: str) -> QuarantineMove:
    source = move.source._replace(key=f"{folder}{move.source.key}")
    return QuarantineMove(source, f"{place}{move.source.key}", move.text, f"{folder}{move.twin}" if move.twin else "")


def _tainted(found: Sequence[LayoutCheckpoint], action: QuarantineCheckpoints) -> Iterator[QuarantineMove]:
    for save in found:
        if _is_after(save.step, action) and save.saved_at <= action.saved_before:
            yield from (QuarantineMove(each, each.key) for each in save.files.values())


def _is_after(step: int, action: QuarantineCheckpoints) -> bool:
    return action.resume_step is None or step > action.resume_step


def _pointers(
    stored: Sequence[StoredObject],
    pointers: Mapping[str, str],
    found: Sequence[LayoutCheckpoint],
    action: QuarantineCheckpoints,
) -> Iterator[QuarantineMove]:
    """What names the last save, and what is it once more: it would lead the script to what is set aside."""
    for each in find_pointers(stored):
        step = parse_pointer(each.key, pointers.get(each.key, ""))
        if step is not None and _is_after(step, action) and each.at <= action.saved_before:
            kept = _kept(found, each, action)
            yield QuarantineMove(each, each.key, text=format_pointer(each.key, kept.step) if kept else "")
    for each in find_copies(stored) if found else ():
        kept = _kept(found, each, action)
        twin = next(iter(kept.files.values())) if kept and len(kept.files) == 1 else None
        if each.at <= action.saved_before and (twin is None or (twin.etag, twin.bytes) != (each.etag, each.bytes)):
            yield QuarantineMove(each, each.key, twin=twin.key if twin else "")


def _kept(
    found: Sequence[LayoutCheckpoint], beside: StoredObject, action: QuarantineCheckpoints
) -> LayoutCheckpoint | None:
    """The save to resume from, in the same folder."""
    parent = beside.key[: beside.key.rfind("/") + 1]
    return next((s for s in found if (s.step, s.parent) == (action.resume_step, parent) and s.is_whole), None)
