"""The ladder for a loss that does not mend: replay, skip data, skip more from farther back, lower the rate, hold.

A rung is climbed when the trouble comes again where it was, or little beyond; one far beyond is a new trouble, and
starts with a replay again. What a rung skips is named by absolute sample ids, and stays skipped in later attempts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import groupby, pairwise

from rerail.decisions.checkpoint_health import with_health
from rerail.decisions.remedies import Hold
from rerail.model import skipped_samples as skips
from rerail.model.checkpoints import Checkpoint, Health
from rerail.model.mailbox import Ability
from rerail.model.policy import Ladder, Policy
from rerail.model.run import Run, RungTaken
from rerail.model.runbooks import Runbook

KEPT_CLIMBS = 30
PAIRS = 8  # of checkpoints around the onset, to learn from how many samples a step takes


class Rung(StrEnum):
    """What is done about the trouble, from the cheapest on; each does what those before it do, and more."""

    REPLAY = "replay"
    SKIP = "skip"
    FAR_SKIP = "far_skip"
    RATE = "lower_rate"


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """One rung for one trouble: where to resume (None: from the start), all samples to pass over, the factor on the
    learning rate, and why in words."""

    rung: Rung
    resume_step: int | None
    skip_samples: str
    rate: float
    why: str


@dataclass(frozen=True, slots=True)
class LadderPosition:
    """Where a trouble began, what there is to go back to (newest first), and what was tried for it before."""

    run: Run
    onset: int
    ladder: Ladder
    saves: tuple[Checkpoint, ...]
    tried: tuple[RungTaken, ...]

    @property
    def clean(self) -> list[int]:
        """The steps that may be gone back to, newest first: all are older than the onset."""
        sound = (c.step for c in self.saves if c.is_whole and c.health is Health.CLEAN and c.step < self.onset)
        return sorted(set(sound), reverse=True)

    @property
    def limit(self) -> int:
        """The newest step that is a margin older than the onset."""
        return self.onset - self.ladder.margin_steps


def plan_rollback(run: Run, onset_step: int, checkpoints: Sequence[Checkpoint], policy: Policy) -> RollbackPlan | Hold:
    """The next rung for a loss that went wrong at a step, or why there is none; the same input has the same answer."""
    tried = select_rungs_taken(run, onset_step, policy)
    place = LadderPosition(run, onset_step, policy.ladder, with_health(run, checkpoints), tried)
    reached = max((_number(climb.rung) for climb in tried), default=0)
    passed_over: list[str] = []
    for rung in list(Rung)[reached:]:
        spent = sum(climb.rung == rung for climb in tried)
        if spent >= _tries(policy.ladder)[rung]:
            continue
        if obstacle := _obstacle(place, rung):
            passed_over.append(f"{rung} is passed over: {obstacle}")
            continue
        found = _planned(place, rung)
        return replace(found, why="; ".join([f"rung {rung}: {found.why}", *passed_over]))
    climbed = ", ".join(f"{climb.rung} in attempt {climb.attempt}" for climb in tried) or "nothing"
    why = "; ".join([f"the loss went wrong again at step {onset_step} after {climbed}", *passed_over])
    advice = "look at the data and the learning rate before the onset, then release the run"
    return Hold(why, advice, Runbook.DIVERGED)


def with_rung_taken(run: Run, planned: RollbackPlan, onset_step: int, *, at: datetime) -> Run:
    """The run whose current attempt goes on from a rung; it remembers the climb."""
    attempt = replace(
        run.current, skip_samples=planned.skip_samples, rate=planned.rate, rung=planned.rung.value
    )  # fmt: skip
    climb = RungTaken(
        rung=planned.rung.value,
        attempt=attempt.number,
        onset_step=onset_step,
        resume_step=planned.resume_step,
        skip_samples=planned.skip_samples,
        rate=planned.rate,
        at=at,
    )
    attempts = (*run.attempts[:-1], attempt)
    return replace(run, attempts=attempts, climbs=(*run.climbs, climb)[-KEPT_CLIMBS:])


def select_rungs_taken(run: Run, onset_step: int, policy: Policy) -> tuple[RungTaken, ...]:
    """The rungs climbed for it so far, oldest first: each time it began no more than `near_steps` beyond the last."""
    found: list[RungTaken] = []
    for climb in reversed(run.climbs):
        if onset_step > climb.onset_step + policy.ladder.near_steps:
            break
        found.insert(0, climb)
        onset_step = climb.onset_step
    return tuple(found)


def _number(rung: str) -> int:
    return list(Rung).index(Rung(rung))


def _tries(ladder: Ladder) -> dict[Rung, int]:
    return {
        Rung.REPLAY: ladder.replays,
        Rung.SKIP: ladder.skips,
        Rung.FAR_SKIP: ladder.far_skips,
        Rung.RATE: ladder.lower_rates,
    }


def _obstacle(place: LadderPosition, rung: Rung) -> str:
    """Why a rung cannot be climbed, or nothing."""
    attempt, ladder = place.run.current, place.ladder
    # The same script in each attempt: one hello may be lost.
    able = {ability for each in place.run.attempts for ability in each.abilities}
    match rung:
        case Rung.REPLAY:
            return ""
        case Rung.SKIP | Rung.FAR_SKIP:
            if Ability.SKIP not in able:
                return "the script does not say that it honours RERAIL_SKIP_SAMPLES"
            return "" if _samples_a_step(place) else "no checkpoint says how many samples it had consumed"
        case Rung.RATE:
            if Ability.RATE not in able:
                return "the script does not say that it honours RERAIL_LR_SCALE"
            lowest = attempt.rate * ladder.rate_factor < ladder.least_rate
            return f"the learning rate is at {attempt.rate:g} of the schedule already" if lowest else ""


def _planned(place: LadderPosition, rung: Rung) -> RollbackPlan:
    attempt, ladder = place.run.current, place.ladder
    step, whence = _resume(place, rung)
    calm = RollbackPlan(rung, step, attempt.skip_samples, attempt.rate, whence)
    match rung:
        case Rung.REPLAY:
            return calm
        case Rung.SKIP | Rung.FAR_SKIP:
            batches = ladder.skip_batches if rung is Rung.SKIP else ladder.far_skip_batches
            first, last = _window(place, step, batches)
            skipped = skips.format_ranges((*skips.parse_ranges(attempt.skip_samples), (first, last)))
            why = f"{whence}, skipping samples {first}-{last} ({batches} batches around the onset)"
            return replace(calm, skip_samples=skipped, why=why)
        case Rung.RATE:
            rate = round(attempt.rate * ladder.rate_factor, 6)
            why = f"{whence}, with the learning rate at {rate:g} of the schedule"
            return replace(calm, rate=rate, why=why)


def _resume(place: LadderPosition, rung: Rung) -> tuple[int | None, str]:
    """The step to go back to, and in words how that was chosen."""
    onset, last = place.onset, place.tried[-1].resume_step if place.tried else None
    if not place.run.checkpoint_uri:
        return max(0, onset - 1), f"back to before step {onset}, to what the job itself finds there"
    ceiling = place.limit if last is None or rung in (Rung.REPLAY, Rung.SKIP) else min(place.limit, last)
    if rung is Rung.FAR_SKIP and last is not None:
        if older := [step for step in place.clean if step < last and step <= place.limit]:
            return older[0], f"farther back than before, to {onset - older[0]} steps before the onset at step {onset}"
        step, whence = _newest(place, ceiling)
        return step, f"{whence} (no older clean checkpoint is there)"
    return _newest(place, ceiling)


def _newest(place: LadderPosition, ceiling: int) -> tuple[int | None, str]:
    onset, margin = place.onset, place.ladder.margin_steps
    clean = place.clean
    if not clean:
        lost = "no clean checkpoint from before the onset is left" if place.saves else "nothing was saved"
        return None, f"back to the start: {lost}, and the loss went wrong at step {onset}"
    if fitting := [step for step in clean if step <= ceiling]:
        return fitting[0], f"back to {onset - fitting[0]} steps before the onset at step {onset}"
    back = f"back to {onset - clean[0]} steps before the onset at step {onset}"
    if onset <= margin:
        return clean[0], back
    lost = f"no clean checkpoint from at least {margin} steps before it is left; have the job keep more of them"
    return clean[0], f"{back} ({lost})"


def _window(place: LadderPosition, resume_step: int | None, batches: int) -> tuple[int, int]:
    """First and last id of so many batches around the onset, none of them from before the checkpoint."""
    batch = _samples_a_step(place)
    earliest = max((c.consumed_samples or 0 for c in place.saves if c.step == resume_step), default=0)
    first = max(earliest, _position(place, batch) - batches // 2 * batch)
    return first, first + max(1, batches) * batch - 1


def _position(place: LadderPosition, batch: int) -> int:
    """The id of the first sample of the step at which the trouble began, counted on from a checkpoint on its way."""
    attempt, onset = place.run.current, place.onset
    behind = [c for c in place.saves if c.step < onset and c.consumed_samples]
    own = [c for c in behind if c.attempt == attempt.number or c.step <= (attempt.resumed_from_step or 0)]
    anchor = max(own or behind, key=lambda c: (c.step, c.attempt, c.consumed_samples or 0), default=None)
    at, consumed = (anchor.step, anchor.consumed_samples or 0) if anchor else (0, 0)
    return skips.advance(consumed, (max(1, onset) - 1 - at) * batch, skips.parse_ranges(attempt.skip_samples))


def _samples_a_step(place: LadderPosition) -> int:
    """By the data positions of checkpoints that one attempt saved one after the other; 0 where nobody can tell.

    The most frequent answer of those nearest to the onset: a pair with a skip between them says too much."""
    nearest = sorted(_steps_between(place), key=lambda pair: abs(pair[0] - place.onset))[:PAIRS]
    counted = Counter(samples for _, samples in nearest)
    return min(counted, key=lambda samples: (-counted[samples], samples), default=0)


def _steps_between(place: LadderPosition) -> Iterator[tuple[int, int]]:
    """The later step of each pair, and how many samples were consumed a step since the earlier."""
    known = sorted((c.attempt, c.step, c.consumed_samples) for c in place.saves if c.consumed_samples is not None)
    for number, saves in groupby(known, key=lambda save: save[0]):
        positions = [(step, consumed) for _, step, consumed in saves]
        begin = [(0, 0)] if number == 1 else []
        for (before, there), (after, here) in pairwise(begin + positions):
            if after > before and here > there:
                yield after, -(-(here - there) // (after - before))
