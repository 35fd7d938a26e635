"""Plan which objects to move so that a script without an agent resumes from the right checkpoint.

Such a script resumes from whatever is in its checkpoint folder, which SageMaker copies to the machine when a job
starts. Checkpoints after the step to resume from therefore move to a folder outside of it. Pointers to the newest
checkpoint, and copies such as `last.ckpt`, move too and are rewritten for the checkpoint to resume from. A file that
the script overwrites in place, and whose step is therefore unknown, is replaced by an earlier copy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from rerail.model.actions import CopyCheckpoint, QuarantineCheckpoints
from rerail.model.checkpoint_layouts import (
    LATEST,
    LATEST_STEP,
    TENSORFLOW,
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
from rerail.model.run import Run

PLACE = "rerail-quarantine/"
# Of copies of files that scripts overwrite in place. Both are outside of all checkpoint folders, which jobs are given.
COPIES_PLACE = "rerail-versions/"
# All keys that are ever written, as IAM patterns: quarantined objects, and what is replaced in the checkpoint folder.
QUARANTINED, COPIES = f"{PLACE}*", f"{COPIES_PLACE}*"
OVERWRITTEN = ("*.pt*", "*.ckpt")
REPLACED = (*OVERWRITTEN, f"*{LATEST}", f"*{TRACKER}", f"*{LATEST_STEP}", f"*{TENSORFLOW}", "*.symlink")
MAX_NAMES = 3
# S3 allows 1,024; an ETag may be appended. Longer names go to quarantine as a digest.
MAX_TARGET_BYTES = 900
NOT_ALLOWED = "the deployment does not let Rerail move checkpoints"
# The job's last upload may have finished this long after its end was observed.
CLOCK_MARGIN = timedelta(seconds=5)
BY_HAND = "move what must not be resumed from out of that folder by hand, then release the run"


@dataclass(frozen=True, slots=True)
class QuarantineMove:
    """One object to move: copied to `target`, then deleted or replaced."""

    source: StoredObject  # its key includes the folder
    target: str  # full key
    text: str = ""  # written in its place, if not empty
    copy_key: str = ""  # full key of the object that is copied in its place, if not empty
    copy_etag: str = ""  # the ETag that it must have, if not empty
    # An unfinished upload to the source that began before this time is the job's own.
    since: datetime | None = None

    @property
    def is_replaced(self) -> bool:
        """Whether another object or text takes its place."""
        return bool(self.text or self.copy_key)


def plan_moves(
    stored: Sequence[StoredObject], pointers: Mapping[str, str], action: QuarantineCheckpoints
) -> list[QuarantineMove]:
    """Return the moves that are left to do, pointers first.

    Keys of `stored` and `pointers` are relative to the checkpoint folder. Raises QuarantineFailed where the folders
    overlap, or, with `strict`, where the steps of the checkpoints cannot be determined or they are older than the run.
    """
    bucket, folder = split_uri(action.uri)
    if place := next((p for p in (PLACE, COPIES_PLACE) if p.startswith(folder) or folder.startswith(p)), ""):
        raise QuarantineFailed(
            f"quarantined checkpoints go to s3://{bucket}/{place}, which overlaps with {action.uri}: a job would be "
            "given it too",
            advice="move what must not be resumed from away by hand, then release the run; next time give the run a "
            "folder of its own in the bucket",
        )
    # A script that writes a manifest for a checkpoint moves it away by itself.
    all_found = find_checkpoints(stored, pointers)
    found = [save for save in all_found if save.has_step]
    checkpoints = [save for save in found if not save.has_manifest and not save.is_unfinished]
    target_folder = f"{PLACE}{action.run}/a{action.attempt:03d}/"
    moves = [*_list_pointer_moves(stored, pointers, checkpoints, action), *_list_rolled_back(checkpoints, action)]
    if action.strict:
        moves += _list_later(all_found, action) if found else list_replaced_files(stored, action)
    own = [move for move in moves if action.saved_after and move.source.at >= action.saved_after]
    if action.strict and len(own) < len(moves):
        kept = {move.source.key for move in moves} - {move.source.key for move in own}
        names = ", ".join(sorted(kept)[:MAX_NAMES])
        raise QuarantineFailed(
            f"checkpoints under {action.uri} are older than the run, so they may be another's ({names})", advice=BY_HAND
        )
    return [_with_full_keys(move, folder=folder, target_folder=target_folder) for move in own]


def _with_full_keys(move: QuarantineMove, *, folder: str, target_folder: str) -> QuarantineMove:
    """Return the move with keys from the root of the bucket."""
    source = move.source._replace(key=f"{folder}{move.source.key}")
    copy_key = move.copy_key if not move.copy_key or move.copy_etag else f"{folder}{move.copy_key}"
    target = f"{target_folder}{move.source.key}"
    if len(target.encode()) > MAX_TARGET_BYTES:
        target = f"{target_folder}{sha256(move.source.key.encode()).hexdigest()}"
    return replace(move, source=source, target=target, copy_key=copy_key)


def list_replaced_files(stored: Sequence[StoredObject], action: QuarantineCheckpoints) -> Iterator[QuarantineMove]:
    """Yield the moves of files without a step that an earlier copy replaces; refuse if one of them has none.

    What was saved later than the last job's end is what was restored, or an operator's.
    """
    files = dict.fromkeys((*find_undated(stored), *find_copies(stored)))
    copies = {copy.name: copy for copy in action.restored}
    since = action.replaced_since
    newer = [file for file in files if since is None or since <= file.at <= action.saved_before]
    if unknown := [file.key for file in newer if file.key not in copies]:
        raise QuarantineFailed(
            f"the steps of the checkpoints under {action.uri} are unknown ({', '.join(unknown[:MAX_NAMES])})",
            advice=BY_HAND,
        )
    started = action.saved_before - CLOCK_MARGIN
    for file in newer:
        copy = copies[file.key]
        if (file.etag.strip('"'), file.bytes) != (copy.copy_etag, copy.bytes):
            yield QuarantineMove(file, file.key, copy_key=copy.key, copy_etag=copy.copy_etag, since=started)


def _list_rolled_back(
    checkpoints: Sequence[LayoutCheckpoint], action: QuarantineCheckpoints
) -> Iterator[QuarantineMove]:
    """Yield the moves of all files of checkpoints newer than the step to resume from."""
    for checkpoint in checkpoints:
        if _is_newer(checkpoint.step, action) and checkpoint.saved_at <= action.saved_before:
            yield from (QuarantineMove(file, file.key) for file in checkpoint.files.values())


def _list_later(found: Sequence[LayoutCheckpoint], action: QuarantineCheckpoints) -> Iterator[QuarantineMove]:
    """Yield the moves of checkpoints without a step, beside others, that were saved after the one to resume from."""
    kept = [save.saved_at for save in found if save.has_step and save.is_whole and save.step == action.resume_step]
    for save in found:
        is_later = action.resume_step is None or (bool(kept) and save.saved_at > max(kept))
        if not save.has_step and not save.has_manifest and is_later and save.saved_at <= action.saved_before:
            yield from (QuarantineMove(file, file.key) for file in save.files.values())


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
        content = pointers.get(item.key, "")
        step = parse_pointer(item.key, content)
        if step is not None and _is_newer(step, action) and item.at <= action.saved_before:
            kept = _find_kept(checkpoints, item, action)
            text = format_pointer(item.key, kept.step, content, kept.list_names()) if kept else ""
            yield QuarantineMove(item, item.key, text=text)
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


def check_folder(
    action: QuarantineCheckpoints | CopyCheckpoint, request: Mapping[str, Any], folders: Mapping[str, Sequence[str]]
) -> None:
    """Raise QuarantineFailed unless the role of the run's jobs may change the folder.

    `request` is that of the run's jobs, `folders` are the folders whose checkpoints may be moved, by role ARN. Rerail
    cannot ask which permissions a role has, so the deployment says it. SageMaker uses the role in the folder of
    CheckpointConfig only: an environment variable may name any folder.
    """
    if not is_below(action.uri, _read_config_uri(request)):
        raise QuarantineFailed(
            f"{action.uri} is not below the S3Uri of the job's CheckpointConfig; a folder that only RERAIL_CHECKPOINTS "
            "names is read, and never changed",
            advice=f"{BY_HAND}; next time give the job a CheckpointConfig with that folder",
        )
    if not _is_listed(action.uri, request, folders):
        role = request.get("RoleArn", "")
        then = f", and release the run; or {BY_HAND}"
        if isinstance(action, CopyCheckpoint):  # the run is not held
            then = "; within half an hour of training the file is copied"
        raise QuarantineFailed(
            f"{NOT_ALLOWED} of the role {role} in {action.uri}",
            advice=f"deploy with that folder, or one that contains it, listed for {role} in the context value "
            f"quarantineFolders{then}",
        )


def may_share(other: Run, uri: str, since: datetime) -> bool:
    """Return whether another run may have saved to the same folder, or one below or above it, since then."""
    last = max((attempt.ended_at for attempt in other.attempts if attempt.ended_at), default=None)
    is_active = not other.state.is_end or other.current.may_be_live or (last is not None and last >= since)
    return is_active and (is_below(other.checkpoint_uri, uri) or is_below(uri, other.checkpoint_uri))


def has_claim(other: Run, request: Mapping[str, Any], folders: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the jobs of another run have proven that they may use their checkpoint folder.

    Either the deployment says so, or SageMaker has started a job with the folder. Otherwise a job that only names the
    folder of a run could keep that run from being rolled back.
    """
    has_trained = any(attempt.training_started_at for attempt in other.attempts)
    return _is_listed(other.checkpoint_uri, request, folders) or (
        has_trained and is_below(other.checkpoint_uri, _read_config_uri(request))
    )


def is_below(uri: str, folder: str) -> bool:
    """Return whether a folder is this one or below it; False where one of the URIs could be read in two ways."""
    inner, outer = _canonical(uri), _canonical(folder)
    return bool(inner and outer) and inner.startswith(outer)


def _canonical(uri: str) -> str:
    """Return `bucket/some/prefix/` for `s3://bucket/some/prefix`, "" for a URI with empty or dotted parts."""
    parts = uri.removeprefix("s3://").removesuffix("/").split("/")
    is_plain = uri.startswith("s3://") and uri.isprintable() and not {"", ".", ".."} & set(parts)
    return "/".join((*parts, "")) if is_plain else ""


def _is_listed(uri: str, request: Mapping[str, Any], folders: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the deployment lists the folder for the role of the request."""
    return any(is_below(uri, folder) for folder in folders.get(str(request.get("RoleArn", "")), ()))


def _read_config_uri(request: Mapping[str, Any]) -> str:
    """Return the folder that SageMaker itself restores and writes with the job's role; "" if there is none."""
    return str((request.get("CheckpointConfig") or {}).get("S3Uri", ""))
