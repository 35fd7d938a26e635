"""The rules from failure to remedy: what each says, in which order, and how long a retry waits."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.decisions import remedies
from rerail.decisions.remedies import (
    RULES,
    RUNBOOK_BY_CAUSE,
    Failure,
    Hold,
    Relaunch,
    choose_capacity_verdict,
    choose_remedy,
    draw_delay,
)
from rerail.diagnosis.classify import diagnose
from rerail.model.actions import Machines
from rerail.model.causes import Cause
from rerail.model.diagnosis import FEW_STEPS, Diagnosis
from rerail.model.formatting import format_duration
from rerail.model.policy import Backoff, Capacity, Limits, Policy, Retries
from rerail.model.run import Attempt, JobStatus, Ledger, Run, RunState
from rerail.model.runbooks import Runbook
from tests.core.strategies import durations, policies

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)

CONTINUE = "`rerail submit SCRIPT --continue gpt`"


def a_failure(cause: Cause, *, step: int | None = 110, resume: int | None = 100, print_: str = "f") -> Failure:
    return Failure(Diagnosis(cause, "evidence", "rule", print_), step, resume, NOON)


def a_run(*earlier: Attempt, ledger: Ledger | None = None) -> Run:
    attempts = (*earlier, Attempt(len(earlier) + 1, f"gpt-a{len(earlier) + 1:03d}", JobStatus.FAILED))
    return Run("gpt", "default", RunState.WATCHING, NOON, attempts, ledger=ledger or Ledger())


def earlier(cause: Cause, *, number: int = 1, step: int | None = 110, print_: str = "f") -> Attempt:
    return Attempt(number, f"job-{number}", JobStatus.FAILED, cause=cause, last_step=step, fingerprint=print_)


def charged(cause: Cause, count: int, **facts) -> Run:
    return a_run(ledger=Ledger(charges={cause: count}, **facts))


def test_the_rules_are_asked_in_this_order():
    """Order is policy. What would fail again is held before any budget is asked; the last rule always answers."""
    assert [rule.__name__ for rule in RULES] == [
        "same_error_at_the_same_step",
        "attempts_spent",
        "restart_storm",
        "no_progress",
        "wait_for_capacity",
        "split_the_batch",
        "move_to_more_memory",
        "cause_budget_spent",
        "no_sound_checkpoint",
        "resume_from_the_one_before",
        "leave_the_bad_node",
        "resume",
    ]


def test_the_first_rule_that_answers_wins():
    """Everything at once: the same error at the same step is said first, then the attempts, then the storm."""
    policy = Policy(limits=Limits(attempts=2, attempts_without_progress=1, starts=1), retries=Retries(user_code=0))
    ledger = Ledger(charges={Cause.USER_CODE: 1}, without_progress=1, starts=(NOON,))
    run, failure = a_run(earlier(Cause.USER_CODE), ledger=ledger), a_failure(Cause.USER_CODE)
    said = []
    for change in ({}, {"print_": "other"}):
        said.append(choose_remedy(run, a_failure(Cause.USER_CODE, **change), policy).why)
    roomy = replace(policy, limits=replace(policy.limits, attempts=50))
    said.append(choose_remedy(run, replace(failure, last_step=None), roomy).why)
    calm = replace(roomy, limits=replace(roomy.limits, starts=5))
    said.append(choose_remedy(run, replace(failure, last_step=None), calm).why)
    patient = replace(calm, limits=replace(calm.limits, attempts_without_progress=5))
    said.append(choose_remedy(run, replace(failure, last_step=None), patient).why)
    assert said == [
        "the same error at step 110 in attempts 1 and 2",
        "all 2 attempts are spent",
        "restart storm: 1 starts within 30 min",
        "1 attempts trained and left no newer checkpoint than step 100",
        "user_code is not retried",
    ]


@pytest.mark.parametrize(
    ("step", "resume", "error", "verdict"),
    [
        (None, None, "cannot import name 'Trainer' from 'transformers'", Hold),
        (None, 100, "cannot import name 'Trainer' from 'transformers'", Relaunch),
        (5, None, "cannot import name 'Trainer' from 'transformers'", Relaunch),
        (None, None, "libcuda.so.1: cannot open shared object file", Relaunch),
        (None, None, "torch_extensions/py311_cu121/utils/utils.so: cannot open shared object file", Relaunch),
    ],
)
def test_an_import_that_fails_at_the_start_is_not_tried_again(step, resume, error, verdict):
    failure = Failure(diagnose(f"ImportError: {error}"), step, resume, NOON)
    assert isinstance(choose_remedy(charged(Cause.USER_CODE, 1), failure, Policy()), verdict)


def test_the_same_error_at_the_same_step_is_not_tried_a_third_time():
    """Deterministic: a human has to mend the code or the data."""
    verdict = choose_remedy(a_run(earlier(Cause.DATA)), a_failure(Cause.DATA), Policy())
    assert verdict == Hold(
        "the same error at step 110 in attempts 1 and 2",
        f"a release repeats the same code: fix it, or the data at that step, and {CONTINUE}",
        Runbook.SAME_ERROR,
    )


@pytest.mark.parametrize(
    "failure",
    [a_failure(Cause.DATA, step=111), a_failure(Cause.DATA, step=None), a_failure(Cause.DATA, print_="another error")],
)
def test_another_step_or_another_error_is_another_chance(failure):
    """An unknown step proves nothing either."""
    assert isinstance(choose_remedy(a_run(earlier(Cause.DATA)), failure, Policy()), Relaunch)


@pytest.mark.parametrize("cause", [Cause.INFRASTRUCTURE, Cause.HARDWARE])
def test_where_the_platform_is_at_fault_a_repetition_proves_nothing(cause):
    """Two dead nodes at one step are two dead nodes."""
    assert isinstance(choose_remedy(a_run(earlier(cause)), a_failure(cause), Policy()), Relaunch)


def test_a_wait_for_machines_does_not_hide_a_repetition():
    """An attempt that never got machines between two equal failures is looked past."""
    run = a_run(earlier(Cause.DATA), earlier(Cause.CAPACITY, number=2, step=None))
    assert choose_remedy(run, a_failure(Cause.DATA), Policy()).why == "the same error at step 110 in attempts 1 and 3"


def test_attempts_without_machines_are_no_attempts():
    """Only those that had machines count towards the total."""
    policy = Policy(limits=Limits(attempts=2))
    waited = a_run(*(earlier(Cause.CAPACITY, number=number) for number in (1, 2, 3)))
    assert isinstance(choose_remedy(waited, a_failure(Cause.UNKNOWN), policy), Relaunch)
    trained = a_run(earlier(Cause.UNKNOWN, print_="other"))
    assert choose_remedy(trained, a_failure(Cause.UNKNOWN), policy) == Hold(
        "all 2 attempts are spent", "look at the timeline before you raise limits.attempts", Runbook.ATTEMPTS_SPENT
    )


def test_many_starts_in_a_short_time_are_a_storm():
    """Starts older than the window do not count, and a refusal for want of machines is no storm."""
    policy = Policy(limits=Limits(starts=3, starts_window=30 * MINUTE))
    storm = a_run(ledger=Ledger(starts=(NOON - 20 * MINUTE, NOON - 10 * MINUTE, NOON)))
    assert choose_remedy(storm, a_failure(Cause.UNKNOWN), policy) == Hold(
        "restart storm: 3 starts within 30 min",
        "find out why the job dies so soon after its start, then release the run",
        Runbook.RESTART_STORM,
    )
    calm = a_run(ledger=Ledger(starts=(NOON - 30 * MINUTE, NOON - 10 * MINUTE, NOON)))
    assert isinstance(choose_remedy(calm, a_failure(Cause.UNKNOWN), policy), Relaunch)
    assert isinstance(choose_remedy(storm, a_failure(Cause.CAPACITY), policy), Relaunch)


@pytest.mark.parametrize(("resume", "than"), [(100, "step 100"), (None, "none at all")])
def test_attempts_that_leave_no_checkpoint_burn_money_in_place(resume, than):
    """Whatever kills it, a run that does not advance is held."""
    run = a_run(ledger=Ledger(without_progress=3))
    assert choose_remedy(run, a_failure(Cause.UNKNOWN, resume=resume), Policy()) == Hold(
        f"3 attempts trained and left no newer checkpoint than {than}",
        "save checkpoints more often than the job fails, or fix what ends it",
        Runbook.NO_PROGRESS,
    )
    assert isinstance(
        choose_remedy(a_run(ledger=Ledger(without_progress=2)), a_failure(Cause.UNKNOWN), Policy()), Relaunch
    )


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        (Cause.USER_CODE, f"a release repeats the same code: fix it, and {CONTINUE}"),
        (Cause.DATA, f"fix the input that the evidence names, then release the run; with other code: {CONTINUE}"),
        (
            Cause.DAMAGED_CHECKPOINT,
            "delete or replace the damaged checkpoint that the evidence or the log names (with S3 versioning, restore "
            "its previous version), then release the run",
        ),
        (Cause.HANG, "look at the ranks' stacks and the network, then release the run"),
        (
            Cause.DIVERGED,
            "look at the data before the onset, then release the run; "
            f"with a lower learning rate or other code: {CONTINUE}",
        ),
        (Cause.HARDWARE, "look at the evidence, then release the run"),
        (Cause.INFRASTRUCTURE, "look at the evidence, then release the run"),
    ],
)
def test_a_spent_budget_holds_with_a_remedy(cause, advice):
    """Exactly the budget's number of retries are given; the next failure holds the run."""
    budget = Policy().retries.of(cause)
    assert isinstance(choose_remedy(charged(cause, budget), a_failure(cause), Policy()), Relaunch)
    assert choose_remedy(charged(cause, budget + 1), a_failure(cause), Policy()) == Hold(
        f"{cause} has spent its budget of {budget} without progress",
        advice,
        RUNBOOK_BY_CAUSE.get(cause, Runbook.BUDGET_SPENT),
    )


@pytest.mark.parametrize(
    ("facts", "first", "rest"),
    [
        ({"rule": FEW_STEPS}, "a release repeats the same code: fix what ends it early", "`rerail stop gpt`"),
        (
            {"last_loss": "the last loss was nan"},
            "a release repeats the same code: fix it",
            "`rerail rollback gpt --to",
        ),
    ],
)
def test_the_advice_of_a_hold_fits_the_end(facts, first, rest):
    """An early end without an error needs no checkpoints; the newest ones of a bad loss are as bad."""
    failure = a_failure(Cause.UNKNOWN)
    failure = replace(failure, diagnosis=replace(failure.diagnosis, **facts))
    for run in (a_run(earlier(Cause.UNKNOWN)), a_run(ledger=Ledger(without_progress=3))):
        advice = choose_remedy(run, failure, Policy()).advice
        assert rest in advice and ("last_loss" in facts or "save checkpoints" not in advice)
    assert choose_remedy(a_run(earlier(Cause.UNKNOWN)), failure, Policy()).advice.startswith(first)
    storm = a_run(ledger=Ledger(starts=(NOON,) * Policy().limits.starts))
    assert choose_remedy(storm, failure, Policy()).advice.endswith("so soon after its start, then release the run")


def test_running_out_of_memory_is_not_retried():
    """The same batch on the same machine needs the same memory."""
    assert choose_remedy(charged(Cause.OOM, 1), a_failure(Cause.OOM), Policy()) == Hold(
        "oom is not retried",
        "a release repeats batch and machines: take a smaller batch, or a larger machine with --instance-type, "
        f"and {CONTINUE}",
        Runbook.OUT_OF_MEMORY,
    )


@pytest.mark.parametrize(
    ("error", "is_cured"),
    [
        ("CUDA out of memory", True),
        ('{"rerail": 1, "cause": "oom", "error": "CUDA out of memory"}', True),
        ('{"rerail": 1, "cause": "oom", "error": "RuntimeError: can\'t allocate memory"}', False),
        ('{"rerail": 1, "cause": "oom", "error": "a process was killed"}', False),
        ("Memory cgroup out of memory: Killed process 7 (python)", False),
        ("ray.exceptions.OutOfMemoryError: Task was killed", False),
        ("KeyError: 'eos'", False),
    ],
)
def test_a_batch_is_split_where_memory_of_the_gpu_ran_out_and_the_script_can(error, is_cured):
    """Twice as often each time, at most 8, while the newest attempt with an agent is able to."""
    failure, able, other = Failure(diagnose(error), 110, 100, NOON), ("rate", "microbatch"), ("rate",)
    cases = ((other, other, 1, 0), (able, able, 1, 2), (able, None, 4, 8), (able, (), 4, 0), (able, able, 8, 0))
    for before, now, parts, split in (*cases, (able, other, 1, 0)):
        known = {"agent": now is not None, "abilities": now or ()}
        run = a_run(replace(earlier(Cause.OOM), agent=True, abilities=before))
        run = replace(run, attempts=(run.attempts[0], replace(run.current, **known, microbatches=parts)))
        verdict = remedies.split_the_batch(run, failure, Policy())
        assert (verdict.microbatches if verdict else 0) == split * is_cured
        assert verdict is None or verdict.why == f"the same batch in {split} microbatches"


def test_a_hold_for_memory_names_what_was_launched_against_it():
    """Neither what was before a release, nor a move for capacity, nor an attempt without a job."""
    facts = ((1, "", Cause.OOM), (2, "", Cause.OOM), (2, "b", Cause.CAPACITY), (4, "c", Cause.OOM), (4, "d", Cause.OOM))
    attempts = [
        replace(earlier(cause, number=number), microbatches=parts, machines=Machines((kind,)) if kind else None)
        for number, (parts, kind, cause) in enumerate(facts, start=1)
    ]
    attempts[1:1] = [replace(attempts[0], status=None, microbatches=8, machines=Machines(("a",)))]
    run = replace(charged(Cause.OOM, 1), attempts=tuple(attempts))
    failure = a_failure(Cause.OOM, step=90)
    for forgiven, tried in ((0, "2, then 4 microbatches; moved to b; moved to d"), (4, "4 microbatches")):
        verdict = choose_remedy(replace(run, ledger=replace(run.ledger, forgiven=forgiven)), failure, Policy())
        assert verdict.why == f"oom is not retried; tried: relaunched with {tried}"
    spent = choose_remedy(run, a_failure(Cause.USER_CODE, step=90), Policy(limits=Limits(attempts=2)))
    assert spent.why == "all 2 attempts are spent"


def test_broken_hardware_is_left_behind():
    """Only hardware asks for fresh machines: a warm pool would hand the same node back."""
    fresh = {c for c in Cause if getattr(choose_remedy(a_run(), a_failure(c), Policy()), "fresh_machines", False)}
    assert fresh == {Cause.HARDWARE}


def test_a_retry_names_the_remaining_budget():
    """The number is what remains after this failure; what cannot be named has no number."""
    assert choose_remedy(charged(Cause.HANG, 1), a_failure(Cause.HANG), Policy()).why == "hang: 2 of 3 retries left"
    assert (
        choose_remedy(charged(Cause.UNKNOWN, 9), a_failure(Cause.UNKNOWN), Policy()).why
        == "unknown: retried as long as it makes progress"
    )


@given(policies, st.sampled_from([cause for cause in Cause if cause is not Cause.CAPACITY]), st.integers(0, 1_000_000))
def test_a_retry_waits_within_bounds(policy, cause, failures):
    """Never negative, never longer than the cap, never longer than the base doubled per failure."""
    policy = replace(policy, limits=Limits(), retries=Retries(*[1_000_000] * 8))
    verdict = choose_remedy(charged(cause, failures), a_failure(cause), policy)
    assert isinstance(verdict, Relaunch)
    assert timedelta(0) <= verdict.delay <= policy.backoff.cap
    if failures <= 10:
        assert verdict.delay <= policy.backoff.base * 2 ** max(0, failures - 1)


def test_waits_grow_with_the_failures():
    """Over many runs the mean wait is half of base, then of twice the base, and so on up to half of the cap."""
    policy = Policy(backoff=Backoff(base=timedelta(seconds=30), cap=15 * MINUTE))

    def mean(failures: int) -> float:
        waits = []
        for number in range(300):
            run = replace(charged(Cause.INFRASTRUCTURE, failures), id=f"run-{number}")
            waits.append(choose_remedy(run, a_failure(Cause.INFRASTRUCTURE), policy).delay.total_seconds())
        return sum(waits) / len(waits)

    for failures, expected in ((1, 15), (2, 30), (3, 60), (6, 450), (10, 450)):
        assert mean(failures) == pytest.approx(expected, rel=0.15)


@given(durations, st.text(max_size=20), st.floats(0, 1))
def test_chance_is_repeatable(longest, seed, least):
    """The same seed waits alike on every machine: a repeated decision is the same decision."""
    wait = draw_delay(longest, seed=seed, least=least)
    assert wait == draw_delay(longest, seed=seed, least=least)
    # A microsecond of grace: a timedelta times a float is rounded.
    assert longest * least - timedelta(microseconds=1) <= wait <= longest + timedelta(microseconds=1)


def test_runs_do_not_wait_in_step():
    """A thousand jobs that die at once do not come back at once."""
    waits = {draw_delay(HOUR, seed=f"run-{number}:1") for number in range(100)}
    assert len(waits) == 100


def test_a_wait_for_capacity_ends_with_the_policys_patience():
    """Time is the budget: up to `capacity.wait` another try, then a human."""
    policy = Policy(capacity=Capacity(wait=12 * HOUR))
    run = a_run(ledger=Ledger(capacity_since=NOON))
    at = NOON + 11 * HOUR
    waiting = choose_capacity_verdict(run, policy, at=at)
    assert waiting == replace(waiting, why="no capacity for 11.0 h of at most 12.0 h", fresh_machines=False)
    assert choose_capacity_verdict(run, policy, at=NOON + 12 * HOUR) == Hold(
        "no capacity for 12.0 h, as long as the policy waits",
        "release the run to wait again, or `rerail submit SCRIPT --continue gpt --instance-type TYPE`",
        Runbook.NO_CAPACITY,
    )
    assert choose_remedy(run, a_failure(Cause.CAPACITY), policy) == choose_capacity_verdict(run, policy, at=NOON)


@given(st.timedeltas(timedelta(0), timedelta(hours=11)), st.integers(0, 1000))
def test_pauses_between_tries_for_capacity_are_bounded(waited, version):
    """At least half of the base, so that a refusal is no busy loop; at most the cap."""
    policy = Policy()
    run = replace(a_run(ledger=Ledger(capacity_since=NOON - waited)), version=version)
    pause = choose_capacity_verdict(run, policy, at=NOON).delay
    assert policy.capacity.base / 2 <= pause <= policy.capacity.cap


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (timedelta(0), "0 s"),
        (timedelta(seconds=0.25), "less than 1 s"),
        (timedelta(seconds=89), "89 s"),
        (timedelta(seconds=90), "2 min"),
        (timedelta(minutes=15), "15 min"),
        (timedelta(minutes=89), "89 min"),
        (timedelta(minutes=90), "1.5 h"),
        (timedelta(hours=12), "12.0 h"),
    ],
)
def test_durations_are_formatted_in_one_unit(duration, words):
    """In one unit, as coarse as it is useful at night."""
    assert format_duration(duration) == words


def test_every_advice_belongs_to_a_cause_with_a_budget():
    """An advice that no rule could ever give would be a wish."""
    assert all(Policy().retries.of(cause) is not None for cause in remedies.ADVICE_BY_CAUSE)
