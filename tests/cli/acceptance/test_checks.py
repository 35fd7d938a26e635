"""Test each check of an acceptance with observations that confirm and that refute its assumption."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli.acceptance.checks import CHECKS, CheckVerdict, evaluate_all, find_trials
from cli.acceptance.measure import measure
from cli.acceptance.result import make_acceptance_report, make_result, make_stored_copy
from cli.acceptance.seen import (
    Observation,
    Observations,
    ObservedAccount,
    ObservedJob,
    ReceivedEvent,
    ReceivedNotice,
    StatusTransition,
    UploadedCheckpoint,
)
from cli.acceptance.session import LEAST_PATIENCE_S, limit_patience
from cli.acceptance.trials import SAVE_EVERY, STEP_S, TRIALS, AcceptanceTrial, fit_trials
from report_page.page import render_page
from rerail.model.measurements import parse_measurements
from rerail.model.policy import Policy
from tests.house.sources import ROOT

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
ID = "rerail-acceptance-20261123120000"
KEY = "arn:aws:kms:eu-west-1:1:key/abc"


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def a_job(trial: AcceptanceTrial, number: int, status: str) -> ObservedJob:
    """Return a job that took 100 s to start, or 20 s in a warm pool."""
    is_warm = number == 2 and bool(trial.scenario.pool)
    created, start = NOON + seconds(1000 * number), 20 if is_warm else 100
    run = f"{ID}-{trial.name}"
    return ObservedJob(
        name=run if number == 1 else f"{run}-a002",
        status=status,
        created_at=created,
        transitions=(
            StatusTransition("Starting", created, created + seconds(start)),
            StatusTransition("Training", created + seconds(start), created + seconds(400)),
            StatusTransition(status, created + seconds(400)),
        ),
        ended_at=created + seconds(400),
        failure_reason="AlgorithmError: RuntimeError, exit code: 1" if status == "Failed" else "",
        tags={"rerail:policy": "default"} | ({"rerail:run": run} if number == 2 else {}),
        is_spot=trial.scenario.spot,
        stop_called_at=created + seconds(370) if status == "Stopped" else None,
        pool_of=run if is_warm else "",
    )


def a_trial(trial: AcceptanceTrial) -> Observation:
    """Return a run that ended as its scenario says, with two jobs where it takes two."""
    scenario, run = trial.scenario, f"{ID}-{trial.name}"
    first = "Stopped" if trial.is_stopped or trial.fault in ("nan", "stall") else "Failed"
    jobs = [a_job(trial, 1, first if trial.jobs == 2 or trial.is_stopped else "Completed")]
    jobs += [a_job(trial, 2, "Completed")] if trial.jobs == 2 else []
    resumed = scenario.fault_step - 30
    attempts = [
        {
            "job": job.name,
            "cause": cause,
            "resumed_from_step": None if index == 0 else resumed,
            "self_repairs": 0,
            "pool": (scenario.pool or None) if index == 0 else "InUse",
            "pool_reused_by": jobs[-1].name,
            "start_s": (job.transitions[1].started_at - job.created_at).total_seconds(),
            "first_step": 1 if index == 0 else resumed + 1,
        }
        for index, (job, cause) in enumerate(zip(jobs, (*scenario.causes, None), strict=False))
    ]
    last = 64 if trial.is_stopped else scenario.steps
    saves = [
        {"folder": "step-30", "step": resumed, "attempt": 1, "reason": "periodic", "health": "clean", "whole": True}
    ]
    saves[0] |= {"aside": False}
    if scenario.rolls_back:
        saves.append(saves[0] | {"folder": "step-60", "step": scenario.fault_step, "health": "suspect", "aside": True})
    if scenario.saves:
        saves.insert(0, saves[0] | {"step": last, "reason": scenario.saves})
    facts: dict[str, Any] = {
        "state": scenario.ends.value,
        "clock_scale": 1,
        "attempts": attempts,
        "final_step": last,
        "findings": list(scenario.findings),
        "handshake": {"stopped_because": "the emergency checkpoint of step 70 is committed"} if scenario.asks else None,
        "incidents": [{"onset_step": scenario.fault_step, "resumed_from_step": resumed, "lost_steps": 30}],
        "checkpoints": saves,
        "set_aside": [f"x/step_{scenario.fault_step}/state.pt"],
        "restarts": [{"step_after_s": 3.0}] if scenario.in_place else [],
    }
    uploads = (UploadedCheckpoint(last, scenario.saves, NOON, NOON + seconds(20), NOON + seconds(21)),)
    return Observation(
        trial.name,
        run,
        scenario,
        facts,
        tuple(jobs),
        ("attempt 1 failed",),
        1,
        uploads if trial.agent else (),
        {"step": (70.0,), "loss": (75.0,)},
    )


def sound() -> Observations:
    """Return observations that confirm everything."""
    trials = {trial.name: a_trial(trial) for trial in TRIALS}
    jobs = [job for trial in trials.values() for job in trial.jobs]
    ends = [job.ended_at or NOON for job in jobs]
    account = ObservedAccount(
        events=tuple(
            ReceivedEvent(job.name, job.status, job.status, at, at + seconds(2))
            for job, at in zip(jobs, ends, strict=True)
        ),
        notices=tuple(ReceivedNotice(trial.run, "relaunched", NOON, NOON + seconds(1)) for trial in trials.values()),
        mailbox_encryption="AES256",
        queue_key=KEY,
        data_key="abc",
    )
    return Observations(trials, account)


Change = Callable[[Observations], Observations]


def with_trial(name: str, change: Callable[[Observation], Observation]) -> Change:
    return lambda seen: replace(seen, trials={**seen.trials, name: change(seen.trials[name])})


def with_facts(name: str, **facts: Any) -> Change:
    return with_trial(name, lambda trial: replace(trial, facts={**trial.facts, **facts}))


def with_job(name: str, number: int, **fields: Any) -> Change:
    def change(trial: Observation) -> Observation:
        jobs = list(trial.jobs)
        jobs[number] = replace(jobs[number], **fields)
        return replace(trial, jobs=tuple(jobs))

    return with_trial(name, change)


def with_account(**fields: Any) -> Change:
    return lambda seen: replace(seen, account=replace(seen.account, **fields))


def with_more_attempts(name: str) -> Change:
    return with_trial(name, lambda t: replace(t, facts={**t.facts, "attempts": [*t.facts["attempts"]] * 2}))


# An observation for each check that refutes it, and a part of what is then said.
REFUTING: dict[str, list[tuple[Change, str]]] = {
    "crash": [
        (with_facts("crash", state="held"), "it must end completed"),
        (with_trial("crash", lambda trial: replace(trial, facts={})), "Rerail has no record"),
    ],
    "nan": [
        (with_facts("nan", handshake=None), "the agent was not asked for a checkpoint"),
        (with_facts("nan", checkpoints=[]), "no suspect checkpoint was quarantined"),
        (
            with_facts("nan", incidents=[{"onset_step": 60, "resumed_from_step": 60, "lost_steps": 0}]),
            "which is not older than the onset",
        ),
    ],
    "hang": [(with_facts("hang", findings=[]), "the detectors did not say stall")],
    "in-place": [
        (with_facts("in-place", restarts=[]), "there must be one that came to its first step"),
        (with_more_attempts("in-place"), "there must be 1"),
    ],
    "human-stop": [
        (with_facts("stop", state="completed"), "it must end stopped"),
        (
            with_trial("stop", lambda trial: replace(trial, jobs=(*trial.jobs, *trial.jobs))),
            "was launched although a person had stopped the run",
        ),
    ],
    "sigterm": [
        (with_trial("stop", lambda trial: replace(trial, uploads=())), "no checkpoint with the reason sigterm"),
        (with_facts("stop", final_step=90), "the script trained until step 90"),
    ],
    "own-layout": [(with_facts("own-layout", set_aside=[]), "nothing was moved out of the script's way")],
    "spot": [(with_job("spot", 1, is_spot=False), "is not a spot job")],
    "warm-pool": [
        (
            with_trial(
                "warm-pool",
                lambda trial: replace(
                    trial,
                    facts={
                        **trial.facts,
                        "attempts": [{**attempt, "pool": "Terminated"} for attempt in trial.facts["attempts"]],
                    },
                ),
            ),
            "is Terminated, it must be Reused",
        )
    ],
    "events": [
        (lambda seen: with_account(events=seen.account.events[1:])(seen), "no event said that"),
        (
            lambda seen: with_account(
                events=tuple(replace(item, arrived_at=item.arrived_at + seconds(100)) for item in seen.account.events)
            )(seen),
            "an event took 102 s",
        ),
    ],
    "states": [
        (
            with_job("crash", 0, transitions=(StatusTransition("Warming", NOON), StatusTransition("Failed", NOON))),
            "had the unknown status Warming",
        ),
        (with_job("crash", 1, transitions=()), "was never seen in Training"),
        (with_job("crash", 0, status="Stopped"), "its last secondary status is Failed"),
    ],
    "failure-text": [(with_job("crash", 0, failure_reason="ClientError: no"), "failed with: ClientError: no")],
    "metrics": [
        (with_trial("crash", lambda trial: replace(trial, metric_ages={})), "was visible in CloudWatch"),
        (
            lambda seen: replace(
                seen,
                trials={name: replace(trial, metric_ages={"step": (900.0,)}) for name, trial in seen.trials.items()},
            ),
            "900 s old",
        ),
    ],
    "tags": [
        (with_job("crash", 1, tags={"rerail:policy": "default"}), "has the tag rerail:run=None"),
        (with_job("crash", 1, tags={"rerail:run": f"{ID}-crash"}), "lacks the tag rerail:policy"),
    ],
    "permissions": [(with_account(denials=("AccessDenied: not authorized to perform: sagemaker:AddTags",)), "AddTags")],
    "encryption": [
        (with_account(mailbox_encryption="none"), "must be encrypted with AES256: none"),
        (with_account(mailbox_encryption=""), "nothing that a job wrote is there"),
        (with_account(queue_key="arn:aws:kms:eu-west-1:1:key/other"), "key/other, not abc"),
        (
            lambda seen: replace(seen, trials={name: replace(t, reports=0) for name, t in seen.trials.items()}),
            "no report of an agent came through",
        ),
    ],
    "notices": [(with_account(notices=()), f"no notice about {ID}-crash")],
    "uploads": [
        (
            with_trial(
                "crash",
                lambda trial: replace(trial, uploads=(replace(trial.uploads[0], manifest_at=NOON + seconds(900)),)),
            ),
            "took 900 s to reach S3",
        )
    ],
}


def test_sound_observations_confirm_every_assumption():
    results = evaluate_all(sound())
    assert [(found.id, found.seen) for found in results if found.verdict is not CheckVerdict.CONFIRMED] == []


@pytest.mark.parametrize(
    ("id", "change", "said"),
    [(id, change, said) for id, cases in REFUTING.items() for change, said in cases],
    ids=[f"{id}-{number}" for id, cases in REFUTING.items() for number, _ in enumerate(cases)],
)
def test_a_broken_subject_refutes_its_assumption(id: str, change: Change, said: str):
    found = next(found for found in evaluate_all(change(sound())) if found.id == id)
    assert found.verdict is CheckVerdict.REFUTED
    assert said in found.seen


def test_each_check_has_an_observation_that_refutes_it():
    assert REFUTING.keys() == {check.id for check in CHECKS}


def test_without_an_observation_nothing_is_confirmed():
    """Nothing was started, nothing could be read, or another check was chosen: each says why it was not tried."""
    unread = ObservedAccount(unread={"permissions": "the functions' logs cannot be read"})
    results = evaluate_all(Observations({}, unread))
    assert {found.verdict for found in results} == {CheckVerdict.NOT_TRIED}
    assert all(found.seen for found in results)
    refused = Observations({"crash": Observation("crash", not_tried="AccessDenied")}, sound().account)
    assert CheckVerdict.CONFIRMED not in {found.verdict for found in evaluate_all(refused)}
    not_started = with_trial("spot", lambda trial: Observation("spot", not_tried="the quota is 0"))(sound())
    spot = next(found for found in evaluate_all(not_started) if found.id == "spot")
    assert (spot.verdict, spot.seen) == (CheckVerdict.NOT_TRIED, "the quota is 0")
    chosen = [found.id for found in evaluate_all(sound(), ["tags"]) if found.verdict is CheckVerdict.CONFIRMED]
    assert chosen == ["tags"] and find_trials(["tags"]) == ["crash"] and find_trials(["events"]) == ["crash"]


def test_a_job_without_a_machine_refutes_nothing():
    """A spot job that waits, and an image that cannot be pulled, say nothing of Rerail."""
    waiting = with_job("spot", 1, status="InProgress", transitions=(StatusTransition("Pending", NOON),))
    broken = with_job("nan", 0, transitions=(), status="Failed", failure_reason="ClientError: no such image")
    alone = with_trial("nan", lambda trial: replace(trial, jobs=trial.jobs[:1], facts={**trial.facts, "final_step": 0}))
    found = {found.id: found for found in evaluate_all(broken(alone(waiting(sound()))))}
    assert [found[id].verdict for id in ("spot", "nan")] == [CheckVerdict.NOT_TRIED] * 2
    assert "got no machine in time" in found["spot"].seen and "no such image" in found["nan"].seen


def test_a_trial_is_fitted_to_its_policy():
    """A rollback needs steps before its margin; what the policy excludes is not started."""
    names = [trial.name for trial in TRIALS]
    fitted, excluded = fit_trials(names, Policy())
    assert not excluded and [trial.name for trial in fitted] == names
    nan = next(trial for trial in fitted if trial.name == "nan")
    assert nan.scenario.fault_step - Policy().ladder.margin_steps > 2 * SAVE_EVERY
    assert nan.scenario.steps > nan.scenario.fault_step
    far = replace(Policy(), ladder=replace(Policy().ladder, margin_steps=1000))
    far = replace(far, restart=replace(far.restart, in_place=False))
    assert fit_trials(names, far)[1].keys() == {"nan", "own-layout", "in-place"}


@pytest.mark.parametrize("margin", [0, 30, 100, 400])
def test_without_an_agent_a_checkpoint_is_older_than_the_margin_and_a_period(margin):
    """On a clock of any speed; on AWS a step takes no longer for it, and with the periods of a fast clock far less."""
    policy = replace(Policy(), ladder=replace(Policy().ladder, margin_steps=margin))
    (trial,), _ = fit_trials(["own-layout"], policy)
    step_s = {scale: float(trial.make_environment(scale)["ACCEPTANCE_STEP_SECONDS"]) for scale in (1, 30, 60)}
    before = trial.scenario.fault_step - margin - SAVE_EVERY
    assert all(before * seconds > 60 for seconds in step_s.values()) and step_s[1] == STEP_S
    training_s = step_s[60] * (trial.scenario.fault_step + trial.scenario.steps)
    assert limit_patience([trial], 60, 60) == pytest.approx(training_s + LEAST_PATIENCE_S, abs=1)
    hasty = replace(policy, metrics=replace(policy.metrics, period=timedelta(seconds=1)))
    (trial,), _ = fit_trials(["own-layout"], hasty)
    assert 1 < before * float(trial.make_environment(60)["ACCEPTANCE_STEP_SECONDS"]) < before * step_s[60]


def test_a_rollback_that_the_deployment_does_not_allow_is_not_tried():
    refused = "the deployment does not let Rerail move checkpoints of the role x in s3://y/"
    seen = with_trial("own-layout", lambda t: replace(t, facts={"state": "held"}, decisions=(refused,)))(sound())
    found = next(found for found in evaluate_all(seen) if found.id == "own-layout")
    assert found.verdict is CheckVerdict.NOT_TRIED and "quarantineFolders" in found.seen


def test_the_result_is_valid_and_its_measurements_can_be_read():
    """The file, the copy that the deployment keeps, and the page."""
    from jsonschema import Draft202012Validator  # takes seconds of each worker that collects this file

    observed = sound()
    results = evaluate_all(observed)
    made = make_result(
        results,
        measure(observed),
        id=ID,
        region="eu-west-1",
        scale=1.0,
        began=NOON,
        made_at=NOON,
        policy="default",
        image="x",
        interrupted=False,
    )
    Draft202012Validator(json.loads((ROOT / "docs" / "acceptance.schema.json").read_text())).validate(made)
    read = parse_measurements(json.dumps(made))
    assert read == parse_measurements(make_stored_copy(made))
    assert read.seconds == {
        "startup_s": 100.0,
        "warm_startup_s": 20.0,
        "stop_s": 30.0,
        "event_s": 2.0,
        "metric_s": 72.5,
        "upload_s": 20.0,
        "notice_s": 1.0,
    }
    assert made["measurements"]["manifests_before_files"] == made["measurements"]["manifests"] == 7
    page = render_page(make_acceptance_report(made, results, observed))
    assert all(check.id in page for check in CHECKS) and "100 s (median of 13)" in page
