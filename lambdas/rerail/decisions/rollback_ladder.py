"""The rollback ladder for a diverged loss: replay, skip data, skip more, lower the learning rate, hold.

The next rung is taken when the trouble returns at or shortly after its onset. Trouble far beyond it is new and starts
with a replay. Skipped data is named by absolute sample ids and stays skipped in later attempts.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import groupby, pairwise

from rerail.decisions.checkpoint_health import with_health
from rerail.decisions.remedies import DIVERGED_ADVICE, Hold, format_continue
from rerail.model import skipped_samples
from rerail.model.checkpoint_layouts import Layout
from rerail.model.checkpoints import MOST_COUNTED, Checkpoint, Health
from rerail.model.mailbox import Ability
from rerail.model.policy import Ladder, Policy
from rerail.model.run import Run, RungTaken
from rerail.model.runbooks import Runbook

MAX_RUNGS_TAKEN = 30
MAX_CHECKPOINT_PAIRS = 8  # around the onset, to estimate the samples per step


class Rung(StrEnum):
    """The rungs from the cheapest on; each adds to those before it."""

    REPLAY = "replay"
    SKIP = "skip"
    FAR_SKIP = "far_skip"
    RATE = "lower_rate"


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """One rung for one onset."""

    rung: Rung
    resume_step: int | None  # None: from the start
    skip_samples: str  # the ranges of all sample ids to skip, those of earlier rungs included
    rate: float  # factor on the learning-rate schedule
    why: str  # for the reason of the decision


@dataclass(frozen=True, slots=True)
class LadderPosition:
    """The state from which the next rung is chosen."""

    run: Run
    onset: int  # the step at which the loss diverged
    ladder: Ladder
    checkpoints: tuple[Checkpoint, ...]  # all listed checkpoints, with their health
    tried: tuple[RungTaken, ...]  # rungs taken for this onset before, oldest first

    @property
    def clean(self) -> list[int]:
        """The steps of the complete, clean checkpoints older than the onset, newest first."""
        sound = (c.step for c in self.checkpoints if c.is_whole and c.health is Health.CLEAN and c.step < self.onset)
        return sorted(set(sound), reverse=True)

    @property
    def limit(self) -> int:
        """The newest step that keeps the policy's margin before the onset."""
        return self.onset - self.ladder.margin_steps


def plan_rollback(run: Run, onset_step: int, checkpoints: Sequence[Checkpoint], policy: Policy) -> RollbackPlan | Hold:
    """Return the next rung for a loss that diverged at a step, or a hold when no rung is left.

    The same input gives the same plan.
    """
    tried = select_rungs_taken(run, onset_step, policy)
    position = LadderPosition(run, onset_step, policy.ladder, with_health(run, checkpoints), tried)
    reached = max((_rank(taken.rung) for taken in tried), default=0)
    passed_over: list[str] = []
    for rung in list(Rung)[reached:]:
        tries = sum(taken.rung == rung for taken in tried)
        if tries >= _list_tries(policy.ladder)[rung]:
            continue
        if obstacle := _find_rung_obstacle(position, rung):
            passed_over.append(f"{rung} is passed over: {obstacle}")
            continue
        plan = _make_plan(position, rung)
        return replace(plan, why="; ".join([f"rung {rung}: {plan.why}", *passed_over]))
    climbed = ", ".join(f"{taken.rung} in attempt {taken.attempt}" for taken in tried) or "nothing"
    why = "; ".join([f"the loss went wrong again at step {onset_step} after {climbed}", *passed_over])
    return Hold(why, DIVERGED_ADVICE.format(continue_=format_continue(run)), Runbook.DIVERGED)


def with_rung_taken(run: Run, planned: RollbackPlan, onset_step: int, *, at: datetime) -> Run:
    """Return the run whose current attempt carries out a rung, with the rung recorded."""
    rung, skip, rate = planned.rung.value, planned.skip_samples, planned.rate
    attempt = replace(run.current, skip_samples=skip, rate=rate, rung=rung)
    taken = RungTaken(rung, attempt.number, onset_step, planned.resume_step, skip, rate, at)
    former = run.current
    taken = replace(taken, former_skip_samples=former.skip_samples, former_rate=former.rate, former_rung=former.rung)
    attempts = (*run.attempts[:-1], attempt)
    return replace(run, attempts=attempts, rungs_taken=(*run.rungs_taken, taken)[-MAX_RUNGS_TAKEN:])


def select_rungs_taken(run: Run, onset_step: int, policy: Policy) -> tuple[RungTaken, ...]:
    """Return the rungs taken for this onset so far, oldest first.

    A chain of rungs belongs together while each onset is at most `near_steps` beyond the one before.
    """
    chain: list[RungTaken] = []
    for taken in reversed(run.rungs_taken):
        if onset_step > taken.onset_step + policy.ladder.near_steps:
            break
        chain.insert(0, taken)
        onset_step = taken.onset_step
    return tuple(chain)


def _rank(rung: str) -> int:
    """Return the rung's place on the ladder."""
    return list(Rung).index(Rung(rung))


def _list_tries(ladder: Ladder) -> dict[Rung, int]:
    """Return how often each rung may be taken."""
    return {
        Rung.REPLAY: ladder.replays,
        Rung.SKIP: ladder.skips,
        Rung.FAR_SKIP: ladder.far_skips,
        Rung.RATE: ladder.lower_rates,
    }


def _find_rung_obstacle(position: LadderPosition, rung: Rung) -> str:
    """Return why a rung cannot be taken, or an empty string."""
    current, ladder = position.run.current, position.ladder
    # Every attempt runs the same script, and one attempt's report may be lost.
    able = {ability for attempt in position.run.attempts for ability in attempt.abilities}
    match rung:
        case Rung.REPLAY:
            return ""
        case Rung.SKIP | Rung.FAR_SKIP:
            if Ability.SKIP not in able:
                return "the script does not report that it supports RERAIL_SKIP_SAMPLES"
            if not (batch_size := _estimate_samples_per_step(position)):
                return "no checkpoint says how many samples it had consumed"
            skipped = (ladder.skip_batches + ladder.far_skip_batches) * batch_size
            is_too_far = _find_onset_sample(position, batch_size) + skipped >= MOST_COUNTED
            return "the checkpoints say that more samples were consumed than a job can" if is_too_far else ""
        case Rung.RATE:
            if Ability.RATE not in able:
                return "the script does not report that it supports RERAIL_LR_SCALE"
            lowest = current.rate * ladder.rate_factor < ladder.least_rate
            return f"the learning rate is at {current.rate:g} of the schedule already" if lowest else ""


def _make_plan(position: LadderPosition, rung: Rung) -> RollbackPlan:
    """Return the plan of one rung."""
    attempt, ladder = position.run.current, position.ladder
    step, how = _choose_step(position, rung)
    replay = RollbackPlan(rung, step, attempt.skip_samples, attempt.rate, how)
    match rung:
        case Rung.REPLAY:
            return replay
        case Rung.SKIP | Rung.FAR_SKIP:
            batches = ladder.skip_batches if rung is Rung.SKIP else ladder.far_skip_batches
            first, last = _find_skip_window(position, step, batches)
            ranges = skipped_samples.format_ranges((*skipped_samples.parse_ranges(attempt.skip_samples), (first, last)))
            why = f"{how}, skipping samples {first}-{last} ({batches} batches around the onset)"
            return replace(replay, skip_samples=ranges, why=why)
        case Rung.RATE:
            rate = round(attempt.rate * ladder.rate_factor, 6)
            why = f"{how}, with the learning rate at {rate:g} of the schedule"
            return replace(replay, rate=rate, why=why)


def _choose_step(position: LadderPosition, rung: Rung) -> tuple[int | None, str]:
    """Return the step to go back to, and how it was chosen, in words."""
    onset, last = position.onset, position.tried[-1].resume_step if position.tried else None
    if not position.run.checkpoint_uri:
        return max(0, onset - 1), f"back to before step {onset}, to what the job itself finds there"
    ceiling = position.limit if last is None or rung in (Rung.REPLAY, Rung.SKIP) else min(position.limit, last)
    if rung is Rung.FAR_SKIP and last is not None:
        if older := [step for step in position.clean if step < last and step <= position.limit]:
            return older[0], f"farther back than before, to {onset - older[0]} steps before the onset at step {onset}"
        step, how = _choose_newest_clean(position, ceiling)
        return step, f"{how} (no older clean checkpoint is there)"
    return _choose_newest_clean(position, ceiling)


def _choose_newest_clean(position: LadderPosition, ceiling: int) -> tuple[int | None, str]:
    """Return the newest clean step up to the ceiling, and how it was chosen, in words."""
    onset, margin = position.onset, position.ladder.margin_steps
    clean = position.clean
    if not clean and any(checkpoint.layout == Layout.FILE for checkpoint in position.checkpoints):
        return None, f"back to before the onset at step {onset}, to what its script finds there"
    if not clean:
        why = "no clean checkpoint from before the onset is left" if position.checkpoints else "nothing was saved"
        return None, f"back to the start: {why}, and the loss went wrong at step {onset}"
    if fitting := [step for step in clean if step <= ceiling]:
        return fitting[0], f"back to {onset - fitting[0]} steps before the onset at step {onset}"
    back = f"back to {onset - clean[0]} steps before the onset at step {onset}"
    if onset <= margin:
        return clean[0], back
    why = f"no clean checkpoint from at least {margin} steps before it is left; have the job keep more of them"
    return clean[0], f"{back} ({why})"


def _find_skip_window(position: LadderPosition, resume_step: int | None, batches: int) -> tuple[int, int]:
    """Return the first and last sample id of this many batches around the onset, none before the checkpoint."""
    batch_size = _estimate_samples_per_step(position)
    earliest = max((c.consumed_samples or 0 for c in position.checkpoints if c.step == resume_step), default=0)
    first = max(earliest, _find_onset_sample(position, batch_size) - batches // 2 * batch_size)
    return first, first + max(1, batches) * batch_size - 1


def _find_onset_sample(position: LadderPosition, batch_size: int) -> int:
    """Return the id of the first sample of the onset's step, counted on from the nearest checkpoint before it."""
    attempt, onset = position.run.current, position.onset
    earlier = [item for item in position.checkpoints if item.step < onset and item.consumed_samples]
    own = [
        checkpoint
        for checkpoint in earlier
        if checkpoint.attempt == attempt.number or checkpoint.step <= (attempt.resumed_from_step or 0)
    ]
    anchor = max(
        own or earlier,
        key=lambda checkpoint: (checkpoint.step, checkpoint.attempt, checkpoint.consumed_samples or 0),
        default=None,
    )
    step, consumed = (anchor.step, anchor.consumed_samples or 0) if anchor else (0, 0)
    return skipped_samples.advance(
        consumed, (max(1, onset) - 1 - step) * batch_size, skipped_samples.parse_ranges(attempt.skip_samples)
    )


def _estimate_samples_per_step(position: LadderPosition) -> int:
    """Return the samples per step, from the data positions of consecutive checkpoints; 0 if unknown.

    It is the most frequent value of the pairs nearest to the onset: pairs with a skip between them give too much.
    """
    nearest = sorted(_list_samples_per_step(position), key=lambda pair: abs(pair[0] - position.onset))[
        :MAX_CHECKPOINT_PAIRS
    ]
    counted = Counter(samples for _, samples in nearest)
    return min(counted, key=lambda samples: (-counted[samples], samples), default=0)


def _list_samples_per_step(position: LadderPosition) -> Iterator[tuple[int, int]]:
    """Yield the later step of each pair of checkpoints of one attempt, and the samples per step between them."""
    known = sorted(
        (checkpoint.attempt, checkpoint.step, checkpoint.consumed_samples)
        for checkpoint in position.checkpoints
        if checkpoint.consumed_samples is not None
    )
    for number, group in groupby(known, key=lambda entry: entry[0]):
        positions = [(step, consumed) for _, step, consumed in group]
        start = [(0, 0)] if number == 1 else []
        for (before, samples_before), (after, samples_after) in pairwise(start + positions):
            if after > before and samples_after > samples_before:
                yield after, -(-(samples_after - samples_before) // (after - before))
