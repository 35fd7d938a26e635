"""The labels that are put on checkpoints, and which checkpoints each of them covers, field by field."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from rerail.decisions.checkpoint_health import (
    ALL_RESTARTS,
    MAX_LABELS,
    MAX_WHY_CHARS,
    ROLLED_BACK,
    SUSPECT_MANIFEST,
    assess_health,
    find_open_onset,
    is_resumable,
    with_damage,
    with_findings,
    with_health,
    with_onset_estimated,
    with_operator_rollback,
    with_rollback_labels,
    with_sagemaker_restart,
    with_unrestorable,
)
from rerail.model.causes import Cause
from rerail.model.checkpoints import Checkpoint, Health
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import Report, ReportKind
from rerail.model.run import Attempt, HealthLabel, Incident, InPlaceRestart, JobStatus, Run, RunState
from tests.fakes import BUCKET, MIDNIGHT

CLEAN, SUSPECT, QUARANTINED = Health.CLEAN, Health.SUSPECT, Health.QUARANTINED
HOUR = timedelta(hours=1)


def save(step: int, attempt: int = 1, *, at: datetime = MIDNIGHT, **facts: Any) -> Checkpoint:
    return Checkpoint(f"{BUCKET}step-{step:09d}/", step, attempt, at, **facts)


def order(number: int, *, restarted: bool = True, repairs: int = 0, repaired_at: datetime | None = None):
    at = MIDNIGHT if restarted else None
    return InPlaceRestart(
        number, f"r{number}", "x", MIDNIGHT, MIDNIGHT, repairs=repairs, restarted_at=at, repaired_at=repaired_at
    )


def make_run(*attempts: Attempt, labels: tuple[HealthLabel, ...] = (), incidents: tuple[Incident, ...] = ()) -> Run:
    """Return a run that was created at midnight, of one attempt unless others are given."""
    known = attempts or (Attempt(1, "gpt", JobStatus.IN_PROGRESS, created_at=MIDNIGHT),)
    return Run("gpt", "default", RunState.WATCHING, MIDNIGHT, known, BUCKET, labels=labels, incidents=incidents)


def find(
    level: Level = Level.WARN, *, onset: int | None = 450, step: int | None = 470, kind: Kind = Kind.LOSS_SPIKE
) -> Finding:
    return Finding(kind, level, step, onset, "9 for 3 rows")


LABEL = HealthLabel(450, 2, SUSPECT, "why", Kind.LOSS_SPIKE, restart=1)


@pytest.mark.parametrize(
    ("label", "checkpoint", "covered"),
    [
        (LABEL, save(449, 2), False),
        (LABEL, save(450, 2), True),
        (LABEL, save(450, 1, restart=5), True),
        (LABEL, save(450, 2, restart=1), True),
        (LABEL, save(450, 2, restart=2), False),
        (LABEL, save(450, 3), False),
        (replace(LABEL, until=460), save(460, 2), True),
        (replace(LABEL, until=460), save(461, 2), False),
        (replace(LABEL, before=MIDNIGHT), save(450, 2), True),
        (replace(LABEL, before=MIDNIGHT), save(450, 2, at=MIDNIGHT + HOUR), False),
        (replace(LABEL, until=460, before=MIDNIGHT), save(461, 2), False),
        (replace(LABEL, until=460, before=MIDNIGHT), save(450, 2, at=MIDNIGHT + HOUR), False),
    ],
)
def test_a_label_covers_steps_attempts_restarts_and_times_up_to_its_own(
    label: HealthLabel, checkpoint: Checkpoint, covered: bool
):
    run = make_run(labels=(label,))
    assert assess_health(run, checkpoint) == ((SUSPECT, "why") if covered else (CLEAN, ""))
    assert [c.health for c in with_health(run, [checkpoint])] == [SUSPECT if covered else CLEAN]


def test_the_worst_that_is_known_counts_with_its_reason():
    """Quarantined by the manifest or a label, rolled back, suspect, cleared by a label, and the manifest's own."""
    clean, suspect = replace(LABEL, health=CLEAN, why="over"), replace(LABEL, why="odd")
    quarantined = replace(LABEL, health=QUARANTINED, why="bad")
    rolled_back = Attempt(2, "gpt-a002", JobStatus.STOPPED, onset_step=450)
    step = save(500)
    assert assess_health(make_run(labels=(clean,)), save(500, health=QUARANTINED)) == (
        QUARANTINED,
        "its health is quarantined",
    )
    assert assess_health(make_run(rolled_back, labels=(clean, suspect, quarantined)), step) == (QUARANTINED, "bad")
    assert assess_health(make_run(rolled_back, labels=(clean, suspect)), step) == (QUARANTINED, ROLLED_BACK)
    assert assess_health(make_run(labels=(clean, suspect)), step) == (SUSPECT, "odd")
    assert assess_health(make_run(labels=(clean,)), save(500, health=SUSPECT)) == (CLEAN, "over")
    assert assess_health(make_run(), save(500, health=SUSPECT)) == (SUSPECT, SUSPECT_MANIFEST)
    assert assess_health(make_run(labels=(suspect, replace(suspect, why="later"))), step) == (SUSPECT, "odd")


@pytest.mark.parametrize(
    ("minutes", "onset"),
    [({10: 0, 20: 50, 30: 61}, 21), ({10: 0, 20: 51, 30: 61}, 11), ({10: 51, 20: 61}, 11), ({10: 61}, 0), ({}, None)],
    ids=["at the margin", "within it", "nothing older", "all later", "none"],
)
def test_an_onset_without_a_step_is_dated_by_the_times_of_the_checkpoints(minutes, onset):
    """It began an hour after midnight. A replay's checkpoint with a lower step counts by its time too."""
    saves = [save(step, at=MIDNIGHT + timedelta(minutes=minute)) for step, minute in minutes.items()]
    finding = replace(find(onset=None), onset_at=MIDNIGHT + HOUR)
    assert with_onset_estimated(make_run(), finding, saves).onset_step == onset
    if onset:
        replay = save(5, 2, at=MIDNIGHT + 2 * HOUR)
        assert with_onset_estimated(make_run(), finding, [*saves, replay]).onset_step == 5
    assert with_onset_estimated(make_run(), find(), saves) == find()


def test_only_whole_checkpoints_that_are_not_quarantined_can_be_resumed_from():
    assert is_resumable(save(1)) and is_resumable(save(1, health=SUSPECT))
    assert not is_resumable(save(1, health=QUARANTINED))
    assert not is_resumable(save(1, missing=("x",)))


def test_a_checkpoint_whose_health_is_unchanged_is_the_same_object():
    first, second = save(400), save(500)
    assert with_health(make_run(), [first, second]) == (first, second)
    (kept, changed) = with_health(make_run(labels=(replace(LABEL, attempt=1),)), [first, second])
    assert kept is first
    assert changed == replace(second, health=SUSPECT)


# What a finding adds


def test_a_finding_of_the_loss_labels_all_from_its_onset_on():
    run = make_run(Attempt(3, "gpt-a003", in_place_restarts=(order(1), order(2))))
    why = "saved after the loss had gone wrong at step 450 (loss_spike: 9 for 3 rows)"
    label = HealthLabel(450, 3, SUSPECT, why, Kind.LOSS_SPIKE, restart=2)
    assert with_findings(run, [find()]).labels == (label,)
    assert with_rollback_labels(run, find()).labels == (replace(label, health=QUARANTINED),)
    assert with_findings(run, [find(kind=Kind.STALL), find(onset=None)]) == run
    assert with_rollback_labels(run, find(onset=None)) == run
    long = with_findings(run, [replace(find(), evidence="x" * 900)])
    assert len(long.labels[0].why) == MAX_WHY_CHARS


@pytest.mark.parametrize(
    ("known", "is_new"),
    [
        (HealthLabel(450, 1, SUSPECT, "", Kind.LOSS_SPIKE), False),
        (HealthLabel(449, 1, SUSPECT, "", Kind.LOSS_SPIKE), False),
        (HealthLabel(449, 2, SUSPECT, "", Kind.LOSS_SPIKE), False),
        (HealthLabel(449, 1, SUSPECT, "", Kind.LOSS_SPIKE, restart=1), False),
        (HealthLabel(451, 1, SUSPECT, "", Kind.LOSS_SPIKE), True),
        (HealthLabel(450, 0, SUSPECT, "", Kind.LOSS_SPIKE), True),
        (HealthLabel(450, 1, QUARANTINED, "", Kind.LOSS_SPIKE), True),
        (HealthLabel(450, 1, SUSPECT, "", Kind.DIVERGENCE), True),
        (HealthLabel(450, 1, SUSPECT, "", Kind.LOSS_SPIKE, until=460), True),
        (HealthLabel(450, 1, SUSPECT, "", Kind.LOSS_SPIKE, before=MIDNIGHT), True),
    ],
)
def test_a_finding_without_news_adds_no_label(known: HealthLabel, is_new: bool):
    """An open label of the same kind and health that covers as much makes it superfluous."""
    assert len(with_findings(make_run(labels=(known,)), [find()]).labels) == 1 + is_new


def test_of_more_labels_than_are_kept_the_oldest_clean_ones_go_first():
    labels = [HealthLabel(n, 1, SUSPECT, str(n), str(n), until=n) for n in range(MAX_LABELS)]
    clean = replace(labels[5], health=CLEAN)
    run = with_findings(make_run(labels=(*labels[:5], clean, *labels[6:])), [find()])
    assert [label.step for label in run.labels] == [n for n in range(MAX_LABELS) if n != 5] + [450]
    assert len(with_findings(make_run(labels=tuple(labels[:-1])), [find()]).labels) == MAX_LABELS


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [
        ({"until": 10}, {"until": 20}, {"until": 20}),
        ({"until": None}, {"until": 20}, {"until": None}),
        ({"until": 10}, {"until": None}, {"until": None}),
        ({"before": MIDNIGHT}, {"before": MIDNIGHT + HOUR}, {"before": MIDNIGHT + HOUR}),
        ({"before": MIDNIGHT}, {"before": None}, {"before": None}),
        ({"before": None}, {"before": MIDNIGHT}, {"before": None}),
        ({"attempt": 2, "restart": 0}, {"attempt": 1, "restart": 3}, {"attempt": 2, "restart": 0}),
        ({"attempt": 2, "restart": 1}, {"attempt": 2, "restart": 3}, {"attempt": 2, "restart": 3}),
        ({"health": QUARANTINED, "why": "bad"}, {"why": "odd"}, {"health": QUARANTINED, "why": "bad"}),
        ({"why": "odd"}, {"health": QUARANTINED, "why": "bad"}, {"health": QUARANTINED, "why": "bad"}),
        ({"step": 7}, {"step": 3}, {"step": 3}),
        ({"step": 3}, {"step": 7}, {"step": 3}),
    ],
)
def test_two_labels_are_merged_into_one_that_covers_as_much(one: dict, other: dict, merged: dict):
    """Only when all others are needed too: none of them is clean."""
    usual = HealthLabel(5, 1, SUSPECT, "", "x", until=9, before=MIDNIGHT)
    rest = tuple(HealthLabel(1000 + n, 1, SUSPECT, "", str(n)) for n in range(MAX_LABELS - 2))
    run = with_findings(make_run(labels=(replace(usual, **one), replace(usual, **other), *rest)), [find()])
    assert len(run.labels) == MAX_LABELS
    assert {name: getattr(run.labels[0], name) for name in merged} == merged
    assert run.labels[1:-1] == rest


# What a finding that is over takes back


@pytest.mark.parametrize(
    ("label", "finding", "expected"),
    [
        ({}, {"step": 460}, {"until": 460, "health": CLEAN}),
        ({}, {"step": 450}, {"until": 450, "health": CLEAN}),
        ({}, {"step": 449}, {}),
        ({}, {"step": 460, "level": Level.ACCEPTED}, {"until": 460}),
        ({}, {"step": 460, "kind": Kind.DIVERGENCE}, {}),
        ({"health": QUARANTINED}, {"step": 460}, {}),
        ({"until": 455}, {"step": 460}, {}),
        ({"before": MIDNIGHT}, {"step": 460}, {}),
        ({"attempt": 2}, {"step": 460}, {}),
        ({"restart": 0}, {"step": 460}, {}),
        ({"attempt": 2, "step": 100}, {"step": 460}, {"until": 460, "health": CLEAN}),
        ({"attempt": 2, "step": 101}, {"step": 460}, {}),
    ],
)
def test_trouble_that_is_over_closes_the_labels_of_its_own_attempt(label: dict, finding: dict, expected: dict):
    """Or of the state from which it has resumed, which was step 100."""
    before = replace(HealthLabel(450, 3, SUSPECT, "why", Kind.LOSS_SPIKE, restart=1), **label)
    run = make_run(Attempt(3, "gpt-a003", resumed_from_step=100, in_place_restarts=(order(1),)), labels=(before,))
    (after,) = with_findings(run, [find(**{"level": Level.RECOVERED} | finding)]).labels
    text = f"the loss that went wrong at step {before.step} had recovered by step 460 (loss_spike)"
    if expected.get("health") is CLEAN and finding["step"] == 460:
        expected = expected | {"why": text}
    assert replace(after, why=expected.get("why", before.why)) == replace(before, **expected)
    if "why" in expected:
        assert after.why == text


def test_trouble_that_ended_at_an_unknown_step_leaves_the_manifests_own_health():
    run = make_run(labels=(replace(LABEL, attempt=1, restart=0),))
    assert with_findings(run, [find(Level.RECOVERED, step=None)]).labels == ()
    assert with_findings(run, [find(Level.ACCEPTED, step=None)]).labels == ()


def test_a_run_that_began_at_the_start_has_resumed_from_no_trouble():
    """Step 0 is no checkpoint that it has resumed from."""
    label = HealthLabel(0, 1, SUSPECT, "why", Kind.LOSS_SPIKE)
    run = make_run(Attempt(2, "gpt-a002"), labels=(label,))
    assert with_findings(run, [find(Level.RECOVERED, step=460)]).labels == (label,)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([{}], 450),
        ([{}, {"step": 440}, {"step": 460}], 440),
        ([{"health": QUARANTINED}], 450),
        ([{"health": CLEAN}], None),
        ([{"until": 500}], None),
        ([{"before": MIDNIGHT}], None),
        ([{"attempt": 1}], None),
        ([{"restart": 0}], None),
        ([], None),
    ],
)
def test_the_open_onset_is_the_first_step_of_the_current_processes_trouble(labels: list[dict], expected: int | None):
    run = make_run(
        Attempt(2, "gpt-a002", in_place_restarts=(order(1),)), labels=tuple(replace(LABEL, **facts) for facts in labels)
    )
    assert find_open_onset(run) == expected


# Rollbacks


def test_an_operators_rollback_quarantines_all_after_the_step():
    """It covers the newest existing job and earlier ones; an earlier onset is kept, without its time."""
    first = Attempt(1, "gpt", JobStatus.FAILED, created_at=MIDNIGHT)
    second = Attempt(
        2, "gpt-a002", JobStatus.IN_PROGRESS, created_at=MIDNIGHT, in_place_restarts=(order(1),), onset_at=MIDNIGHT
    )
    launching = Attempt(3, "gpt-a003")
    run = with_operator_rollback(make_run(first, second, launching), 400, why="w" * 900, source="c1")
    assert run.labels == (HealthLabel(401, 2, QUARANTINED, "w" * MAX_WHY_CHARS, "c1", restart=1),)
    assert run.attempts == (first, replace(second, onset_step=401, onset_at=None), launching)
    for onset, expected in ((300, 300), (401, 401), (500, 401)):
        again = make_run(first, replace(second, onset_step=onset), launching)
        assert with_operator_rollback(again, 400, why="", source="c1").attempts[1].onset_step == expected
    only = make_run(Attempt(1, "gpt"))
    assert with_operator_rollback(only, 400, why="", source="c1").attempts[0].onset_step == 401


def make_incident(*, attempt: int = 1, restart: int = 0, onset: int | None = 450) -> Incident:
    return Incident(
        1, "diverged", attempt, Cause.DIVERGED, "r", "e", MIDNIGHT, MIDNIGHT, onset_step=onset, restart=restart
    )


@pytest.mark.parametrize(
    ("incident", "checkpoint", "health"),
    [
        (make_incident(), save(450), QUARANTINED),
        (make_incident(), save(449), CLEAN),
        (make_incident(onset=None), save(450), CLEAN),
        (make_incident(), save(450, 2), CLEAN),
        (make_incident(), save(450, 1, restart=1), CLEAN),
        (make_incident(restart=1), save(450, 1, restart=1), QUARANTINED),
        (make_incident(attempt=2), save(450, 1, restart=7), QUARANTINED),
        (make_incident(), save(450, 0), QUARANTINED),
    ],
)
def test_an_incident_with_an_onset_quarantines_what_its_processes_saved(
    incident: Incident, checkpoint: Checkpoint, health: Health
):
    assert assess_health(make_run(incidents=(incident,)), checkpoint)[0] is health
    assert [c.health for c in with_health(make_run(incidents=(incident,)), [checkpoint])] == [health]


def test_a_container_that_sagemaker_restarted_saves_under_the_old_numbers():
    """It has resumed from a clean checkpoint: what it saves later counts, unless a rollback of its own covers it."""
    repaired = order(1, repairs=0, repaired_at=MIDNIGHT)
    attempt = Attempt(1, "gpt", JobStatus.IN_PROGRESS, created_at=MIDNIGHT, in_place_restarts=(repaired,))
    run = make_run(attempt, incidents=(make_incident(),))
    assert assess_health(run, save(500))[0] is QUARANTINED
    assert assess_health(run, save(500, at=MIDNIGHT + HOUR))[0] is CLEAN
    both = make_run(attempt, Attempt(2, "gpt-a002"), incidents=(make_incident(), make_incident(attempt=2, onset=400)))
    assert assess_health(both, save(500, at=MIDNIGHT + HOUR))[0] is QUARANTINED
    later = make_run(attempt, Attempt(2, "gpt-a002"), incidents=(make_incident(attempt=2, onset=400),))
    assert assess_health(later, save(500, at=MIDNIGHT + HOUR))[0] is QUARANTINED


def test_a_restart_by_sagemaker_ends_the_open_labels_of_its_attempt():
    at = MIDNIGHT + HOUR
    old, new = order(1, repaired_at=MIDNIGHT), order(2)
    labels = (
        replace(LABEL, attempt=2),
        replace(LABEL, attempt=1),
        replace(LABEL, attempt=2, until=460),
        replace(LABEL, attempt=2, before=MIDNIGHT),
    )
    first = Attempt(1, "gpt", in_place_restarts=(order(1),))
    run = with_sagemaker_restart(make_run(first, Attempt(2, "gpt-2", in_place_restarts=(old, new)), labels=labels), at)
    assert run.labels == (replace(labels[0], before=at), *labels[1:])
    assert run.attempts[0] == first
    assert run.current.in_place_restarts == (old, replace(new, repaired_at=at))


# What could not be loaded


def test_the_checkpoint_that_an_attempt_could_not_load_is_quarantined():
    run, step = with_damage(
        make_run(Attempt(2, "gpt-a002", resumed_from_step=400)), [save(400), save(500)], why="w" * 900, at=MIDNIGHT
    )
    why = f"it could not be loaded: {'w' * 900}"[:MAX_WHY_CHARS]
    assert step == 400
    assert run.labels == (
        HealthLabel(
            400, 2, QUARANTINED, why, Cause.DAMAGED_CHECKPOINT, until=400, restart=ALL_RESTARTS, before=MIDNIGHT
        ),
    )


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        ({"training_started_at": MIDNIGHT + HOUR, "created_at": MIDNIGHT - HOUR}, 500),
        ({"training_started_at": MIDNIGHT}, 400),
        ({"created_at": MIDNIGHT}, 400),
        ({}, 400),
        ({"last_step": 400}, 400),
        ({"resumed_from_step": 0}, 0),
        ({"last_step": 401}, None),
        ({"training_started_at": MIDNIGHT - HOUR}, None),
    ],
)
def test_a_script_that_resumes_by_itself_took_the_newest_at_its_start(facts: dict, step: int | None):
    """Only complete checkpoints that are not quarantined count; an attempt that trained further had loaded its own."""
    saves = [
        save(300),
        save(400),
        save(450, missing=("x",)),
        save(470, health=QUARANTINED),
        save(500, at=MIDNIGHT + HOUR),
    ]
    run, found = with_damage(make_run(Attempt(1, "gpt", **facts)), saves, why="torn", at=MIDNIGHT)
    assert found == step
    assert [label.step for label in run.labels] == ([] if step is None else [step])


def report(kind: ReportKind = ReportKind.UNLOADED, **facts: Any) -> Report:
    usual: dict[str, Any] = {"id": "r1", "step": 400, "saved_by": 1, "reason": "bad magic", "restart": 3}
    return Report(run="gpt", attempt=2, job="gpt-a002", kind=kind, at=MIDNIGHT, **usual | facts)


def test_a_checkpoint_whose_files_do_not_match_is_quarantined_for_all_that_its_saver_did():
    run = make_run(Attempt(2, "gpt-a002"))
    label = HealthLabel(
        step=400,
        attempt=1,
        health=QUARANTINED,
        why="its files do not match its manifest: bad magic",
        source="r1",
        until=400,
        restart=ALL_RESTARTS,
    )
    damaged = ReportKind.DAMAGED
    assert with_unrestorable(run, report(damaged)).labels == (label,)
    assert with_unrestorable(run, report(damaged, saved_by=2)).labels == (replace(label, attempt=2, restart=3),)
    assert with_unrestorable(run, report(damaged, saved_by=None)).labels == (replace(label, attempt=2, restart=3),)
    assert with_unrestorable(run, report(damaged, saved_by=9)).labels == (replace(label, attempt=2, restart=3),)
    assert with_unrestorable(run, report(damaged, step=None)) == run
    once = with_unrestorable(run, report(damaged))
    assert with_unrestorable(once, report(damaged, reason="again")) == once
    assert len(with_unrestorable(run, report(damaged, reason="x" * 900)).labels[0].why) == MAX_WHY_CHARS


@pytest.mark.parametrize(
    ("earlier", "health", "why"),
    [
        ({}, QUARANTINED, "it could not be loaded, twice: bad magic"),
        ({"step": 399}, SUSPECT, "it could not be loaded: bad magic; a second time, and it is quarantined"),
        ({"until": 401}, SUSPECT, "it could not be loaded: bad magic; a second time, and it is quarantined"),
        ({"attempt": 2}, SUSPECT, "it could not be loaded: bad magic; a second time, and it is quarantined"),
    ],
)
def test_a_second_failure_to_load_the_same_checkpoint_quarantines_it(earlier: dict, health: Health, why: str):
    label = replace(HealthLabel(400, 1, SUSPECT, "once", "r0", until=400, restart=ALL_RESTARTS), **earlier)
    run = with_unrestorable(make_run(Attempt(2, "gpt-a002"), labels=(label,)), report())
    assert (run.labels[1].health, run.labels[1].why) == (health, why)
    assert len(with_unrestorable(run, report(id="r2", reason="x" * 900)).labels[2].why) == MAX_WHY_CHARS
