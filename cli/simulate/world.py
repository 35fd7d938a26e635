"""The simulated world: one run on SageMaker, minute by minute, with what goes wrong and how long everything takes."""

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple, Protocol

from cli.simulate.accounts import Accounts, Spent
from cli.simulate.assumptions import Assumptions
from cli.simulate.faults import DAY_MS, START_TEXT, FaultEvent, SimulatedFault, compute_mtbf, draw_faults, read_texts
from cli.simulate.ways import SaveMode, Way
from rerail.accounting.on_call_times import Delay
from rerail.model import skipped_samples
from rerail.model.checkpoint_intervals import SaveInterval, choose_interval
from rerail.model.checkpoints import Checkpoint
from rerail.model.finding import Kind, Level
from rerail.model.mailbox import Command
from rerail.model.run import JobStatus

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SWEEP_S = 60.0
FOLDER = "s3://checkpoints/run/"
# The newest checkpoints, and of older ones the first of each hour: a rollback may have to reach far back.
KEPT, KEPT_HOURS, SOME_MORE = 16, 24, 8
INTERNAL = "InternalServerError: We encountered an internal error.  Please try again."
Z90 = 1.2815515655446004


class MachinePhase(Enum):
    """What the machines do: what their time is spent on, and whether it is billed."""

    NO_JOB = (None, False)
    NEW_MACHINES = (Spent.MACHINES, False)
    POOL = (Spent.MACHINES, True)
    INIT = (Spent.INIT, True)
    TRAIN = (None, True)
    SAVE = (Spent.SAVES, True)
    SNAPSHOT = (Spent.SNAPSHOTS, True)
    DEAD = (Spent.UNNOTICED, True)
    STOPPING = (Spent.STOPPING, True)
    REPAIR = (Spent.REPAIR, False)
    RESTART = (Spent.RESTART, True)


RUNNING = (MachinePhase.INIT, MachinePhase.TRAIN, MachinePhase.SAVE, MachinePhase.SNAPSHOT, MachinePhase.RESTART)


@dataclass(slots=True)
class SimulatedJob:
    """One training job, as SageMaker knows it."""

    name: str
    number: int
    created_ms: int
    resume: int
    status: JobStatus = JobStatus.IN_PROGRESS
    secondary: str = "Starting"
    started_ms: int | None = None
    ended_ms: int | None = None
    reason: str = ""
    repairs: int = 0
    retries: int = 0
    restarts: int = 0
    step: int = 0
    skipped: skipped_samples.Ranges = ()
    rate: float = 1.0
    asked: tuple[skipped_samples.Ranges, float] = ((), 1.0)
    # The mean time between failures in seconds that the supervisor has estimated; None: not known.
    mtbf_s: float | None = None


class Trap(NamedTuple):
    """A place in the work where the same thing goes wrong again, until people fix it, or `sample` is passed over, or
    the learning rate is lower than `rate`."""

    place: int
    fault: SimulatedFault
    text: str
    sample: int = 0
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class SimulatedFinding:
    """A detector's finding; `false` is known to the simulation only."""

    kind: Kind
    onset: int
    at_onset: datetime
    level: Level = Level.INTERVENE
    false: bool = False


class RunObserver(Protocol):
    """The supervision of the simulated run: by people or by Rerail."""

    def begin(self) -> None: ...

    def on_job_changed(self) -> None:
        """Handle a change of the job's state that SageMaker reports."""

    def on_fault(self, fault: SimulatedFault) -> None:
        """Handle a fault that only people and detectors can notice."""

    def on_finding(self, found: SimulatedFinding) -> None:
        """Handle a detector's finding."""

    def on_crash(self, text: str) -> None:
        """Handle the end of the processes, while the job's init waits for a command."""

    def on_restart(self) -> None:
        """Handle a completed restart in place."""


@dataclass(slots=True)
class SimulatedRun:
    """One run on SageMaker; time in whole milliseconds, work in milliseconds of training at full speed."""

    way: Way
    gpus: int
    days: float
    seed: int
    assumed: Assumptions
    factor: float = 1.0
    # The bounds within which the agent chooses the interval, where the way has none of its own.
    bounds: SaveInterval = field(default_factory=SaveInterval)
    now: int = 0
    accounts: Accounts = field(default_factory=Accounts)
    counts: Counter[str] = field(default_factory=Counter)
    phase: MachinePhase = MachinePhase.NO_JOB
    waiting: Spent = Spent.BACKOFF
    place: int = 0
    slow: bool = False
    onset: int | None = None
    job: SimulatedJob | None = None
    saved: list[Checkpoint] = field(default_factory=list)
    snapshot: int | None = None
    pool_until: int = -1
    bad_gpus: int = 0
    spares: int = 0
    traps: list[Trap] = field(default_factory=list)
    watch: RunObserver = field(init=False)
    interval: int = field(init=False)
    # The last measured stall of a checkpoint, and its time until it was durable, in seconds.
    measured: tuple[float, float] | None = None
    _dead: tuple[SimulatedFault | None, str] | None = None
    _heap: list[tuple[int, int, int | None, int | None, Callable[..., None], tuple[Any, ...]]] = field(
        default_factory=list
    )
    _pushed: int = 0
    _generation: int = 0
    _room_at: int = 0
    _plan: int = 0
    _next_save: int = 0
    _next_snapshot: int = 0
    _dice: dict[str, random.Random] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spares = self.most_spares
        self.interval = self._choose_interval()
        for event in draw_faults(self.gpus, self.days, self.seed, step_s=self.assumed.step_s, factor=self.factor):
            self._push(event.at, self._apply, event)

    # What watchers may ask and do.

    def run(self) -> None:
        """Simulate from the first launch to the last day."""
        end = int(self.days * DAY_MS)
        self.watch.begin()
        while self._heap and self._heap[0][0] <= end:
            at, _, generation, plan, act, given = heapq.heappop(self._heap)
            if generation in (None, self._generation) and plan in (None, self._plan):
                self._advance(at)
                act(*given)
        self._advance(end)

    def get_moment(self, ms: int | None = None) -> datetime:
        return BEGIN + timedelta(milliseconds=self.now if ms is None else ms)

    def get_dice(self, what: str) -> random.Random:
        """Return the random stream of a purpose, so that ways that differ in one thing share all others."""
        return self._dice.setdefault(what, random.Random(f"{self.seed}:{what}"))

    def draw_delay(self, delay: Delay, what: str) -> float:
        """Return the seconds that people take."""
        sigma = math.log(delay.p90 / delay.median) / Z90
        return 60 * delay.median * math.exp(self.get_dice(what).gauss(0.0, sigma))

    def schedule(self, seconds: float, act: Callable[..., None], *given: Any) -> None:
        self._push(self.now + _ms(seconds), act, *given)

    @property
    def stall_s(self) -> float:
        by = {SaveMode.SYNC: self.assumed.sync_stall_s, SaveMode.ASYNC: self.assumed.async_stall_s}
        return by.get(self.way.save, self.assumed.arena_stall_s)

    @property
    def most_spares(self) -> int:
        """Machines in the job beyond those that train."""
        return math.ceil(self.way.spares * self.gpus / self.assumed.gpus_a_machine)

    @property
    def step(self) -> int:
        """The last completed step."""
        return self.place // _ms(self.assumed.step_s)

    @property
    def is_live(self) -> bool:
        return self.job is not None and not self.job.status.is_terminal

    def launch(
        self,
        name: str,
        number: int,
        *,
        resume_step: int | None,
        skip: str = "",
        rate: float = 1.0,
        mtbf_s: float | None = None,
    ) -> bool:
        """Create a job if there is capacity, in the warm pool if there is one; return whether it was created.

        `skip` are the samples that the job leaves out; `mtbf_s` is the estimate that it is given.
        """
        assert not self.is_live
        warm = self.pool_until > self.now
        if not warm and not self._has_room():
            self.counts["refusals"] += 1
            return False
        self.pool_until, self.waiting = -1, Spent.BACKOFF
        if not warm:
            self.bad_gpus, self.slow, self.spares = 0, False, self.most_spares
        self.job = SimulatedJob(
            name, number, self.now, self._at(resume_step), skipped=skipped_samples.parse_ranges(skip), rate=rate
        )
        self.job.asked, self.job.mtbf_s = (self.job.skipped, self.job.rate), mtbf_s
        self._pass_over()
        self.counts["launches"] += 1
        self._enter(MachinePhase.POOL if warm else MachinePhase.NEW_MACHINES)
        self._live(self.assumed.warm_s if warm or self.way.standby else self.assumed.cold_s, self._container)
        return True

    def _has_room(self) -> bool:
        if self.now and not self.way.standby and self.now >= self._room_at:
            short = self.get_dice("room").random() < self.assumed.no_room
            self._room_at = self.now + _ms(self.get_dice("room").expovariate(1.0) * self.assumed.room_s * short)
        return self.now >= self._room_at

    def stop(self) -> None:
        """Stop the job; an ended job is left unchanged."""
        if self.job is None or self.job.status is not JobStatus.IN_PROGRESS:
            return
        self.job.status, self.job.secondary = JobStatus.STOPPING, "Stopping"
        self._enter(MachinePhase.STOPPING)
        self._live(self.assumed.stop_s, self._ended, JobStatus.STOPPED, "", True)

    def release_pool(self) -> None:
        self.pool_until = -1

    def save_now(self, then: Callable[[int], None]) -> None:
        """Save at the end of the current step, and call `then` when it is durable; without training, save nothing."""
        self._live(self.assumed.step_s, self._save, "emergency", then)

    def restart(self, *, resume_step: int | None, order: Command | None = None) -> None:
        """Restart the training processes in the job; `resume_step` None resumes from the newest state.

        The job's launcher does so without a command, too.
        """
        assert self.job and self.is_live
        if order:
            self.job.restarts = order.restart
            self.job.skipped, self.job.rate = skipped_samples.parse_ranges(order.skip_samples), order.rate
            self._pass_over()
        place = self.snapshot if resume_step is None else None
        seconds = self.assumed.restart_s + self.assumed.init_s
        seconds += self.assumed.load_s if place is None else self.assumed.peer_load_s
        step = self.find_newest() if resume_step is None else resume_step
        self.job.resume = self._at(step) if place is None else place
        self.counts["in_place"] += 1
        self._enter(MachinePhase.RESTART)
        if self.get_dice("start").random() < self.assumed.start_fails:
            self._live(seconds, self._gone, None, _words(START_TEXT, self.get_dice("words")))
        else:
            self._live(seconds, self._again_in_place)

    def let_end(self) -> None:
        """End a crashed job, because no command will come."""
        if self._dead:
            self._live(0.0, self._gone, *self._dead)

    def find_newest(self, *, before: int | None = None) -> int | None:
        """Return the step of the newest durable checkpoint, older than `before` if that is given."""
        step_ms = _ms(self.assumed.step_s)
        return next((c.step for c in self.saved if before is None or c.step * step_ms < before), None)

    def remove_causes(self) -> None:
        """Remove the faults that would happen again, as people do."""
        self.traps.clear()

    # What happens.

    def _choose_interval(self) -> int:
        """Return the training time between two checkpoints in milliseconds, as the agent of the job chooses it."""
        if self.way.interval_s is not None:
            return _ms(self.way.interval_s)
        mtbf_s = self.job.mtbf_s if self.job and self.job.mtbf_s is not None else compute_mtbf(self.gpus)
        stall_s, durable_s = self.measured or (None, 0.0)
        return _ms(choose_interval(self.bounds, mtbf_s=mtbf_s, stall_s=stall_s, durable_s=durable_s))

    def _at(self, step: int | None) -> int:
        """The place in the work after a step, never beyond where the run has come."""
        return min(self.place, (step or 0) * _ms(self.assumed.step_s))

    def _pass_over(self) -> None:
        """What would make the loss go wrong again is not seen again, or trained on more carefully."""
        assert self.job
        job = self.job
        self.traps = [
            trap
            for trap in self.traps
            if trap.fault is not SimulatedFault.DIVERGENCE
            or not (job.rate < trap.rate or any(first <= trap.sample <= last for first, last in job.skipped))
        ]

    def _sample(self, step: int) -> int:
        """The id of the next sample after so many steps."""
        return skipped_samples.advance(0, step * self.assumed.batch, self.job.skipped if self.job else ())

    def _push(
        self, at: int, act: Callable[..., None], *given: Any, generation: int | None = None, plan: int | None = None
    ) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at, self._pushed, generation, plan, act, given))

    def _live(self, seconds: float, act: Callable[..., None], *given: Any) -> None:
        """Something that happens only if the processes live until then."""
        self._push(self.now + _ms(seconds), act, *given, generation=self._generation)

    def _advance(self, to: int) -> None:
        passed, self.now = to - self.now, to
        if not passed:
            return
        if self.phase is MachinePhase.TRAIN:
            work = passed - int(passed * self.assumed.slow_share) if self.slow else passed
            self.place += work
            self.accounts.book(Spent.TRAINED, work, billed=True)
            self.accounts.book(Spent.SLOW, passed - work, billed=True)
        elif self.phase is MachinePhase.NO_JOB:
            self.accounts.book(self.waiting, passed, billed=self.pool_until > 0)
        else:
            spent, billed = self.phase.value
            self.accounts.book(spent, passed, billed=billed)

    def _enter(self, phase: MachinePhase) -> None:
        """A new phase in which nothing of the old one goes on."""
        self._generation += 1
        self.phase, self._dead = phase, None

    def _container(self) -> None:
        """The machines are there: processes start, find each other, and load."""
        assert self.job
        self._enter(MachinePhase.INIT)
        self.job.secondary = "Training"
        self.job.started_ms = self.job.started_ms or self.now
        self._said()
        seconds = self.assumed.init_s + self.assumed.load_s
        if self.bad_gpus:
            self._live(self.assumed.init_s, self._die, SimulatedFault.GPU, _words("hardware", self.get_dice("words")))
        elif self.get_dice("start").random() < self.assumed.start_fails:
            self._live(seconds, self._die, None, _words(START_TEXT, self.get_dice("words")))
        else:
            self._live(seconds, self._first_step)

    def _first_step(self) -> None:
        assert self.job
        self._restore(self.job.resume)
        if len(self.saved) < 2:
            self.measured = None  # the first checkpoint does not hold its own stall
        self.interval = self._choose_interval()
        self._next_save, self._next_snapshot = self.now + self.interval, self.now + _ms(self.assumed.snapshot_every_s)
        self._train()
        if self.onset is not None:
            self._detect(Kind.DIVERGENCE, self.assumed.diverged_rows)
        if self.slow:
            self._detect(Kind.THROUGHPUT_DROP, self.assumed.slow_rows)

    def _again_in_place(self) -> None:
        self._first_step()
        self._live(self.assumed.step_s + self.assumed.event_s + self.way.later_s, self.watch.on_restart)

    def _restore(self, place: int) -> None:
        lost = self.place - place
        self.accounts.lose(lost)
        self.counts["lost_steps"] += lost // _ms(self.assumed.step_s)
        self.place, self.snapshot = place, None
        if self.onset is not None and place <= self.onset:
            self.onset = None

    def _train(self) -> None:
        """Training goes on, until the next save, snapshot or trap."""
        self.phase = MachinePhase.TRAIN
        self._plan += 1
        self._push(self._next_save, self._save, "periodic", None, generation=self._generation, plan=self._plan)
        if self.way.snapshots:
            self._push(self._next_snapshot, self._copy, generation=self._generation, plan=self._plan)
        ahead = min((trap for trap in self.traps if trap.place >= self.place), default=None)
        if ahead:
            speed = 1 - self.assumed.slow_share if self.slow else 1.0
            at = self.now + math.ceil((ahead.place - self.place) / speed) + 1
            self._push(at, self._trapped, ahead, generation=self._generation, plan=self._plan)

    def _save(self, why: str, then: Callable[[int], None] | None) -> None:
        if self.phase is not MachinePhase.TRAIN:  # a save or a snapshot is under way: right after it
            if self.phase in RUNNING:
                self._live(1.0, self._save, why, then)
            return
        self.phase = MachinePhase.SAVE
        self.measured = self.stall_s, self.stall_s + self.assumed.durable_s
        self.interval = self._choose_interval()
        self._next_save = self.now + self.interval + _ms(self.stall_s)
        self._plan += 1
        self._live(self.stall_s, self._written, self.step, self.now, why, then)

    def _written(self, step: int, at: int, why: str, then: Callable[[int], None] | None) -> None:
        self._train()
        self._live(self.assumed.durable_s, self._durable, step, at, why, then)

    def _durable(self, step: int, at: int, why: str, then: Callable[[int], None] | None) -> None:
        assert self.job
        checkpoint = Checkpoint(
            uri=f"{FOLDER}step-{step}/",
            step=step,
            attempt=self.job.number,
            saved_at=self.get_moment(at),
            reason=why,
            restart=self.job.restarts,
            consumed_samples=self._sample(step),
        )
        self.saved = _kept([checkpoint, *(c for c in self.saved if c.step != step)])
        self.counts["saves"] += 1
        if then:
            then(step)

    def _copy(self) -> None:
        self.phase = MachinePhase.SNAPSHOT
        self._plan += 1
        self._next_snapshot = self.now + _ms(self.assumed.snapshot_every_s)
        self._live(self.assumed.snapshot_stall_s, self._copied, self.place)

    def _copied(self, place: int) -> None:
        self.snapshot = place
        self._train()

    def _trapped(self, trap: Trap) -> None:
        if trap.fault is SimulatedFault.SOFTWARE:
            self._die(trap.fault, trap.text)
        else:
            self._diverge()

    def _apply(self, event: FaultEvent) -> None:
        if self.phase not in RUNNING:
            return
        match event.fault:
            case SimulatedFault.GPU:
                self.bad_gpus += 1
                self._die(event.fault, event.text)
            case SimulatedFault.HOST:
                self._die(event.fault, INTERNAL)
            case SimulatedFault.NETWORK:
                self._hang(event.text)
            case SimulatedFault.SOFTWARE:
                if self.phase is MachinePhase.TRAIN and event.chance < self.assumed.bug_stays:
                    self.traps.append(Trap(self.place, event.fault, event.text))
                self._die(event.fault, event.text)
            case (
                SimulatedFault.SLOW | SimulatedFault.DIVERGENCE | SimulatedFault.SPIKE | SimulatedFault.FALSE_ALARM
            ) if self.phase is MachinePhase.TRAIN:
                self._mislead(event)

    def _mislead(self, event: FaultEvent) -> None:
        """What does not end the processes."""
        match event.fault:
            case SimulatedFault.SLOW if not self.slow:
                self.slow = True
                self._train()
                self.watch.on_fault(event.fault)
                self._detect(Kind.THROUGHPUT_DROP, self.assumed.slow_rows)
            case SimulatedFault.DIVERGENCE if self.onset is None:
                if event.chance < self.assumed.diverges_again:
                    rate = self.job.rate if self.job else 1.0
                    self.traps.append(Trap(self.place, event.fault, "", self._sample(self.step), rate))
                self._diverge()
            case SimulatedFault.SPIKE:
                onset, at = self.step, self.get_moment()
                self._notify(SimulatedFinding(Kind.LOSS_SPIKE, onset, at, Level.WARN))
                self._live(
                    self.assumed.spike_rows * self._row_s,
                    self._notify,
                    SimulatedFinding(Kind.LOSS_SPIKE, onset, at, Level.RECOVERED),
                )
                if event.chance < self.assumed.spike_acted_on:
                    self._detect(Kind.DIVERGENCE, self.assumed.diverged_rows, false=True)
            case SimulatedFault.FALSE_ALARM:
                self._detect(Kind.DIVERGENCE, self.assumed.diverged_rows, false=True)

    def _diverge(self) -> None:
        if self.onset is not None:
            return
        self.counts[SimulatedFault.DIVERGENCE] += 1
        self.onset = self.place
        self.watch.on_fault(SimulatedFault.DIVERGENCE)
        self._detect(Kind.DIVERGENCE, self.assumed.diverged_rows)

    def _detect(self, kind: Kind, rows: int, *, false: bool = False) -> None:
        onset = self.step if self.onset is None else self.onset // _ms(self.assumed.step_s)
        lag_s = 0.0 if self.way.agent else self.assumed.publish_s
        self._live(
            rows * self._row_s + lag_s, self._notify, SimulatedFinding(kind, onset, self.get_moment(), false=false)
        )

    @property
    def _row_s(self) -> float:
        """Seconds from one row that is judged to the next."""
        if not self.way.agent:
            return SWEEP_S
        return self.assumed.step_s / (1 - self.assumed.slow_share if self.slow else 1.0)

    def _notify(self, found: SimulatedFinding) -> None:
        self._live(self.assumed.event_s + self.way.later_s, self.watch.on_finding, found)

    def _hang(self, text: str) -> None:
        self.counts[SimulatedFault.NETWORK] += 1
        self._enter(MachinePhase.DEAD)
        self._live(self.assumed.watchdog_s, self._ended, JobStatus.FAILED, text, True)
        found_s = self.assumed.hang_found_s if self.way.agent else self.assumed.hang_found_blind_s
        self._live(found_s, self._notify, SimulatedFinding(Kind.STALL, self.step, self.get_moment()))

    def _die(self, fault: SimulatedFault | None, text: str) -> None:
        """The processes are dead; the job's end takes a moment to be seen."""
        self.counts[fault or "start"] += 1
        self._enter(MachinePhase.DEAD)
        self._dead = (fault, text)
        settles = self.get_dice("settles").uniform(*self.assumed.settles_s)
        swapped = fault is SimulatedFault.GPU or (fault is SimulatedFault.HOST and self.way.outlives)
        if swapped and self.spares:
            self.spares, self.bad_gpus = self.spares - 1, 0
            self._live(settles, self._swap)
        elif self.way.in_place and fault not in (SimulatedFault.HOST, SimulatedFault.GPU):
            seen_s = settles + self.assumed.event_s + self.way.later_s
            self._live(seen_s, self.watch.on_crash, text)
            self._live(seen_s + self.assumed.order_wait_s, self._gone, fault, text)
        else:
            self._live(settles, self._gone, fault, text)

    def _swap(self) -> None:
        """The launcher goes on with a spare machine, and SageMaker hears nothing of it."""
        self.restart(resume_step=None)

    def _gone(self, fault: SimulatedFault | None, text: str) -> None:
        """SageMaker repairs or retries, or the job has failed."""
        assert self.job
        if self.way.repairs and fault is SimulatedFault.GPU and self.job.repairs < self.assumed.repairs:
            self.job.repairs += 1
            self.bad_gpus = 0
            self._again(MachinePhase.REPAIR, self.assumed.warm_s if self.way.standby else self.assumed.repair_s)
        elif self.way.retries and text == INTERNAL and self.job.retries < self.assumed.internal_retries:
            self.job.retries += 1
            self.bad_gpus, self.slow = 0, False
            self._again(MachinePhase.NEW_MACHINES, self.assumed.cold_s)
        else:
            self._ended(JobStatus.FAILED, text, fault is not SimulatedFault.HOST)

    def _again(self, phase: MachinePhase, seconds: float) -> None:
        """The same job once more, from its newest checkpoint, with the environment of its first start."""
        assert self.job
        self.job.skipped, self.job.rate = self.job.asked
        self.counts["repairs"] += 1
        self.job.secondary = "Starting"
        self.job.resume, self.job.restarts = self._at(self.find_newest()), 0
        self._enter(phase)
        self._live(seconds, self._container)
        self._said()

    def _ended(self, status: JobStatus, text: str, pool: bool) -> None:
        assert self.job
        self.job.status, self.job.secondary, self.job.reason = status, status.value, text
        self.job.ended_ms, self.job.step = self.now, self.step
        self._enter(MachinePhase.NO_JOB)
        self.waiting = Spent.UNNOTICED
        if pool and self.way.keep_alive_s:
            self.pool_until = self.now + 1000 * self.way.keep_alive_s
            self._push(self.pool_until, self._expire, self.pool_until)
        self._said()

    def _expire(self, until: int) -> None:
        if self.pool_until == until:
            self.pool_until = -1

    def _said(self) -> None:
        """SageMaker tells of a change; now and then it does not."""
        if self.get_dice("events").random() >= self.assumed.event_lost:
            self.schedule(self.assumed.event_s + self.way.later_s, self.watch.on_job_changed)


def _kept(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    if len(checkpoints) < KEPT + KEPT_HOURS + SOME_MORE:
        return checkpoints
    hours = {c.saved_at.replace(minute=0, second=0, microsecond=0): c for c in checkpoints[KEPT:]}
    return [*checkpoints[:KEPT], *list(hours.values())[:KEPT_HOURS]]


def _words(kind: str, chance: random.Random) -> str:
    return f"AlgorithmError: {chance.choice(read_texts(kind))}"[:1024]


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
