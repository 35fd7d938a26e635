"""Choose the remedy for a failed attempt by ordered rules; the first match wins."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

from rerail.decisions.budgets import remaining_retries
from rerail.decisions.fallback_machines import (
    find_larger,
    find_missing_quota,
    format_unsuitable,
    list_alternatives,
    needs_its_machines,
)
from rerail.diagnosis.symptoms import DEVICE_MEMORY, IMPORT
from rerail.model.actions import Machines
from rerail.model.causes import Cause
from rerail.model.checkpoints import Checkpoint
from rerail.model.diagnosis import FEW_STEPS, Diagnosis
from rerail.model.formatting import format_duration
from rerail.model.machines import format_instance_types
from rerail.model.mailbox import Ability
from rerail.model.policy import Policy
from rerail.model.run import Run
from rerail.model.runbooks import Runbook

# For platform faults, the same error at the same step does not predict the next attempt.
PLATFORM_CAUSES = (Cause.INFRASTRUCTURE, Cause.HARDWARE, Cause.CAPACITY)
# Their next attempt is another one: on other machines, with other data, or from another checkpoint.
CHANGING_CAUSES = (*PLATFORM_CAUSES, Cause.DIVERGED, Cause.DAMAGED_CHECKPOINT)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt as the rules see it; the run's ledger is already charged for it."""

    diagnosis: Diagnosis
    last_step: int | None  # the last step known before the failure
    resume_step: int | None  # the step to resume from; None: from the start
    at: datetime
    checkpoints: tuple[Checkpoint, ...] = ()  # as they were listed; empty where they were not listed
    damaged_step: int | None = None  # of the checkpoint that could not be loaded and is quarantined now
    restored: str = ""  # the copies that replace files that could not be loaded, for people


@dataclass(frozen=True, slots=True)
class Relaunch:
    """The verdict to try again."""

    delay: timedelta  # before the job is created
    why: str
    fresh_machines: bool = False  # release the warm pool first, so that other machines are used
    changes_machines: bool = False  # launch on `machines` from now on
    machines: Machines | None = None  # only with `moves`; None: those of the run's own request
    microbatches: int | None = None  # into which the script splits its batch from now on; None: as before


@dataclass(frozen=True, slots=True)
class Hold:
    """The verdict to stop trying and page the operator."""

    why: str
    advice: str  # what to do
    runbook: Runbook = Runbook.BUDGET_SPENT  # the page with more detail
    title: str = field(default="", compare=False)  # of the notice: the error and its step; empty: `why`


MAX_TITLE_CHARS = 60

# Into how many parts a batch is split at most after memory ran out, doubled each time.
MAX_MICROBATCHES = 8

# From this many hangs in a row, the machines are suspect too.
HANGS_TOLERATED = 2

Verdict = Relaunch | Hold
Rule = Callable[[Run, Failure, Policy], Verdict | None]


def choose_remedy(run: Run, failure: Failure, policy: Policy) -> Verdict:
    """Return the verdict of the first rule that applies; the last rule always does."""
    for rule in RULES:
        if verdict := rule(run, failure, policy):
            if isinstance(verdict, Relaunch):
                return verdict
            tried = _format_tried(run) if failure.diagnosis.cause is Cause.OOM else ""
            return replace(verdict, why=verdict.why + tried, advice=_fit_advice(run, failure, verdict))
    raise AssertionError("the last rule answers every failure")


def _fit_advice(run: Run, failure: Failure, hold: Hold) -> str:
    """Return the hold's advice as it fits an early end without an error, or an end with a loss in trouble."""
    diagnosis = failure.diagnosis
    if hold.runbook in (Runbook.ATTEMPTS_SPENT, Runbook.RESTART_STORM):
        return hold.advice
    if diagnosis.rule == FEW_STEPS:
        code = SAME_CODE.format(what="fix what ends it early,", continue_=format_continue(run))
        return (
            f'{code}; if it is to end early, `rerail stop {run.id}`, and set on_doubtful_end = "inform" in its policy'
        )
    if diagnosis.last_loss and diagnosis.cause is not Cause.DIVERGED:
        older = f"`rerail rollback {run.id} --to STEP` resumes from an older one"
        return f"{hold.advice}; its newest checkpoints may have the bad loss: {older}"
    return hold.advice


def same_error_at_the_same_step(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Hold if the same error occurred twice at the same step.

    Such an error is deterministic, and a third attempt only costs money.
    """
    if hold := _hold_same_error_after_restart(run, failure):
        return hold
    previous = next((attempt for attempt in reversed(run.attempts[:-1]) if attempt.cause is not Cause.CAPACITY), None)
    cause = failure.diagnosis.cause
    if previous is None or failure.last_step is None or cause in CHANGING_CAUSES:
        return None
    now = run.current
    if cause is Cause.OOM and (previous.machines, previous.microbatches) != (now.machines, now.microbatches):
        return None
    if (previous.fingerprint, previous.last_step) != (failure.diagnosis.fingerprint, failure.last_step):
        return None
    return Hold(
        f"the same error at step {failure.last_step} in attempts {previous.number} and {run.current.number}",
        SAME_CODE.format(what="fix it, or the data at that step,", continue_=format_continue(run)),
        Runbook.SAME_ERROR,
        title=format_error(failure, times=2),
    )


def _hold_same_error_after_restart(run: Run, failure: Failure) -> Hold | None:
    """Hold if the same error occurred at the same step before and after an in-place restart.

    Divergence is excepted: the rollback ladder answers it with other data.
    """
    order, cause = (
        (run.current.in_place_restarts[-1] if run.current.in_place_restarts else None),
        failure.diagnosis.cause,
    )
    if order is None or not order.restarted_at or failure.last_step is None or cause in CHANGING_CAUSES:
        return None
    if (order.fingerprint, order.last_step) != (failure.diagnosis.fingerprint, failure.last_step):
        return None
    return Hold(
        f"the same error at step {failure.last_step} before and after a restart in place",
        SAME_CODE.format(what="fix it, or the data at that step,", continue_=format_continue(run)),
        Runbook.SAME_ERROR,
    )


def attempts_spent(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Hold once the run has used all its attempts, whatever their causes."""
    attempts = [attempt for attempt in run.attempts if attempt.cause is not Cause.CAPACITY and not attempt.drill]
    if len(attempts) < policy.limits.attempts:
        return None
    return Hold(
        f"all {policy.limits.attempts} attempts are spent",
        "look at the timeline before you raise limits.attempts",
        Runbook.ATTEMPTS_SPENT,
    )


def restart_storm(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Hold after many launches in a short time: relaunching does not fix what is wrong."""
    window = policy.limits.starts_window
    recent = [start for start in run.ledger.starts if failure.at - start < window]
    if failure.diagnosis.cause is Cause.CAPACITY or len(recent) < policy.limits.starts:
        return None
    return Hold(
        f"restart storm: {len(recent)} starts within {format_duration(window)}",
        "find out why the job dies so soon after its start, then release the run",
        Runbook.RESTART_STORM,
    )


def no_progress(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Hold after several attempts that trained and left no newer checkpoint."""
    if run.ledger.without_progress < policy.limits.attempts_without_progress:
        return None
    return Hold(
        f"{run.ledger.without_progress} attempts trained and left no newer checkpoint than "
        f"{'none at all' if failure.resume_step is None else f'step {failure.resume_step}'}",
        "save checkpoints more often than the job fails, or fix what ends it",
        Runbook.NO_PROGRESS,
    )


def wait_for_capacity(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Wait for machines where there is no capacity, within a time budget."""
    if failure.diagnosis.cause is not Cause.CAPACITY:
        return None
    return choose_capacity_verdict(run, policy, at=failure.at, refusal=failure.diagnosis.evidence)


def split_the_batch(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Relaunch with the batch in twice as many microbatches, at most 8, where GPU memory ran out and the script can."""
    if (parts := find_split(run, failure)) is None:
        return None
    why = f"the same batch in {parts} microbatches"
    return Relaunch(_choose_backoff(run, failure, policy), why, microbatches=parts)


def find_split(run: Run, failure: Failure) -> int | None:
    """Return into how many microbatches the script is to split its batch after this failure; None: as before.

    The newest attempt with an agent says whether the script can split it further.
    """
    able = next((attempt.abilities for attempt in reversed(run.attempts) if attempt.agent), ())
    is_curable = failure.diagnosis.rule == DEVICE_MEMORY and Ability.MICROBATCH in able
    parts = 2 * run.current.microbatches
    return parts if is_curable and parts <= MAX_MICROBATCHES else None


def _format_tried(run: Run) -> str:
    """Return the remedies against too little memory that the run has had since its release, as the end of a reason."""
    launched = [attempt for attempt in run.attempts if attempt.exists and attempt.number > run.ledger.forgiven]
    tried = []
    if parts := sorted({attempt.microbatches for attempt in launched} - {1}):
        tried.append(f"relaunched with {', then '.join(map(str, parts))} microbatches")
    for before, after in pairwise(launched):
        if before.cause is Cause.OOM and after.machines and after.machines != before.machines:
            tried.append(f"moved to {format_instance_types(after.machines)}")
    return f"; tried: {'; '.join(tried)}" if tried else ""


def move_to_more_memory(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Relaunch on larger machines once memory ran out more often than `retries.oom` allows.

    They are the fall-backs of the policy with more memory of the kind that ran out: on the GPU or the host.
    """
    diagnosis = failure.diagnosis
    if diagnosis.cause is not Cause.OOM or run.ledger.charges.get(Cause.OOM, 0) <= policy.retries.oom:
        return None
    larger = find_larger(run, policy, on_gpu=diagnosis.rule == DEVICE_MEMORY)
    if larger is None:
        return None
    now = " or ".join(run.cluster.on(run.current.machines).instance_types)
    why = f"{format_instance_types(larger)} has more memory than {now}"
    return Relaunch(_choose_backoff(run, failure, policy), why, changes_machines=True, machines=larger)


def cause_budget_spent(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Hold once the failure's cause has used up its own budget. A failed import at the start has none."""
    cause = failure.diagnosis.cause
    is_at_start = failure.last_step is None and failure.resume_step is None
    budget = 0 if is_at_start and failure.diagnosis.rule == IMPORT else policy.retries.of(cause)
    if budget is None or run.ledger.charges.get(cause, 0) <= budget:
        return None
    spent = "is not retried" if budget == 0 else f"has spent its budget of {budget} without progress"
    runbook = RUNBOOK_BY_CAUSE.get(cause, Runbook.BUDGET_SPENT)
    error = format_error(failure, times=run.ledger.charges.get(cause, 1))
    return Hold(f"{cause} {spent}", find_advice(failure.diagnosis, run), runbook, error)


def find_advice(diagnosis: Diagnosis, run: Run | None = None) -> str:
    """Return what an operator should do about a failure before the run goes on."""
    by_cause = ADVICE_BY_CAUSE.get(diagnosis.cause, "look at the evidence, then release the run")
    return ADVICE_BY_RULE.get(diagnosis.rule, by_cause).format(continue_=format_continue(run))


def format_continue(run: Run | None) -> str:
    """Return the command that goes on with the run after a change; with placeholders for what is not known."""
    return f"rerail submit {(run and run.script) or 'SCRIPT'} --continue {run.id if run else 'RUN'}"


def format_error(failure: Failure, *, times: int = 1) -> str:
    """Return the error in a few words, its step, and how often it occurred: "KeyError: 'eos' at step 40, twice"."""
    error = re.sub(
        r",? exit code: -?\d+\W*$|^(?:\w+\.)+(?=[A-Z]\w*(?:Error|Exception)\b)", "", failure.diagnosis.evidence
    )
    error = re.split(r"[.;] (?=[A-Z])", error)[0]
    if len(error) > MAX_TITLE_CHARS:
        error = error[: MAX_TITLE_CHARS - 3].rstrip() + "..."
    step = f" at step {failure.last_step}" if error and failure.last_step is not None else ""
    often = {1: "", 2: ", twice"}.get(times, f", {times} times") if error else ""
    return f"{error.rstrip('. ')}{step}{often}"


def no_sound_checkpoint(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Hold after a damaged checkpoint that has no sound one before it: the next attempt would load it again."""
    if failure.diagnosis.cause is not Cause.DAMAGED_CHECKPOINT or failure.resume_step is not None or failure.restored:
        return None
    place = run.checkpoint_uri or "the folder that the script loads it from"
    which = f"the checkpoint at step {failure.damaged_step}" if failure.damaged_step is not None else "a checkpoint"
    return Hold(
        f"{which} is damaged, and there is no sound one before it",
        f"delete or replace the damaged file in {place} (with S3 versioning, restore its previous version), then "
        "release the run",
        Runbook.DAMAGED_CHECKPOINT,
    )


def resume_from_the_one_before(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Relaunch from the newest sound checkpoint before a damaged one, which is quarantined."""
    left = _format_retries_left(run, failure, policy)
    if failure.restored:
        why = f"the damaged file is quarantined and replaced by its copy: {failure.restored}; {left}"
        return Relaunch(_choose_backoff(run, failure, policy), why)
    if failure.diagnosis.cause is not Cause.DAMAGED_CHECKPOINT or failure.damaged_step is None:
        return None
    why = f"the checkpoint at step {failure.damaged_step} is damaged and is quarantined; {left}"
    return Relaunch(_choose_backoff(run, failure, policy), why)


def leave_the_bad_node(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Relaunch on fresh machines after a hardware failure or repeated hangs.

    A warm pool would return the same broken node.
    """
    cause = failure.diagnosis.cause
    hangs_again = cause is Cause.HANG and run.ledger.charges.get(cause, 0) >= HANGS_TOLERATED
    if cause is not Cause.HARDWARE and not hangs_again:
        return None
    return Relaunch(
        _choose_backoff(run, failure, policy), _format_retries_left(run, failure, policy), fresh_machines=True
    )


def resume(run: Run, failure: Failure, policy: Policy) -> Verdict:
    """Relaunch from the newest clean checkpoint: the rule for every other failure."""
    return Relaunch(_choose_backoff(run, failure, policy), _format_retries_left(run, failure, policy))


RULES: tuple[Rule, ...] = (
    same_error_at_the_same_step,
    attempts_spent,
    restart_storm,
    no_progress,
    wait_for_capacity,
    split_the_batch,
    move_to_more_memory,
    cause_budget_spent,
    no_sound_checkpoint,
    resume_from_the_one_before,
    leave_the_bad_node,
    resume,
)

# What a release would not change: the advice of such a hold begins with it.
REPEATS = "a release repeats"
SAME_CODE = f"{REPEATS} the same code: {{what}} and `{{continue_}}`"
DIVERGED_ADVICE = (
    "look at the data before the onset, then release the run; with a lower learning rate or other code: `{continue_}`"
)
ADVICE_BY_CAUSE = {
    Cause.USER_CODE: "a release repeats the same code: fix it, and `{continue_}`",
    Cause.DATA: "fix the input that the evidence names, then release the run; with other code: `{continue_}`",
    Cause.DAMAGED_CHECKPOINT: "delete or replace the damaged checkpoint that the evidence or the log names (with S3 "
    "versioning, restore its previous version), then release the run",
    Cause.OOM: "a release repeats batch and machines: take a smaller batch, or a larger machine with --instance-type, "
    "and `{continue_}`",
    Cause.HANG: "look at the ranks' stacks and the network, then release the run",
    Cause.DIVERGED: DIVERGED_ADVICE,
}

ADVICE_BY_RULE = {
    "full-disk": "a release repeats the same disk: keep fewer checkpoints and temporary files, or take a larger one "
    "with --volume (VolumeSizeInGB), and `{continue_}`",
    "timeout-while-reading": "one rank still read its input when the others' clock ran out: prepare the input before, "
    "or give init_process_group a longer timeout",
    "port-in-use": "a release repeats the same port: start one launcher per machine, or give each its own port",
    "compiler-limit": "a release compiles the same kernel: take smaller blocks or fewer stages, and `{continue_}`",
}

RUNBOOK_BY_CAUSE = {
    Cause.OOM: Runbook.OUT_OF_MEMORY,
    Cause.DIVERGED: Runbook.DIVERGED,
    Cause.DAMAGED_CHECKPOINT: Runbook.DAMAGED_CHECKPOINT,
}


def choose_capacity_verdict(run: Run, policy: Policy, *, at: datetime, refusal: str = "") -> Verdict:
    """Wait for machines with growing delays, then fall back to others, and hold at the end of the policy's wait.

    Fall-backs are tried after part of the wait, or at once where a quota permanently excludes the run's own machines.
    """
    waited = at - (run.ledger.capacity_since or at)
    quota, others = find_missing_quota(refusal), list_alternatives(run, policy)
    if waited >= policy.capacity.wait:
        return Hold(
            f"no capacity for {format_duration(waited)}, as long as the policy waits",
            f"release the run to wait again, or `{format_continue(run)} --instance-type TYPE`",
            Runbook.NO_CAPACITY,
        )
    given_up = None if needs_its_machines(run) else run.current.machines
    abandoned = f", {format_instance_types(given_up)} is given up" if given_up else ""
    seed = f"{run.id}:{run.version}"
    if others and (quota or waited >= policy.capacity.fallback_after):
        why = str(quota) if quota else f"no capacity for {format_duration(waited)}"
        delay = draw_delay(policy.capacity.base, seed=seed, least=0.5)
        return Relaunch(
            delay,
            f"{why}{abandoned}: falling back to {format_instance_types(others[0])}",
            changes_machines=True,
            machines=others[0],
        )
    if quota and not given_up:
        return Hold(
            f"{quota}: waiting does not raise it",
            "have that quota raised in Service Quotas, or list other machines in the policy's capacity.fallbacks; "
            "then release the run",
            Runbook.NO_CAPACITY,
        )
    delay = min(policy.capacity.cap, max(policy.capacity.base, waited / 2))
    if others:  # a fall-back may be due before a long delay ends
        delay = min(delay, max(policy.capacity.base, policy.capacity.fallback_after - waited))
    unused = format_unsuitable(run, policy) if waited >= policy.capacity.fallback_after and not others else ""
    return Relaunch(
        draw_delay(delay, seed=seed, least=0.5),
        f"no capacity for {format_duration(waited)} of at most {format_duration(policy.capacity.wait)}{abandoned}"
        + (f"; fall-backs passed over: {unused}" if unused else ""),
        changes_machines=given_up is not None,
    )


def draw_delay(longest: timedelta, *, seed: str, least: float = 0.0) -> timedelta:
    """Return a random delay, uniform between `least` x longest and longest.

    The same seed gives the same delay, so that a repeated decision is identical.
    """
    return longest * random.Random(seed).uniform(least, 1.0)


def _choose_backoff(run: Run, failure: Failure, policy: Policy) -> timedelta:
    """Return the delay before the next attempt: exponential in the failures of this cause, with full jitter."""
    failures = max(1, run.ledger.charges.get(failure.diagnosis.cause, 1))
    longest = min(policy.backoff.cap, policy.backoff.base * 2 ** min(failures - 1, 20))
    return draw_delay(longest, seed=f"{run.id}:{run.current.number}")


def _format_retries_left(run: Run, failure: Failure, policy: Policy) -> str:
    """Return how many retries the cause has left, in words."""
    cause = failure.diagnosis.cause
    budget = policy.retries.of(cause)
    if budget is None:
        return f"{cause}: retried as long as it makes progress"
    return f"{cause}: {remaining_retries(run.ledger, policy)[cause]} of {budget} retries left"
