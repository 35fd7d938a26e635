"""Decide whether a checkpoint may be resumed from: it is clean, suspect or quarantined.

The manifest records what was known when it was saved. What is learned later is kept as labels on the run. An onset
makes all later checkpoints suspect, a loss that recovered makes them clean again, and a rollback quarantines what it
rolled back. A checkpoint that could not be loaded twice, or whose files do not match its manifest, is quarantined too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from rerail.detection.onsets import OF_THE_LOSS
from rerail.model.causes import Cause
from rerail.model.checkpoint_layouts import Layout
from rerail.model.checkpoints import Checkpoint, Health, find_newest_usable
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import Report, ReportKind
from rerail.model.run import Attempt, HealthLabel, Run, RunState

MAX_LABELS = 60
# For each rollback: the attempt and in-place restart that were rolled back, and the step of the onset.
Onsets = list[tuple[tuple[int, int], int]]
MAX_WHY_CHARS = 200
ALL_RESTARTS = 1_000_000
RESOLVED_LEVELS = (Level.RECOVERED, Level.ACCEPTED)
# A problem is noticed a few rows after it began: where no step is known, it is dated so much earlier.
DATING_MARGIN = timedelta(minutes=10)
SAVED_AFTER = "saved after "
# What is missing while a warning of the kind is open.
MISSING = {
    Kind.STALL: "the job has made no step for longer than usual",
    Kind.BLIND: "metrics or heartbeats are missing",
    Kind.STARTUP_STALL: "the job has made no first step",
    Kind.CHECKPOINT_STALL: "the next checkpoint is overdue",
}
ROLLED_BACK = "saved after the loss had gone wrong, by the attempt that was rolled back or one before it"
SUSPECT_MANIFEST = "its health is suspect: there was trouble with the loss when it was saved"


def with_health(run: Run, checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Return the checkpoints with their health as it is known now; repeating it changes nothing."""
    onsets = _list_onsets(run)
    if not onsets and not run.labels:
        return tuple(checkpoints)
    healths = [_assess(run, checkpoint, onsets)[0] for checkpoint in checkpoints]
    return tuple(
        checkpoint if checkpoint.health is health else replace(checkpoint, health=health)
        for checkpoint, health in zip(checkpoints, healths, strict=True)
    )


def assess_health(run: Run, checkpoint: Checkpoint) -> tuple[Health, str]:
    """Return the health of a checkpoint and the reason, which may be empty; the worst that is known counts."""
    return _assess(run, checkpoint, _list_onsets(run))


def _assess(run: Run, checkpoint: Checkpoint, onsets: Onsets) -> tuple[Health, str]:
    """Return the health of a checkpoint and the reason, given the onsets of all rollbacks."""
    labels = [label for label in run.labels if _covers(label, checkpoint)]
    if checkpoint.health is Health.QUARANTINED:
        return Health.QUARANTINED, "its health is quarantined"
    if label := _find_label(labels, Health.QUARANTINED):
        return Health.QUARANTINED, label.why
    if _was_rolled_back(run, checkpoint, onsets):
        return Health.QUARANTINED, ROLLED_BACK
    if label := _find_label(labels, Health.SUSPECT):
        return Health.SUSPECT, label.why
    if label := _find_label(labels, Health.CLEAN):
        return Health.CLEAN, label.why
    return checkpoint.health, SUSPECT_MANIFEST if checkpoint.health is Health.SUSPECT else ""


def is_resumable(checkpoint: Checkpoint) -> bool:
    """Return whether the checkpoint is complete and not quarantined."""
    return checkpoint.is_whole and checkpoint.health is not Health.QUARANTINED


def find_newest_resumable(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the newest clean checkpoint, else the newest suspect one, never a quarantined one.

    A suspect checkpoint may be sound, and starting from scratch loses everything.
    """
    return find_newest_usable(checkpoints) or find_newest_usable(checkpoints, health=Health.SUSPECT)


def with_findings(run: Run, findings: Sequence[Finding]) -> Run:
    """Return the run with labels for findings about the loss of its current attempt, new or resolved."""
    for finding in findings:
        if finding.kind not in OF_THE_LOSS:
            continue
        if finding.level in RESOLVED_LEVELS:
            run = replace(run, labels=tuple(new for label in run.labels for new in _close_label(run, label, finding)))
        else:
            run = _with_trouble(run, finding, Health.SUSPECT)
    return run


def with_onset_estimated(run: Run, finding: Finding, checkpoints: Sequence[Checkpoint]) -> Finding:
    """Return a finding about the loss with the step at which it began, by the times of the checkpoints.

    Without a usable step metric only the time is known. Files that are overwritten in place are dated by it.
    """
    began = finding.onset_at or finding.at
    if finding.kind not in OF_THE_LOSS or finding.onset_step is not None or began is None or not checkpoints:
        return finding
    folders = [checkpoint for checkpoint in checkpoints if checkpoint.layout != Layout.FILE]
    # Where everything was saved within the margin, the newest from before is better than nothing.
    if any(save.saved_at <= began - DATING_MARGIN for save in folders or run.copies):
        began -= DATING_MARGIN
    if not folders:
        return replace(finding, onset_at=began)
    onset = max((folder.step + 1 for folder in folders if folder.saved_at <= began), default=0)
    return replace(finding, onset_step=min([onset, *(folder.step for folder in folders if folder.saved_at > began)]))


def with_rollback_labels(run: Run, finding: Finding) -> Run:
    """Return the run with all checkpoints since the finding's onset quarantined, for a rollback."""
    return _with_trouble(run, finding, Health.QUARANTINED)


def with_rollback_withdrawn(run: Run) -> Run:
    """Return the run without the marks of a rollback that is not carried out: its checkpoints are suspect again.

    The marks of an operator's rollback are removed too. A rung whose restart in place is not known to have succeeded
    is given up.
    """
    kind, run = run.current.fingerprint, without_operator_rollback(run)
    undone = [label for label in _list_open_trouble(run) if (label.health, label.source) == (Health.QUARANTINED, kind)]
    current = replace(run.current, cause=None, fingerprint="", onset_step=None, onset_at=None)
    order = current.in_place_restarts[-1] if current.in_place_restarts else None
    taken, rungs = run.rungs_taken[-1] if run.rungs_taken else None, run.rungs_taken
    if order and taken and not order.restarted_at and (taken.attempt, taken.at) == (current.number, order.asked_at):
        skip, rate, rung = taken.former_skip_samples, taken.former_rate, taken.former_rung
        current, rungs = replace(current, skip_samples=skip, rate=rate, rung=rung), rungs[:-1]
    incidents = run.incidents
    if incidents and (incidents[-1].attempt, incidents[-1].restart) == (current.number, current.restart):
        incidents = (*incidents[:-1], replace(incidents[-1], onset_step=None))
    labels = tuple(label for label in run.labels if label not in undone)
    return replace(run, attempts=(*run.attempts[:-1], current), incidents=incidents, labels=labels, rungs_taken=rungs)


def with_operator_rollback(run: Run, step: int, *, why: str, source: str) -> Run:
    """Return the run with all existing checkpoints after `step` quarantined, whatever an earlier rollback said."""
    run = without_operator_rollback(run)
    last = _find_last_job(run)
    label = HealthLabel(step + 1, last.number, Health.QUARANTINED, why[:MAX_WHY_CHARS], source, restart=last.restart)
    onset = min(step + 1, last.onset_step) if last.onset_step is not None else step + 1
    dated = replace(last, onset_step=onset, onset_at=None)
    attempts = tuple(dated if attempt is last else attempt for attempt in run.attempts)
    return _with_label(replace(run, attempts=attempts), label)


def without_operator_rollback(run: Run) -> Run:
    """Return the run without the marks of an operator's rollback of its newest job."""
    last = _find_last_job(run)
    saver = (last.number, last.restart)
    marks = [mark for mark in run.labels if mark.source in run.commands and (mark.attempt, mark.restart) == saver]
    if last.onset_step in [mark.step for mark in marks]:
        dated = replace(last, onset_step=None, onset_at=None)
        run = replace(run, attempts=tuple(dated if attempt is last else attempt for attempt in run.attempts))
    return replace(run, labels=tuple(label for label in run.labels if label not in marks)) if marks else run


def _find_last_job(run: Run) -> Attempt:
    """Return the newest attempt whose job exists, or the first one."""
    return next((attempt for attempt in reversed(run.attempts) if attempt.exists), run.attempts[0])


def with_damage(run: Run, checkpoints: Sequence[Checkpoint], *, why: str, at: datetime) -> tuple[Run, int | None]:
    """Return the run with the checkpoint quarantined that the current attempt could not load, and its step.

    It is the one that the attempt was to resume from, else the newest that existed when it started. An attempt that has
    trained had loaded its checkpoint. A file that replaces the damaged one later is not covered.
    """
    attempt = run.current
    step = attempt.resumed_from_step
    if step is None:
        since = attempt.training_started_at or attempt.created_at or run.created_at
        step = max((c.step for c in checkpoints if c.saved_at <= since and is_resumable(c)), default=None)
    if step is None or (attempt.last_step or 0) > step:
        return run, None
    label = HealthLabel(
        step,
        attempt.number,
        Health.QUARANTINED,
        f"it could not be loaded: {why}"[:MAX_WHY_CHARS],
        Cause.DAMAGED_CHECKPOINT,
        until=step,
        restart=ALL_RESTARTS,
        before=at,
    )
    return _with_label(run, label), step


def find_open_onset(run: Run) -> int | None:
    """Return the first step of open trouble with the current attempt's loss, or None."""
    return min((label.step for label in _list_open_trouble(run)), default=None)


def find_open_warning(run: Run) -> str:
    """Return what is wrong with the job that runs, its loss or missing data, in words; "" for nothing."""
    if run.state is not RunState.WATCHING or not run.current.may_be_live:
        return ""
    if (label := find_open_label(run)) is not None:
        return f"warning: {label.why.removeprefix(SAVED_AFTER)}"
    return next((f"warning: {what}" for kind, what in MISSING.items() if kind in run.open_warnings), "")


def find_open_label(run: Run) -> HealthLabel | None:
    """Return the first label of open trouble with the current attempt's loss, or None."""
    labels = [label for label in _list_open_trouble(run) if label.why.startswith(SAVED_AFTER)]
    return min(labels, key=lambda label: label.step, default=None)


def _list_open_trouble(run: Run) -> list[HealthLabel]:
    current = (run.current.number, run.current.restart)
    open_labels = [label for label in run.labels if label.health is not Health.CLEAN and _is_open(label)]
    return [label for label in open_labels if (label.attempt, label.restart) == current]


def with_sagemaker_restart(run: Run, at: datetime) -> Run:
    """Return the run after SageMaker itself restarted its job.

    The job resumes from a clean checkpoint, so open labels do not cover what it saves from now on.
    """
    attempt = run.current
    orders = tuple(replace(order, repaired_at=order.repaired_at or at) for order in attempt.in_place_restarts)
    return replace(
        run,
        attempts=(*run.attempts[:-1], replace(attempt, in_place_restarts=orders)),
        labels=tuple(
            replace(label, before=at) if _is_open(label) and label.attempt == attempt.number else label
            for label in run.labels
        ),
    )


def with_unrestorable(run: Run, report: Report) -> Run:
    """Return the run with a label for a checkpoint that an agent could not restore.

    A repeated report changes nothing.
    """
    if report.step is None or any(label.source == report.id for label in run.labels):
        return run
    saver = report.attempt if report.saved_by is None else min(report.saved_by, report.attempt)
    new = HealthLabel(
        step=report.step,
        attempt=saver,
        health=Health.QUARANTINED,
        why=f"its files do not match its manifest: {report.reason}"[:MAX_WHY_CHARS],
        source=report.id,
        until=report.step,
        restart=report.restart if saver == report.attempt else ALL_RESTARTS,
    )
    if report.kind is not ReportKind.DAMAGED:
        span = (new.step, new.until, new.attempt)
        earlier = [label for label in run.labels if (label.step, label.until, label.attempt) == span]
        twice = f"it could not be loaded, twice: {report.reason}"
        once = f"it could not be loaded: {report.reason}; a second time, and it is quarantined"
        health, why = (Health.QUARANTINED, twice) if earlier else (Health.SUSPECT, once)
        new = replace(new, health=health, why=why[:MAX_WHY_CHARS])
    return _with_label(run, new)


def _with_trouble(run: Run, finding: Finding, health: Health) -> Run:
    """Return the run with a label on all that the current attempt saves from the onset on.

    It also covers what earlier attempts saved from that step on.
    """
    attempt, onset = run.current, finding.onset_step
    if onset is None:
        return run
    why = f"{SAVED_AFTER}the loss had gone wrong at step {onset} ({finding.kind}: {finding.evidence})"
    label = HealthLabel(onset, attempt.number, health, why[:MAX_WHY_CHARS], finding.kind, restart=attempt.restart)
    same, saver = (health, finding.kind), (attempt.number, attempt.restart)
    known = [other for other in run.labels if _is_open(other) and (other.health, other.source) == same]
    covers = (other.step <= onset and (other.attempt, other.restart) >= saver for other in known)
    return run if any(covers) else _with_label(run, label)


def _close_label(run: Run, label: HealthLabel, finding: Finding) -> Iterator[HealthLabel]:
    """Yield what replaces a label after resolved trouble; nothing where its end is unknown.

    Where it recovered, its checkpoints are clean again. Where it was accepted, only later ones are.
    """
    is_unaffected = label.health is not Health.SUSPECT or not _is_open(label) or not _affects_current(run, label)
    if is_unaffected or label.source != finding.kind or (finding.step is not None and finding.step < label.step):
        yield label
    elif finding.step is None:
        return  # its end is unknown: the manifests' own health counts
    elif finding.level is Level.RECOVERED:
        why = f"the loss that went wrong at step {label.step} had recovered by step {finding.step} ({finding.kind})"
        yield replace(label, health=Health.CLEAN, why=why, until=finding.step)
    else:
        yield replace(label, until=finding.step)


def _is_open(label: HealthLabel) -> bool:
    """Return whether the label also covers checkpoints that are still to be saved."""
    return label.until is None and label.before is None


def _affects_current(run: Run, label: HealthLabel) -> bool:
    """Return whether the trouble is the current attempt's own, or in the state that it resumed from."""
    own = (label.attempt, label.restart) == (run.current.number, run.current.restart)
    return own or label.step <= (run.current.resumed_from_step or -1)


def _covers(label: HealthLabel, checkpoint: Checkpoint) -> bool:
    """Return whether the label applies to the checkpoint."""
    in_range = label.until is None or checkpoint.step <= label.until
    in_range = in_range and (label.before is None or checkpoint.saved_at <= label.before)
    saved_by = (checkpoint.attempt, checkpoint.restart)
    return label.step <= checkpoint.step and in_range and saved_by <= (label.attempt, label.restart)


def _list_onsets(run: Run) -> Onsets:
    """Return the onsets of all rollbacks, from incidents and attempts."""
    onsets = [
        ((incident.attempt, incident.restart), incident.onset_step)
        for incident in run.incidents
        if incident.onset_step is not None
    ]
    return onsets + [
        ((attempt.number, attempt.restart), attempt.onset_step)
        for attempt in run.attempts
        if attempt.onset_step is not None
    ]


def _was_rolled_back(run: Run, checkpoint: Checkpoint, onsets: Onsets) -> bool:
    """Return whether the checkpoint was saved after the onset of a rollback that covers its attempt.

    Checkpoints that a container saved after SageMaker restarted it are excepted: it resumed from a clean one.
    """
    saved_by = (checkpoint.attempt, checkpoint.restart)
    rollbacks = [rolled_back for rolled_back, onset in onsets if saved_by <= rolled_back and checkpoint.step >= onset]
    if not rollbacks:
        return False
    saver = next((attempt for attempt in run.attempts if attempt.number == checkpoint.attempt), None)
    return not all(
        saver and saver.number == number and saver.is_from_restarted_container(restart, checkpoint.saved_at)
        for number, restart in rollbacks
    )


def _find_label(labels: Sequence[HealthLabel], health: Health) -> HealthLabel | None:
    """Return the first label with this health, or None."""
    return next((label for label in labels if label.health is health), None)


def _with_label(run: Run, label: HealthLabel) -> Run:
    """Return the run with one more label.

    At the limit, drop the oldest CLEAN label: without it a checkpoint is suspect, which is safe. Otherwise merge the
    two oldest labels into one that covers at least as much.
    """
    labels = [*run.labels, label]
    while len(labels) > MAX_LABELS:
        oldest_clean = next((existing for existing in labels if existing.health is Health.CLEAN), None)
        labels = (
            [existing for existing in labels if existing is not oldest_clean]
            if oldest_clean
            else [_merge_labels(*labels[:2]), *labels[2:]]
        )
    return replace(run, labels=tuple(labels))


def _merge_labels(one: HealthLabel, other: HealthLabel) -> HealthLabel:
    """Return one label with the worse health that covers both."""
    newest = max(one, other, key=lambda label: (label.attempt, label.restart))
    until = None if one.until is None or other.until is None else max(one.until, other.until)
    before = None if one.before is None or other.before is None else max(one.before, other.before)
    worst = one if one.health is Health.QUARANTINED else other
    return replace(
        worst,
        step=min(one.step, other.step),
        until=until,
        before=before,
        attempt=newest.attempt,
        restart=newest.restart,
    )
