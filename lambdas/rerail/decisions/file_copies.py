"""Decide which files are copied that a script overwrites in place, and which copies a relaunch goes back to.

Such a file has no step and no predecessor. The copies give it one: for a file that could not be loaded, and for one
that was saved after the loss had gone wrong.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from rerail.decisions.checkpoint_health import find_open_onset
from rerail.decisions.decision import Decision, has_agent, has_pending, may_act, with_attempt
from rerail.decisions.quarantine import COPIES_PLACE
from rerail.model.actions import CopyCheckpoint
from rerail.model.checkpoint_layouts import Layout, is_truncated
from rerail.model.checkpoints import Checkpoint, split_uri
from rerail.model.file_copies import FileCopy
from rerail.model.policy import Policy
from rerail.model.run import Attempt, Run, RunState
from rerail.model.sample import parse_step
from rerail.model.signals import FileCopied, JobObserved, Signal

# The names that are copied and restored: those of PyTorch. `OVERWRITTEN` of quarantine.py covers them.
SUFFIXES = (".pt", ".pth", ".pt.tar", ".pth.tar", ".ckpt")
# More files are the parts of one checkpoint rather than checkpoints.
MAX_FILES = 4
# Files that are saved together reach S3 within this time.
SAME_SAVE = timedelta(minutes=2)
MAX_KEY_BYTES = 1024
REFUSED_FOR = timedelta(minutes=20)
# The ladder's margin is in steps. Where a script counts epochs it would be more than the whole run, so it is at most
# this fraction of the steps since the attempt began, and what is so much older than the onset keeps it.
MARGIN_SHARE = 10
MARGIN_TIME = timedelta(minutes=10)


def with_copies(before: Run, decision: Decision, signal: Signal, policy: Policy) -> Decision:
    """Add the copies of files that the job was just seen to have saved."""
    if not isinstance(signal, JobObserved) or signal.job.name != decision.run.current.job_name:
        return decision
    if not signal.job.is_training:
        return decision
    copies = list_due_copies(
        decision.run, signal.checkpoints or (), policy, at=signal.at, step=parse_step(signal.job.metrics)
    )
    return replace(decision, actions=(*decision.actions, *copies)) if copies else decision


def list_due_copies(
    run: Run, checkpoints: Sequence[Checkpoint], policy: Policy, *, at: datetime, step: int | None = None
) -> tuple[CopyCheckpoint, ...]:
    """Return the copies to make of the files that the run's job has saved.

    There are none while the loss is in trouble: they would replace those from before.
    """
    files = [checkpoint for checkpoint in checkpoints if checkpoint.layout == Layout.FILE]
    if not 0 < len(files) <= MAX_FILES or not policy.copies.keep or not may_act(run, policy) or has_agent(run):
        return ()
    if run.state is not RunState.WATCHING or _was_just_refused(run.current, at) or find_open_onset(run) is not None:
        return ()
    bucket, folder = split_uri(run.checkpoint_uri)
    if not folder or folder.startswith(COPIES_PLACE) or has_pending(run, CopyCheckpoint):
        return ()
    uri = f"s3://{bucket}/{folder}"
    if not all(file.uri.startswith(uri) and file.uri.endswith(SUFFIXES) for file in files):
        return ()
    copies = [_make_copy(run, file, file.uri.removeprefix(uri), step) for file in files]
    names = {copy.name for copy in copies}
    return tuple(_make_action(run, copy, policy, names) for copy in copies if _is_due(run, copy, policy, at))


def _was_just_refused(attempt: Attempt, at: datetime) -> bool:
    """Return whether it is too early to try again; a deployment may have removed the obstacle."""
    refused_at = attempt.copy_refused_at
    return bool(attempt.copy_problem) and refused_at is not None and at - refused_at < REFUSED_FOR


def _make_copy(run: Run, file: Checkpoint, name: str, step: int | None) -> FileCopy:
    """Return the copy of a file, which is not made yet."""
    key = f"{COPIES_PLACE}{run.id}/{file.saved_at:%Y%m%dT%H%M%SZ}-{file.etag[:8]}/{name}"
    return FileCopy(name, key, file.etag, file.bytes, file.saved_at, file.attempt, step)


def _is_due(run: Run, copy: FileCopy, policy: Policy, at: datetime) -> bool:
    """Return whether the file is new, whole as far as its size tells, and the current attempt's own."""
    started = run.current.training_started_at
    if not copy.etag or not copy.bytes or len(copy.key.encode()) > MAX_KEY_BYTES:
        return False
    if started is None or copy.saved_at < started.replace(microsecond=0) or copy.attempt != run.current.number:
        return False
    earlier = (other for other in run.copies if other.name == copy.name)
    newest = max(earlier, key=lambda other: other.saved_at, default=None)
    if newest is None:
        return True
    if copy.etag in (newest.etag, newest.copy_etag) or at - newest.saved_at < policy.copies.every:
        return False
    return newest.attempt != copy.attempt or not is_truncated(copy.bytes, newest.bytes)


def _make_action(run: Run, copy: FileCopy, policy: Policy, names: Collection[str]) -> CopyCheckpoint:
    """Return the action that makes a copy and deletes those that are too many then, also of names that are gone."""
    older = sorted(run.copies, key=lambda other: other.saved_at, reverse=True)
    older.sort(key=lambda other: is_rejected(run, other))  # those that are never restored go first
    own = [other for other in older if other.name == copy.name]
    gone = [other for other in older if other.name not in names]
    is_first = all(other.attempt != run.current.number for other in run.copies)
    expired = (*own[policy.copies.keep - 1 :], *gone[policy.copies.keep :])
    return CopyCheckpoint(run.id, run.checkpoint_uri, copy, expired, is_first)


def on_copied(run: Run, copied: FileCopied, policy: Policy) -> Decision:
    """Record a copy, or why none can be made; that is said once for each attempt and obstacle."""
    if copied.action not in run.pending:
        return Decision(run)
    run = replace(run, pending=tuple(action for action in run.pending if action != copied.action))
    name = copied.action.copy.name
    if copied.problem:
        is_known = run.current.copy_problem == copied.problem
        run = with_attempt(run, replace(run.current, copy_problem=copied.problem, copy_refused_at=copied.at))
        if is_known:
            return Decision(run)
        return Decision(run, reason=f"{name} is not copied: {copied.problem}", finding="not_copied")
    if copied.copy is None:
        return Decision(run)
    if run.current.copy_problem:
        run = with_attempt(run, replace(run.current, copy_problem="", copy_refused_at=None))
        run = replace(run, copies=_with_copy(run, copied.copy, copied.action))
        return Decision(run, reason=f"{name} is copied again: nothing prevents it any more")
    return Decision(replace(run, copies=_with_copy(run, copied.copy, copied.action)))


def _with_copy(run: Run, copy: FileCopy, action: CopyCheckpoint) -> tuple[FileCopy, ...]:
    """Return the run's copies after one was made and others were deleted."""
    return (*(known for known in run.copies if known not in action.expired and known.key != copy.key), copy)


def with_damaged_files(run: Run, checkpoints: Sequence[Checkpoint]) -> tuple[Run, str]:
    """Return the run with the time before which its files were sound, and what is restored; "" if there is no copy.

    The current attempt could not load what was there when it started, and has saved nothing since.
    """
    files, attempt = [file for file in checkpoints if file.layout == Layout.FILE], run.current
    started = attempt.training_started_at or attempt.created_at
    if not files or started is None or attempt.last_step is not None or has_agent(run):
        return run, ""
    if (newest := max(file.saved_at for file in files)) > started:
        return run, ""
    since = _date_damage(run, newest, has_others=len(files) > 1)
    dated = with_attempt(run, replace(attempt, onset_at=since))
    copies = {copy.name: copy for copy in list_restored(dated, attempt.number)}
    uri = "s3://{}/{}".format(*split_uri(run.checkpoint_uri))
    damaged = [file.uri.removeprefix(uri) for file in files if file.saved_at >= since]
    if not set(damaged) <= copies.keys():
        return run, ""
    return dated, format_copies([copies[name] for name in damaged])


def _date_damage(run: Run, newest: datetime, *, has_others: bool) -> datetime:
    """Return the time from which on saved files are damaged, given when the newest of them was saved."""
    ended = run.attempts[-2].ended_at if run.current.number > 1 else None
    if ended and newest > ended and (restored := list_restored(run, run.current.number - 1)):
        return min(copy.saved_at for copy in restored)  # what was restored for this attempt is damaged too
    return newest - SAME_SAVE if has_others else newest


def with_onsets_dated(run: Run, *, margin_steps: int) -> Run:
    """Return the run whose attempts have the times of their onsets."""
    attempts = tuple(
        attempt if attempt.onset_at else with_onset_dated(run, attempt, margin_steps=margin_steps)
        for attempt in run.attempts
    )
    return replace(run, attempts=attempts)


def with_onset_dated(run: Run, attempt: Attempt, *, margin_steps: int) -> Attempt:
    """Return the attempt with the time before which its files were sound; without copies it is not needed.

    That is the time of its onset, or soon after the newest copy that keeps the margin before it; without such a copy,
    after the newest one before the onset. If none is known, nothing of the run is sound.
    """
    if attempt.onset_step is None or not run.copies:
        return attempt
    earlier = [copy for copy in list_copies_before(run, attempt.onset_step) if copy.attempt <= attempt.number]
    margin = min(margin_steps, (attempt.onset_step - (run.find_start(attempt) or 0)) // MARGIN_SHARE)
    sound = [copy for copy in earlier if _is_before_margin(copy, attempt, margin)]
    times = [copy.saved_at + timedelta(seconds=1) for copy in sound or earlier]
    known = [time for time in (max(times, default=None), attempt.onset_at) if time]
    return replace(attempt, onset_at=min(known, default=run.created_at))


def _is_before_margin(copy: FileCopy, attempt: Attempt, margin: int) -> bool:
    """Return whether the copy keeps the margin before the attempt's onset, in steps or in time."""
    assert attempt.onset_step is not None and copy.step is not None
    is_old = attempt.onset_at is not None and copy.saved_at <= attempt.onset_at - MARGIN_TIME
    return is_old or copy.step < attempt.onset_step - margin


def list_copies_before(run: Run, step: int) -> list[FileCopy]:
    """Return the copies from before this step that may be restored."""
    return [c for c in run.copies if c.step is not None and c.step < step and not is_rejected(run, c)]


def list_restored(run: Run, number: int) -> tuple[FileCopy, ...]:
    """Return the newest copy of each file from before the onset of this attempt; none if that is not known.

    Copies from after the onset of an earlier attempt, made by it or before, are never restored.
    """
    attempt = next((attempt for attempt in run.attempts if attempt.number == number), None)
    if attempt is None or attempt.onset_at is None:
        return ()
    sound = [copy for copy in run.copies if not is_rejected(run, copy)]
    newest = {copy.name: copy for copy in sorted(sound, key=lambda copy: copy.saved_at) if copy.attempt <= number}
    return tuple(newest.values())


def is_rejected(run: Run, copy: FileCopy) -> bool:
    """Return whether the copy was saved after the onset of an attempt, by it or an earlier one."""
    return any(
        attempt.onset_at is not None and copy.attempt <= attempt.number and copy.saved_at >= attempt.onset_at
        for attempt in run.attempts
    )


def format_copies(copies: Sequence[FileCopy]) -> str:
    """Return the names of the files with the times at which they were saved."""
    return ", ".join(f"{copy.name} as saved at {copy.saved_at:%Y-%m-%d %H:%M:%S} UTC" for copy in copies)
