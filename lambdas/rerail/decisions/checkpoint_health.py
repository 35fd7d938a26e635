"""May a save be resumed from? Clean, suspect or quarantined: judged anew whenever something is learnt of it.

The manifest says what was known when it was saved. What is learnt later is kept as labels on the run's record: an
onset makes every later save suspect, a loss that came back makes them clean again, a rollback quarantines what it
rolled back. A save that twice could not be loaded, or whose files do not match its manifest, is quarantined too."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from rerail.detection.onsets import OF_THE_LOSS
from rerail.model.checkpoints import Checkpoint, Health, newest_usable
from rerail.model.finding import Finding, Level
from rerail.model.mailbox import Report, ReportKind
from rerail.model.run import HealthLabel, Run

KEPT_LABELS = 60
# Of each rollback: the attempt and the restart in place that were rolled back, and the step at which the trouble began.
Onsets = list[tuple[tuple[int, int], int]]
WHY_LIMIT = 200
ANY_RESTART = 1_000_000
OVER = (Level.MENDED, Level.ACCEPTED)
ROLLED_BACK = "saved after the loss had gone wrong, by the attempt that was rolled back or one before it"
TROUBLED = "its health is suspect: there was trouble with the loss when it was saved"


def with_health(run: Run, checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """The checkpoints with their health as it is known now; to judge them twice changes nothing."""
    onsets = _onsets(run)
    if not onsets and not run.labels:
        return tuple(checkpoints)
    healths = [_judged(run, each, onsets)[0] for each in checkpoints]
    return tuple(
        each if each.health is health else replace(each, health=health)
        for each, health in zip(checkpoints, healths, strict=True)
    )


def assess_health(run: Run, checkpoint: Checkpoint) -> tuple[Health, str]:
    """The health of a save, and why it is not clean, or why it is clean again; the worst that is known counts."""
    return _judged(run, checkpoint, _onsets(run))


def _judged(run: Run, checkpoint: Checkpoint, onsets: Onsets) -> tuple[Health, str]:
    labels = [label for label in run.labels if _covers(label, checkpoint)]
    if checkpoint.health is Health.QUARANTINED:
        return Health.QUARANTINED, "its health is quarantined"
    if label := _first(labels, Health.QUARANTINED):
        return Health.QUARANTINED, label.why
    if _was_rolled_back(run, checkpoint, onsets):
        return Health.QUARANTINED, ROLLED_BACK
    if label := _first(labels, Health.SUSPECT):
        return Health.SUSPECT, label.why
    if label := _first(labels, Health.CLEAN):
        return Health.CLEAN, label.why
    return checkpoint.health, TROUBLED if checkpoint.health is Health.SUSPECT else ""


def is_resumable(checkpoint: Checkpoint) -> bool:
    """It is whole, and nobody knows better."""
    return checkpoint.is_whole and checkpoint.health is not Health.QUARANTINED


def newest_resumable(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """The newest clean one; where nothing is clean the newest suspect one: it may be sound, and a start from scratch
    loses everything. Never a quarantined one."""
    return newest_usable(checkpoints) or newest_usable(checkpoints, health=Health.SUSPECT)


def with_findings(run: Run, findings: Sequence[Finding]) -> Run:
    """The run after its current attempt's detectors have spoken: of a trouble with the loss, or that one is over."""
    for finding in findings:
        if finding.kind not in OF_THE_LOSS:
            continue
        run = _over(run, finding) if finding.level in OVER else _troubled(run, finding, Health.SUSPECT)
    return run


def with_rollback_labels(run: Run, finding: Finding) -> Run:
    """The run that is being rolled back to before a finding's onset: nobody resumes from what was saved since then."""
    return _troubled(run, finding, Health.QUARANTINED)


def with_operator_rollback(run: Run, step: int, *, why: str, source: str) -> Run:
    """The run that an operator rolls back to a step: nobody resumes from what was saved after it until now."""
    last = next((each for each in reversed(run.attempts) if each.exists), run.attempts[0])
    label = HealthLabel(step + 1, last.number, Health.QUARANTINED, why[:WHY_LIMIT], source, restart=last.restart)
    onset = min(step + 1, last.onset_step) if last.onset_step is not None else step + 1
    attempts = tuple(replace(each, onset_step=onset) if each is last else each for each in run.attempts)
    return _with(replace(run, attempts=attempts), label)


def find_open_onset(run: Run) -> int | None:
    """Where the trouble with the current attempt's loss began, of which nobody has said that it is over."""
    own = (run.current.number, run.current.restart)
    open_ = [each for each in run.labels if each.health is not Health.CLEAN and _is_open(each)]
    return min((each.step for each in open_ if (each.attempt, each.restart) == own), default=None)


def with_sagemaker_restart(run: Run, at: datetime) -> Run:
    """The run whose job SageMaker itself has restarted: it goes on from a clean checkpoint, and what it saves from now
    on is not what it saved in the trouble before."""
    attempt = run.current
    orders = tuple(replace(order, repaired_at=order.repaired_at or at) for order in attempt.orders)
    return replace(
        run,
        attempts=(*run.attempts[:-1], replace(attempt, orders=orders)),
        labels=tuple(
            replace(each, before=at) if _is_open(each) and each.attempt == attempt.number else each
            for each in run.labels
        ),
    )


def with_unrestorable(run: Run, report: Report) -> Run:
    """The run after an agent reported a save that it could not restore; the same report again changes nothing."""
    if report.step is None or any(label.source == report.id for label in run.labels):
        return run
    saver = report.attempt if report.saved_by is None else min(report.saved_by, report.attempt)
    found = HealthLabel(
        step=report.step,
        attempt=saver,
        health=Health.QUARANTINED,
        why=f"its files do not match its manifest: {report.reason}"[:WHY_LIMIT],
        source=report.id,
        until=report.step,
        restart=report.restart if saver == report.attempt else ANY_RESTART,
    )
    if report.told is not ReportKind.DAMAGED:
        known = (found.step, found.until, found.attempt)
        before = [each for each in run.labels if (each.step, each.until, each.attempt) == known]
        twice = f"it could not be loaded, twice: {report.reason}"
        once = f"it could not be loaded: {report.reason}; a second time, and it is quarantined"
        health, why = (Health.QUARANTINED, twice) if before else (Health.SUSPECT, once)
        found = replace(found, health=health, why=why[:WHY_LIMIT])
    return _with(run, found)


def _troubled(run: Run, finding: Finding, health: Health) -> Run:
    """All that the attempt saves from the onset on, and what older ones have saved there."""
    attempt, onset = run.current, finding.onset_step
    if onset is None:
        return run
    why = f"saved after the loss had gone wrong at step {onset} ({finding.kind}: {finding.evidence})"
    label = HealthLabel(onset, attempt.number, health, why[:WHY_LIMIT], finding.kind, restart=attempt.restart)
    known = (each for each in run.labels if _is_open(each) and each.health is health)
    if any(_reaches(each, label) and each.source == label.source for each in known):
        return run
    return _with(run, label)


def _reaches(one: HealthLabel, other: HealthLabel) -> bool:
    return one.step <= other.step and (one.attempt, one.restart) >= (other.attempt, other.restart)


def _over(run: Run, finding: Finding) -> Run:
    """Saves of a trouble that mended are clean again; of one that was accepted, only those that came after it."""
    return replace(run, labels=tuple(each for label in run.labels for each in _closed(run, label, finding)))


def _closed(run: Run, label: HealthLabel, finding: Finding) -> Iterator[HealthLabel]:
    is_over = label.health is not Health.SUSPECT or not _is_open(label) or not _is_carried(run, label)
    if is_over or label.source != finding.kind or (finding.step is not None and finding.step < label.step):
        yield label
    elif finding.step is None:
        return  # nobody can tell until when: what the manifests say is all that is left
    elif finding.level is Level.MENDED:
        why = f"the loss that went wrong at step {label.step} had mended by step {finding.step} ({finding.kind})"
        yield replace(label, health=Health.CLEAN, why=why, until=finding.step)
    else:
        yield replace(label, until=finding.step)


def _is_open(label: HealthLabel) -> bool:
    """What is still to be saved is meant, too."""
    return label.until is None and label.before is None


def _is_carried(run: Run, label: HealthLabel) -> bool:
    """The trouble befell the current attempt, or it has resumed from what was saved in it."""
    own = (label.attempt, label.restart) == (run.current.number, run.current.restart)
    return own or label.step <= (run.current.resumed_from_step or -1)


def _covers(label: HealthLabel, checkpoint: Checkpoint) -> bool:
    upto = label.until is None or checkpoint.step <= label.until
    upto = upto and (label.before is None or checkpoint.saved_at <= label.before)
    saved_by = (checkpoint.attempt, checkpoint.restart)
    return label.step <= checkpoint.step and upto and saved_by <= (label.attempt, label.restart)


def _onsets(run: Run) -> Onsets:
    onsets = [((i.attempt, i.restart), i.onset_step) for i in run.incidents if i.onset_step is not None]
    return onsets + [((a.number, a.restart), a.onset_step) for a in run.attempts if a.onset_step is not None]


def _was_rolled_back(run: Run, checkpoint: Checkpoint, onsets: Onsets) -> bool:
    saved_by = (checkpoint.attempt, checkpoint.restart)
    behind = [then for then, onset in onsets if saved_by <= then and checkpoint.step >= onset]
    if not behind:
        return False
    saver = next((attempt for attempt in run.attempts if attempt.number == checkpoint.attempt), None)
    return not all(
        saver and saver.number == number and saver.counted_anew(restart, checkpoint.saved_at)
        for number, restart in behind
    )


def _first(labels: Sequence[HealthLabel], health: Health) -> HealthLabel | None:
    return next((label for label in labels if label.health is health), None)


def _with(run: Run, label: HealthLabel) -> Run:
    """One more label. Of too many the oldest that clears goes first: without it a save is suspect, which is safe; two
    that accuse become one that says at least as much."""
    labels = [*run.labels, label]
    while len(labels) > KEPT_LABELS:
        clearing = next((each for each in labels if each.health is Health.CLEAN), None)
        labels = [each for each in labels if each is not clearing] if clearing else [_both(*labels[:2]), *labels[2:]]
    return replace(run, labels=tuple(labels))


def _both(one: HealthLabel, other: HealthLabel) -> HealthLabel:
    newest = max(one, other, key=lambda each: (each.attempt, each.restart))
    ends = None if one.until is None or other.until is None else max(one.until, other.until)
    before = None if one.before is None or other.before is None else max(one.before, other.before)
    worst = one if one.health is Health.QUARANTINED else other
    return replace(
        worst, step=min(one.step, other.step), until=ends, before=before, attempt=newest.attempt, restart=newest.restart
    )
