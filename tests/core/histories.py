"""Play histories drawn from seeds: supervisors interleaved at each port call, faults, people, and a world that changes.

Replay one with `python -m tests.core.histories SEED`, which prints its steps; append `table` for DynamoDB in moto.
The invariants are checked at each port call; at the end the faults cease, and the run must come to rest.
"""

import json
import math
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from moto import mock_aws

from rerail.aws.clients import client
from rerail.aws.dynamodb import DynamoRuns
from rerail.decisions.budgets import with_recent_charges
from rerail.decisions.decision import THE_POLICY, with_attempt_number
from rerail.messages.messages import (
    SWEEP,
    CommandReceived,
    FindingsReceived,
    JobStateChanged,
    Message,
    QueueMessage,
    ReportFiled,
    parse_message,
)
from rerail.model import skipped_samples
from rerail.model.actions import (
    CreateJob,
    Notify,
    PostCommand,
    QuarantineCheckpoints,
    ReleaseWarmPool,
    Severity,
    StopJob,
)
from rerail.model.causes import Cause
from rerail.model.errors import (
    CallFailed,
    CommandNotStored,
    Conflict,
    JobExists,
    JobNotFound,
    RerailError,
    StateUnknown,
    Throttled,
)
from rerail.model.finding import Finding, Kind, Level
from rerail.model.machines import TYPES
from rerail.model.mailbox import Ability, Command, CommandKind, Durability, ReportKind, run_of_report
from rerail.model.policy import Approval, Capacity, Mode, OnExpiry, Policy
from rerail.model.run import JobStatus, Run, RunState, TimelineEntry
from rerail.model.signals import OperatorVerb
from rerail.supervisor.supervisor import Supervisor
from tests.aws.places import TABLE, make_table, our_own_clients
from tests.core.failures import ECC, KILLED, NO_MACHINES, NODE_LOST, OOM
from tests.fakes import BUCKET, DEFAULT, ROLE, Agent, FakeSageMaker, World

BUG = 'AlgorithmError: {"rerail":1,"cause":"user_code","error":"ValueError: x","step":0,"rank":0}, exit code: 1'
FAILURES = {NODE_LOST: Cause.INFRASTRUCTURE, ECC: Cause.HARDWARE, OOM: Cause.OOM, BUG: Cause.USER_CODE}
FAILURES |= {KILLED: Cause.UNKNOWN, NO_MACHINES: Cause.CAPACITY}
# Commands after which Rerail may create a job that nobody wanted before.
LAUNCHING = (
    *(OperatorVerb.RELEASE, OperatorVerb.RESTART, OperatorVerb.CONTINUE),
    *(OperatorVerb.ROLLBACK, OperatorVerb.APPROVE, OperatorVerb.DRILL),
)
STOPPING = (OperatorVerb.STOP, OperatorVerb.RESTART, OperatorVerb.ROLLBACK, OperatorVerb.DRILL, OperatorVerb.APPROVE)
VERBS = (*OperatorVerb, OperatorVerb.HOLD, *[OperatorVerb.RELEASE] * 3)
WRITES = ("create", "stop", "release_warm_pool", "quarantine", "save", "admit", "publish", "publish_change", "post")
MAY_LAST = (RunState.WATCHING, RunState.COMPLETED, RunState.STOPPED, RunState.HELD)
EXPIRY = HOUR = timedelta(hours=1)
OWN, FALLBACKS = "ml.p4d.24xlarge", ("ml.p4de.24xlarge", "ml.g5.12xlarge")
MACHINES = {"InstanceType": OWN, "InstanceCount": 2, "KeepAlivePeriodInSeconds": 1800}
MOST_CALLS, MOST_PAGES, MOST_TRIES = 250, 25, 5
PATIENCE_S = 60.0


class Crash(BaseException):
    """Ends a supervisor at a port call; no handler catches it."""


class Violation(BaseException):
    """An invariant does not hold; no handler of the core catches it."""


@dataclass
class SlowSageMaker(FakeSageMaker):
    """Jobs that stop some time after the request."""

    def stop(self, job_name: str) -> None:
        job = self.jobs.get(job_name)
        if job and job.status is JobStatus.IN_PROGRESS:
            self.jobs[job_name] = replace(job, status=JobStatus.STOPPING, secondary="Stopping")


@dataclass
class Posted:
    """A message on the queue."""

    message: Message
    sent_at: datetime
    tries: int = 0


class Turn:
    """One supervisor that handles one message, in a thread that runs only during `advance`."""

    def __init__(self, history: "History", number: int, posted: Posted) -> None:
        self.history, self.number, self.posted = history, number, posted
        self.read_at = history.now
        self.known: Run | None = None
        self.calls_left, self.calls, self.is_killed = 0.0, 0, False
        self.has_recorded_command = False
        self.outcome: BaseException | None = None
        self.is_over = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        history, received = self.history, self.posted
        self._go.acquire()
        try:
            at = history.world.clock()
            post = QueueMessage(received.sent_at, at) if received.sent_at.second % 2 else None
            history.make_supervisor(self).handle(received.message, post)
        except BaseException as error:
            self.outcome = error
        self.is_over = True
        self._back.release()

    def advance(self, calls: float) -> None:
        """Let the supervisor go on for some port calls."""
        self.calls_left = calls
        self._go.release()
        assert self._back.acquire(timeout=PATIENCE_S), "a supervisor hangs"
        if self.is_over:
            self._thread.join()

    def pause_if_spent(self) -> None:
        """Pause this thread when its calls are used up; raise Crash if the supervisor was killed meanwhile."""
        if self.calls_left < 1 and not self.is_killed:
            self._back.release()
            self._go.acquire()
        self.calls_left -= 1
        if self.is_killed:
            raise Crash


class Port:
    """Stand between a supervisor and one of its ports."""

    def __init__(self, turn: Turn, port: Any) -> None:
        self._turn, self._port = turn, port

    def __getattr__(self, name: str) -> Callable[..., Any]:
        turn, port = self._turn, self._port
        return lambda *args, **kwargs: turn.history.call(turn, port, name, args, kwargs)


class History:
    """One run in a world that is drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        draw = self.rng.choice
        self.world = World()
        self.world.sagemaker = SlowSageMaker(self.world.clock)
        retries = replace(Policy().retries, infrastructure=2, hardware=2)
        limits = replace(Policy().limits, attempts=12, account_relaunches=draw((1, 2, 100, 100)))
        self.policy = replace(DEFAULT, retries=retries, limits=limits, mode=draw((*[Mode.ACT] * 4, *Mode)))
        expiry = Approval(timedelta(minutes=draw((2, 30))), draw([*OnExpiry]), draw([*OnExpiry]))
        self.policy = replace(self.policy, approval=expiry)
        self.policy = replace(self.policy, capacity=Capacity(fallback_after=timedelta(minutes=2), fallbacks=FALLBACKS))
        self.world.policies.by_name["default"] = self.policy
        self.has_agent, self.trouble, self.saves = draw((True, False)), draw((0.0, 0.01, 0.03)), draw((0.3, 1.0, 1.0))
        self.has_manifests, self.abilities = self.has_agent or draw((True, False)), draw(((), *[tuple(Ability)] * 3))
        self.has_trouble = draw((True, False))  # its loss goes wrong more often than people and jobs change
        self.steps: list[str] = []
        self.now = 0  # the number of the step
        self.turns: list[Turn] = []
        self.queue: list[Posted] = []
        self.dead: list[Posted] = []
        self.down: dict[str, int] = {}
        self.hidden: dict[str, datetime] = {}  # until when SageMaker describes no job of that name
        self.is_calm = False
        self.counts: Counter[str] = Counter()
        # What the invariants are about.
        self.record: Run | None = None
        self.modes: list[tuple[int, set[Mode]]] = []
        self.bans: dict[str, int] = {}  # why no job may be created, and since which step
        self.verbs: dict[str, CommandReceived] = {}
        self.expired: set[str] = set()
        self.begun: set[str] = set()
        self.last_said = self.world.clock()
        self.newest_command = 0  # the number of the turn that began with it
        self.grounds: set[str] = set()
        self.failures: Counter[tuple[Cause, int]] = Counter()  # by cause, and GiB of a GPU for a whole batch
        self.fruitless = 0
        self.highest = self.sound = 0  # the newest step that was saved, and that of a sound checkpoint
        self.tainted: list[tuple[int, int]] = []
        self.forged: set[int] = set()
        self.created_at: dict[str, datetime] = {}
        self.paged: set[str] = set()

    # The history

    def play(self) -> None:
        """Play the history; raise AssertionError with the seed and the steps if an invariant does not hold."""
        try:
            self._begin()
            for _ in range(self.rng.randrange(80, 240)):
                self._take_step()
            self._come_to_rest()
        except (Violation, Exception) as error:
            steps = "\n  ".join(self.steps)
            raise AssertionError(f"seed {self.seed}: {error!r}\n  {steps}\nseed {self.seed}: {error}") from error
        finally:
            for turn in self.turns:
                turn.is_killed = True
                turn.advance(0)

    def _begin(self) -> None:
        self._note_mode()
        self.is_calm = True
        self.world.sagemaker.submit("gpt", request={"Environment": {"STEPS": "100"}, "ResourceConfig": MACHINES})
        self._post(JobStateChanged("gpt"))
        self._deliver_all()
        self.is_calm = False
        for _ in range(self.rng.randrange(4)):
            self.world.clock.pass_by(timedelta(minutes=5))
            self._save()
        if self.has_agent:
            self._report()

    def _take_step(self) -> None:
        """Let one thing happen."""
        self.now += 1
        waits = len(self.turns) < 4
        actions: tuple[tuple[float, Callable[[], None]], ...] = (
            (30.0 * bool(self.turns), self._advance),
            (16.0 * (waits and bool(self.queue)), self._start_turn),
            (5.0, self._sweep),
            (1.5 if self.has_trouble else 6.0, self._command),
            (10.0 if self.has_trouble else 4.0, self._find),
            (5.0 * self.has_agent, self._report),
            (2.0 if self.has_trouble else 7.0, self._change_job),
            (6.0 * self.saves, self._save),
            (1.5, self._pause),
            (1.5, self._change_policy),
            (2.0, self._break),
            (1.0, self._repeat),
            (10.0, self._wait),
        )
        self.rng.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()

    def _advance(self) -> None:
        turn = self.rng.choice(self.turns)
        if self.rng.random() < self.trouble:
            self._note(f"s{turn.number} is killed")
            turn.is_killed = True
        self._go_on(turn, self.rng.randrange(1, 16))

    def _start_turn(self) -> None:
        posted = self.queue.pop(self.rng.randrange(len(self.queue)))
        if self.rng.random() < 0.1:
            self.queue.append(replace(posted))  # delivered twice
        self._open_turn(posted)

    def _open_turn(self, posted: Posted) -> Turn:
        self.counts["turns"] += 1
        turn = Turn(self, self.counts["turns"], posted)
        self._note(f"s{turn.number} receives {posted.message}")
        self._expect(posted.message)
        if isinstance(posted.message, CommandReceived):
            self.newest_command = turn.number
        self.turns.append(turn)
        return turn

    def _go_on(self, turn: Turn, calls: float) -> None:
        """Let the supervisor go on; put its message back if it fails."""
        turn.advance(calls)
        if not turn.is_over:
            return
        self.turns.remove(turn)
        if turn.outcome and not isinstance(turn.outcome, RerailError | Crash):
            raise turn.outcome
        self._note(f"s{turn.number} ends: {turn.outcome!r}")
        if turn.outcome is None:
            self._on_handled(turn)
            return
        turn.posted.tries += 1
        (self.queue if turn.posted.tries < MOST_TRIES else self.dead).append(turn.posted)

    def _deliver_all(self) -> None:
        """Deliver what is queued, in order, each message to a supervisor of its own."""
        while self.queue:
            self._go_on(self._open_turn(self.queue.pop(0)), float("inf"))

    def _come_to_rest(self) -> None:
        """Let all faults cease; then the run ends, is held or is watched, nothing is pending, no job is left."""
        for turn in list(self.turns):
            turn.is_killed = self.rng.random() < 0.5
            self._go_on(turn, float("inf"))
        self.is_calm, self.world.pause.paused, self.world.mailbox.closed = True, False, False
        self.world.sagemaker.no_capacity, self.world.checkpoints.moves_at_once = 0, 1000
        self.world.sagemaker.lacking = {}
        self.world.policies.by_name["default"] = replace(self.policy, mode=Mode.ACT)
        self._note_mode()
        self._rest()
        run = self._run()
        if run.state is RunState.WATCHING:
            self._end(run.current.job_name, JobStatus.COMPLETED)
            self._rest()
            self._require(self._run().state is RunState.COMPLETED, "the last job has completed, and the run has not")

    def _rest(self) -> None:
        quiet = 0
        for minutes in (1, 1, 2, *[15] * 18):
            self.world.clock.pass_by(timedelta(minutes=minutes))
            for job in self.world.sagemaker.live():
                if self.world.sagemaker.jobs[job].status is JobStatus.STOPPING:
                    self._end(job, JobStatus.STOPPED)
                self._post(JobStateChanged(job))  # it goes through further states
            version = self._run().version
            self._sweep()
            self._deliver_all()
            quiet = quiet + 1 if self._run().version == version and self._run().state in MAY_LAST else 0
            if quiet == 3:
                break
        run, live = self._run(), self.world.sagemaker.live()
        self._require(self.world.run() == run, "the table has another record than the last that was saved")
        self._require(run.state in MAY_LAST, f"{run.state} for ever: {run.pending}")
        self._require(not run.pending and not run.unpublished, f"pending for ever: {run.pending} {run.unpublished}")
        self._require(live == [run.current.job_name] * run.current.may_be_live, f"live: {live}, {run.state}")
        self._require(run.current.may_be_live or run.state is not RunState.WATCHING, "a run without a job is watched")
        if run.state in (RunState.COMPLETED, RunState.STOPPED):
            self._require(not live and not run.pages, f"the run has ended; live: {live}, open pages: {run.pages}")
        self._require(len(self.world.notice_titles(Severity.PAGE)) <= MOST_PAGES, "too many pages")
        events = [(e.previous_state, e.state) for e in self.world.bus.distinct_events()]
        chained = all(one[1] == other[0] for one, other in pairwise(events))
        self._require(chained and events[-1][1] == run.state, f"a change of state was lost: {events}")

    # What the world does

    def _end(self, job: str, status: JobStatus, reason: str = "", **facts: Any) -> None:
        self._note(f"{job} ends: {status} {reason}")
        self.world.sagemaker.end(job, status, reason, **facts)
        if self.rng.random() < 0.7:
            self._post(JobStateChanged(job))

    def _change_job(self) -> None:
        live = self.world.sagemaker.live()
        if not live:
            self._post(JobStateChanged(self.rng.choice([*self.world.sagemaker.jobs])))  # late
            return
        job, run = live[0], self._run()
        is_stopping = self.world.sagemaker.jobs[job].status is JobStatus.STOPPING
        choice = self.rng.random()
        is_quiet = not self.turns and job == run.current.job_name and run.stop is None
        if is_stopping and choice < 0.7:
            self._end(job, JobStatus.STOPPED)
        elif choice < 0.6:
            reason = self.rng.choice([NODE_LOST, NODE_LOST, ECC, *FAILURES])
            facts = {"training_started_at": None} if reason == NO_MACHINES else {}
            self._end(job, JobStatus.FAILED, reason, metrics={"step": float(self.sound)}, **facts)
            if is_quiet and not run.state.is_end:
                (kind,) = self.world.sagemaker.jobs[job].cluster.instance_types
                self.failures[FAILURES[reason], TYPES[kind].gpu_gib * run.current.microbatches] += 1
                able = next((known.abilities for known in reversed(run.attempts) if known.agent), ())
                splits = reason == OOM and Ability.MICROBATCH in able and run.current.microbatches < 8
                self.fruitless += reason != NO_MACHINES and not splits
        elif choice < 0.7 and not is_stopping:
            self._note(f"a person stops {job}")
            self._ban(f"a person has stopped {job}", unless=run.state is RunState.STOPPING or run.state.is_end)
            self.world.sagemaker.stop(job)
        elif choice < 0.74:
            self._ban(f"{job} has completed", unless=run.stop is not None or run.state.is_end)
            self._end(job, JobStatus.COMPLETED)

    def _ban(self, why: str, *, unless: bool) -> None:
        """Forbid new jobs from now on, unless a supervisor may be about to record that it wants one."""
        if not unless and not self.turns:
            self.bans[why] = self.now

    def _save(self) -> None:
        """Save a checkpoint, which may be torn; or a stranger writes one without a signature."""
        live, run = self.world.sagemaker.live(), self._run()
        if not live or live[0] != run.current.job_name:
            return
        step = self.highest = self.highest + self.rng.choice((20, 50, 100))
        kind = self.rng.random()
        facts: dict[str, Any] = {"attempt": run.current.number, "restart": run.current.restart}
        if not self.has_manifests:
            self.world.checkpoints.save(step, layout="huggingface")
        elif kind < 0.1:
            self.world.checkpoints.commit(step, missing=("a",), **facts)
        elif (
            kind < 0.2 and run.current.agent and any(c.is_signed for c in self.world.checkpoints.saved.get(BUCKET, ()))
        ):
            self.forged.add(step)
            self.world.checkpoints.save(step, **facts)
        else:
            self.world.checkpoints.commit(step, **facts)
        if not self.has_manifests or kind >= 0.1 and step not in self.forged:
            self.sound = step
            self.failures.clear()
            self.fruitless = 0
        self._note(f"{live[0]} saves step {step} ({kind:.2f})")

    def _find(self) -> None:
        """Report a finding about a job, which may have ended."""
        run, kind = self._run(), self.rng.choice((Kind.NON_FINITE, Kind.DIVERGENCE, Kind.THROUGHPUT_DROP, Kind.STALL))
        level = self.rng.choice((Level.INTERVENE, Level.INTERVENE, Level.WARN, Level.RECOVERED))
        onset = max(0, self.sound - self.rng.choice((0, 60, 300)))
        finding = Finding(kind, level, self.sound, onset, "seen", self.world.clock())
        job = self.rng.choice([run.current.job_name] * 3 + [run.attempts[0].job_name])
        self._post(FindingsReceived("gpt", job, (finding,)))

    def _report(self) -> None:
        """Let the agent report something; or a stranger, who has no key."""
        run = self._run()
        self.counts["reports"] += 1
        forges = self.counts["reports"] > 1 and self.rng.random() < 0.25
        key = {"signing_key": self.rng.choice(("", "cd" * 32))} if forges else {}
        attempt = run.current
        agent = Agent(self.world, attempt=attempt.number, job=attempt.job_name, reports=self.counts["reports"], **key)
        command = run.stop.command_id if run.stop else ""
        kind = self.rng.choice([ReportKind.HELLO, ReportKind.ACKNOWLEDGED, *[ReportKind.CHECKPOINT] * 2])
        kind = self.rng.choice((ReportKind.FINDINGS, ReportKind.CRASHED, kind)) if forges else kind
        kind = ReportKind.HELLO if self.counts["reports"] == 1 else kind
        facts: dict[str, Any] = {"abilities": self.abilities} if kind is ReportKind.HELLO else {"command": command}
        if run.state is RunState.RESTARTING and not forges and kind is not ReportKind.HELLO:
            order, kind = attempt.in_place_restarts[-1], ReportKind.RESTARTED
            facts = {
                "command": order.command_id,
                "restart": order.number,
                "step": self.rng.choice((None, self.sound + 1)),
            }
        if kind is ReportKind.CHECKPOINT:
            if not forges:
                self._save()
            facts |= {"step": self.highest, "durability": Durability.REMOTE}
        if kind is ReportKind.FINDINGS:
            facts = {"findings": (Finding(Kind.NON_FINITE, Level.INTERVENE, self.highest, 1, "forged"),)}
        name = agent.files(kind, **facts)
        self._note(f"the {'stranger' if forges else 'agent'} files {kind}")
        self._post(ReportFiled(*run_of_report(name), name))

    def _command(self) -> None:
        """Let an operator say something, which may arrive late; each has a name of their own."""
        run, number, at = self._run(), len(self.verbs) + 1, self.world.clock().replace(microsecond=0)
        verb = self.rng.choice(VERBS)
        step = max(0, self.highest - self.rng.choice((0, 50, 200)))
        facts = {"step": step if verb in (OperatorVerb.ROLLBACK, OperatorVerb.DRILL) else None}
        proposal = run.proposal.id if run.proposal else ""
        at_once = self.rng.random() < 0.3
        said = CommandReceived(
            f"c{number}", "gpt", verb, f"op{number}", "", proposal, asked_at=at, at_once=at_once, **facts
        )
        self.verbs[said.who] = said
        self._post(said)

    def _pause(self) -> None:
        self.world.pause.paused = not self.world.pause.paused
        self._note_mode()

    def _change_policy(self) -> None:
        """Deploy another mode, or no policy at all."""
        policies = self.world.policies.by_name
        policies.pop("default", None)
        if self.rng.random() < 0.7:
            asks = self.policy.mode is Mode.APPROVE
            modes = (Mode.APPROVE, Mode.OBSERVE) if asks else (Mode.ACT, Mode.ACT, *Mode)
            policies["default"] = replace(self.policy, mode=self.rng.choice(modes))
        self._note_mode()

    def _break(self) -> None:
        """Let a part of AWS fail for a while, or machines be short."""
        if self.rng.random() < 0.3:
            self.world.sagemaker.no_capacity = self.rng.randrange(3)
            self.world.sagemaker.lacking = self.rng.choice(
                ({}, {OWN: "CapacityError: none"}, dict.fromkeys((OWN, FALLBACKS[0]), "CapacityError: none"))
            )
            self.world.checkpoints.moves_at_once = self.rng.choice((0, 1, 1000))
            self._note("machines are short")
            return
        port = self.rng.choice(("FakeSageMaker", "runs", "FakeCheckpoints", "FakeBus", "FakeMailbox", "FakeRateLimit"))
        self.down = {port: self.now + self.rng.randrange(20, 120)} if self.trouble else {}
        self._note(f"down: {self.down}")

    def _repeat(self) -> None:
        """Move a message from the dead letters back to the queue."""
        if self.dead:
            self.queue.append(replace(self.dead.pop(self.rng.randrange(len(self.dead))), tries=0))

    def _wait(self) -> None:
        """Let time pass; no function lives for longer than a minute."""
        self.world.clock.pass_by(timedelta(seconds=self.rng.choice((1, 1, 5, 30, 60))))
        if not self.turns:
            self.world.clock.pass_by(timedelta(minutes=self.rng.choice((0, 1, 5, 20, 70))))

    def _sweep(self) -> None:
        self.world.round().run()
        waiting, self.world.queue.waiting = self.world.queue.waiting, []
        for message in waiting:
            received = parse_message(json.dumps({"source": SWEEP, "detail": message}))
            if received not in [posted.message for posted in self.queue]:
                self._post(received)

    def _post(self, message: Message) -> None:
        self.queue.append(Posted(message, self.world.clock()))
        self._note(f"queued: {message}")

    # The supervisors' calls

    def make_supervisor(self, turn: Turn) -> Supervisor:
        return self.world.supervisor(lambda port: Port(turn, port))

    def call(self, turn: Turn, port: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make a port call of a supervisor, which others may precede and which may fail; check everything."""
        turn.pause_if_spent()
        self.now += 1
        self.counts["calls"] += 1
        turn.calls += 1
        self._require(turn.calls <= MOST_CALLS, "a message takes too many calls")
        error, is_after = self._draw_fault("runs" if port is self.world.runs else type(port).__name__, name, args)
        what = format_run(args[0]) if name == "save" else " ".join(map(str, args))
        self._note(f"s{turn.number} {name} {what}{f' -> {error!r}{is_after}' if error else ''}")
        if error and not is_after:
            raise error
        if name in ("create", "stop"):
            self._check_job_call(turn, name, args[0])
        if name == "post" and args[0].kind is CommandKind.RESTART:
            self._check_order(turn, args[0])
        result = getattr(port, name)(*args, **kwargs)
        result = list(result) if name == "open_runs" else result
        if name == "create" and self.trouble:
            hidden = timedelta(seconds=self.rng.choice((0, 0, 5, 30)))
            self.hidden[args[0]["TrainingJobName"]] = self.world.clock() + hidden
        if name == "save":
            self._on_saved(turn, *args)
        if name == "publish":
            self._check_notice(args[0])
        if name in ("load", "save"):
            turn.known, turn.read_at = args[0] if name == "save" else result, self.now
        self._check_world()
        if error:
            raise error
        turn.pause_if_spent()
        return result

    def _draw_fault(self, port: str, name: str, args: tuple[Any, ...]) -> tuple[BaseException | None, bool]:
        """Return what goes wrong with a call, if anything, and whether its effect happens."""
        chance = self.rng.random() / self.trouble if self.trouble and not self.is_calm else math.inf
        refused: Exception = StateUnknown("no answer") if name not in WRITES else Throttled("slow down")
        refused = CommandNotStored("refused") if name == "post" else refused
        if self.down.get(port, 0) > self.now and not self.is_calm:
            return refused, False
        if name == "describe" and self.world.clock() < self.hidden.get(args[0], self.world.clock()):
            return JobNotFound(args[0]), False  # descriptions are eventually consistent after a creation
        chance /= 5 if name in ("create", "stop") else 1
        lost = {"save": Conflict("lost answer"), "create": self.rng.choice((JobExists("again"), CallFailed("lost")))}
        if chance < 1:
            return refused, False
        if chance < 2 and name in WRITES:
            return lost.get(name, CallFailed("lost answer")), True
        return (Crash(), chance > 2.5) if 2 < chance < 3 else (None, False)

    # The invariants

    def _check_world(self) -> None:
        checkpoints, live = self.world.checkpoints, self.world.sagemaker.live()
        self._require(len(live) <= 1, f"two live jobs: {live}")
        count = sum(map(len, checkpoints.saved.values())) + len(checkpoints.quarantined)
        self._require(count == checkpoints.count, "a checkpoint was lost")

    def _check_job_call(self, turn: Turn, name: str, target: Any) -> None:
        """Require that a launch or a stop is recorded, allowed now, and has its reasons."""
        job, run, modes = (
            target if name == "stop" else target["TrainingJobName"],
            turn.known,
            self._modes_since(turn.read_at),
        )
        if run is None or (name == "stop") != (self.world.sagemaker.jobs.get(job, None) is not None):
            self._require(run is not None, f"{name} without a record")
            return  # without effect
        kind = StopJob if name == "stop" else CreateJob
        owed = any(isinstance(action, kind) and action.job_name == job for action in run.pending)
        self._require(
            owed and (name == "stop" or not run.state.is_end),
            f"{name} {job} is not what was recorded: {format_run(run)}",
        )
        self._require(modes != {Mode.PAUSE}, f"{name} {job} while Rerail is paused")
        who = run.stop.approved_by if name == "stop" and run.stop else run.current.approved_by
        is_wanted = who not in ("", THE_POLICY)
        self._require(modes != {Mode.OBSERVE} or is_wanted, f"{name} {job} while Rerail only observes")
        self._require(not modes <= {Mode.APPROVE, Mode.OBSERVE} or who, f"{name} {job} without an approval")
        if name == "create":
            self._check_launch(turn, run, target, modes)
        elif job in self.world.sagemaker.live():
            said = self.verbs.get(run.stop.approved_by) if run.stop else None
            by_people = said is not None and said.verb in STOPPING
            self._require(by_people or job in self.grounds, f"stop {job} without a reason: {run.stop}")

    def _check_launch(self, turn: Turn, run: Run, request: Mapping[str, Any], modes: set[Mode]) -> None:
        """Require that nobody forbids the launch, that it is within the budgets, and that its checkpoint is sound."""
        who, job = run.current.approved_by, run.current.job_name
        for why, since in self.bans.items():
            self._require(turn.read_at <= since, f"create {job}, though {why}")
        gib = TYPES[request["ResourceConfig"]["InstanceType"]].gpu_gib
        gib *= int(request["Environment"].get("RERAIL_MICROBATCHES", 1))
        counts = Counter[Cause]()
        for (cause, had), number in self.failures.items():
            # Larger machines may have enough memory, and so may the same ones for a part of the batch.
            counts[cause] += number if cause is not Cause.OOM or had >= gib else 0
        for cause, count in counts.items():
            budget = self.policy.retries.of(cause)
            self._require(budget is None or count <= budget, f"create {job} after {count} failures: {cause}")
        self._require(self.fruitless < self.policy.limits.attempts_without_progress, f"create {job} without progress")
        self._require(run.current.number <= self.policy.limits.attempts or who, f"create {job} beyond the limit")
        self._check_preparations(run, request)
        uri = request["CheckpointConfig"]["S3Uri"]
        self._require((uri, request["RoleArn"]) == (BUCKET, ROLE), f"create {job} with another role or folder")
        step = int(request["Environment"].get("RERAIL_RESUME_STEP", 0))
        said = self.verbs.get(who)
        if said and said.verb is OperatorVerb.ROLLBACK:
            self._require(step <= (said.step or 0), f"create {job} from step {step}, not {said.step}")
        if step:
            found = [c for c in self.world.checkpoints.saved.get(BUCKET, ()) if c.step == step]
            self._require(found and found[0].is_whole, f"create {job} from step {step}, which is missing")
            self._require(step not in self.forged, f"create {job} from step {step}, which is not signed")
            saved_by = with_attempt_number(run, found[0]).attempt
            bad = any(saved_by <= attempt and step >= onset for attempt, onset in self.tainted)
            self._require(not bad, f"create {job} from step {step}, which is tainted")

    def _check_preparations(self, run: Run, request: Mapping[str, Any]) -> None:
        """Require what precedes a launch, machines that the policy lists, and the account's rate limit."""
        job, now, resources = request["TrainingJobName"], self.world.clock(), request["ResourceConfig"]
        self.created_at.setdefault(job, now)
        recent = sum(now - HOUR < at <= now for at in self.created_at.values())
        self._require(recent <= self.policy.limits.account_relaunches, f"create {job}, the {recent}th in an hour")
        kind, count = resources["InstanceType"], resources["InstanceCount"]
        self._require(kind in (OWN, *FALLBACKS) and count * TYPES[kind].gpus == 2 * TYPES[OWN].gpus, f"type {kind}")
        attempt = int(request["Environment"]["RERAIL_ATTEMPT"])
        is_announced = any(command.attempt == attempt for command in self.world.mailbox.commands)
        self._require(is_announced or any(isinstance(a, PostCommand) for a in run.pending), f"create {job} unannounced")
        for action in run.pending:
            if isinstance(action, ReleaseWarmPool):
                self._require(action.job_name in self.world.sagemaker.released, f"create {job} on bad machines")
            if isinstance(action, QuarantineCheckpoints) and action.is_vital:
                self._require(not self.world.checkpoints.tainted(action), f"create {job} beside tainted checkpoints")

    def _check_order(self, turn: Turn, command: Command) -> None:
        """Require that an order to restart names the current attempt, whose job is not being stopped."""
        run = turn.known
        self._require(run and run.stop is None and run.current.may_be_live, "an order to a job that ends")
        assert run is not None
        self._require((command.attempt, run.state) == (run.current.number, RunState.RESTARTING), "an order unrecorded")
        order, modes = run.current.in_place_restarts[-1], self._modes_since(turn.read_at)
        self._require(command.id == order.command_id, "an order of before")
        is_wanted = order.approved_by not in ("", THE_POLICY)
        is_allowed = Mode.ACT in modes or (Mode.APPROVE in modes and order.approved_by)
        self._require(is_allowed or is_wanted, f"an order while Rerail may not: {modes}")

    def _check_record(self, run: Run) -> None:
        """Require what holds of each record by itself."""
        numbers, saved = [a.number for a in run.attempts], {c.step for c in self.world.checkpoints.all(BUCKET)}
        self._require(numbers == [*range(1, len(numbers) + 1)], f"attempts {numbers}")
        self._require({a.resumed_from_step for a in run.attempts} <= saved | {None}, "a resume from an unsaved step")
        asked = run.proposal
        is_current = asked is None or (asked.attempt == run.current.number and not run.state.is_end)
        self._require(is_current, f"a proposal about another attempt: {asked}")
        self._require(not run.blocked_by or run.state is RunState.WAITING, f"blocked, and {run.state}")
        before_onset = all((rung.resume_step or 0) < max(1, rung.onset_step) for rung in run.rungs_taken)
        self._require(before_onset, f"a rollback to the onset or later: {run.rungs_taken}")
        skipped = [skipped_samples.parse_ranges(attempt.skip_samples) for attempt in run.attempts]
        stays = all(skipped_samples.merge_ranges((*one, *other)) == other for one, other in pairwise(skipped))
        rates = [attempt.rate for attempt in run.attempts]
        self._require(stays and rates == sorted(rates, reverse=True), f"not skipped any more: {skipped} {rates}")
        for attempt in run.attempts:
            orders = attempt.in_place_restarts
            in_turn = [order.number for order in orders] == [*range(1, len(orders) + 1)]
            has_ended = all(order.restarted_at or order.failed for order in orders[:-1])
            self._require(in_turn and has_ended and len(orders) <= self.policy.restart.per_attempt, f"orders: {orders}")
        orders = run.current.in_place_restarts
        is_restarting = run.current.may_be_live and orders and not orders[-1].failed
        self._require(run.state is not RunState.RESTARTING or is_restarting, "restarting without an order")

    def _check_notice(self, notice: Any) -> None:
        if notice.severity is Severity.PAGE:
            self.paged.add(notice.key)
        self._require(not notice.clears or notice.clears in self.paged, f"{notice.clears} was never paged")

    def _on_saved(self, turn: Turn, run: Run, entry: TimelineEntry | None = None, *_: Any) -> None:
        """Check the record against the one before it, and keep it."""
        before, self.record = self.record, run
        self._check_record(run)
        if before is None:
            return
        self._require(run.version == before.version + 1, f"version {run.version} follows {before.version}")
        names = [attempt.job_name for attempt in before.attempts]
        self._require(names == [a.job_name for a in run.attempts][: len(names)], "an attempt was forgotten")
        turn.has_recorded_command = turn.has_recorded_command or run.commands != before.commands
        if run.state is not before.state:
            last = run.unpublished[-1] if run.unpublished else None
            changed = last is not None and (last.before, last.after) == (before.state, run.state)
            self._require(changed, f"no event of {before.state} -> {run.state}")
        if run.state is RunState.HELD is not before.state and not run.held_by:
            notices = [a for a in run.pending if isinstance(a, Notify) and a not in before.pending]
            denied = any(said.verb is OperatorVerb.DENY for said in self.verbs.values())
            is_silent = denied or Mode.OBSERVE in self._modes_since(turn.read_at)
            self._require(is_silent or any(a.severity is Severity.PAGE for a in notices), "a hold without a page")
        self._check_budgets(before, run)
        self._check_approvals(turn, before, run)
        if before.state in (RunState.STOPPED, RunState.COMPLETED) and run.state is RunState.STOPPING:
            self.grounds.add(run.current.job_name)
        is_of_loss = entry and entry.finding in (Kind.NON_FINITE, Kind.DIVERGENCE)
        if entry and is_of_loss and run.stop and run.stop.before_step is not None:
            self.tainted.append((run.current.number, entry.inputs["onset_step"]))
        if run.state is RunState.WATCHING and run.current.onset_step is None:  # a rollback may be withdrawn
            self.tainted = [tainted for tainted in self.tainted if tainted[0] != run.current.number]

    def _check_budgets(self, before: Run, run: Run) -> None:
        """Require that charges are refunded only by progress, an operator, time, or the withdrawal of their stop."""
        progress = run.ledger.progress_step
        if progress != before.ledger.progress_step or run.commands != before.commands:
            saved = {c.step for c in self.world.checkpoints.all(BUCKET) if c.is_whole} - self.forged
            self._require(not progress or progress in saved, f"progress to step {progress}, which was not saved")
            return
        kept = with_recent_charges(before.ledger, window=self.policy.retries.window, at=self.world.clock())
        less = [cause for cause, count in kept.charges.items() if run.ledger.charges.get(cause, 0) < count]
        was_planned = before.stop is not None or before.state is RunState.RESTARTING
        is_withdrawn = was_planned and run.stop is None and run.state is RunState.WATCHING
        self._require(not less or (is_withdrawn and less == [before.current.cause]), f"refunded: {less}")
        self._require(run.ledger.without_progress >= before.ledger.without_progress - is_withdrawn, "refunded")

    def _check_approvals(self, turn: Turn, before: Run, run: Run) -> None:
        """Require approvals where the policy asks for them, and none from a command that came too late."""
        names = [run.held_by, run.stop.approved_by if run.stop else "", *(a.approved_by for a in run.attempts)]
        self._require(not self.expired & set(names), f"an expired command was obeyed: {names}")
        limits = self._modes_since(turn.read_at)
        new = [action for action in run.pending if action not in before.pending]
        is_free = Mode.ACT in limits
        if any(isinstance(action, CreateJob) for action in new):
            self._require(is_free or run.current.approved_by, f"a launch was recorded without an approval: {limits}")
        if any(isinstance(action, StopJob) for action in new) and before.state is not RunState.STOPPING:
            self._require(
                is_free or (run.stop and run.stop.approved_by), f"a stop was recorded without an approval: {limits}"
            )

    def _expect(self, message: Message) -> None:
        """Note what the message allows Rerail to do."""
        match message:
            case FindingsReceived() if message.findings[0].level is Level.INTERVENE:
                self.grounds.add(message.job_name)
            case CommandReceived(asked_at=datetime() as asked_at):
                is_answer = message.verb in (OperatorVerb.APPROVE, OperatorVerb.DENY)  # its proposal expires
                if self.world.clock() - asked_at > EXPIRY and not is_answer:
                    self.expired |= {message.who} - self.begun
                elif message.verb in LAUNCHING:
                    self.bans.clear()
                    self.failures.clear()
                    self.fruitless = 0
                self.begun.add(message.who)
                self.last_said = max(self.last_said, asked_at)

    def _on_handled(self, turn: Turn) -> None:
        """Forbid launches after an operator's hold or stop that was handled, unless another command began meanwhile."""
        said = turn.posted.message
        if not isinstance(said, CommandReceived) or said.verb not in (OperatorVerb.HOLD, OperatorVerb.STOP):
            return
        others = any(isinstance(other.posted.message, CommandReceived) for other in self.turns)
        assert said.asked_at
        is_timely = self.world.clock() - said.asked_at <= EXPIRY and said.asked_at == self.last_said
        if turn.has_recorded_command and is_timely:
            self._ban(f"{said.who} said {said.verb}", unless=others or self.newest_command > turn.number)

    def _modes_since(self, step: int) -> set[Mode]:
        """Return the modes that a supervisor may have read since then."""
        first = max((i for i, (at, _) in enumerate(self.modes) if at <= step), default=0)
        return set().union(*(modes for _, modes in self.modes[first:]))

    def _note_mode(self) -> None:
        deployed, known = self.world.policies.by_name.get("default"), self.record and self.record.last_policy
        modes = {deployed.mode} if deployed else {known.mode if known else Mode.OBSERVE} | self.modes[-1][1]
        if self.world.pause.paused:
            modes = {mode if mode is Mode.OBSERVE else Mode.PAUSE for mode in modes}
        self.modes.append((self.now, modes))
        self._note(f"modes: {sorted(modes)}{'' if deployed else ', the policy is gone'}")

    def _run(self) -> Run:
        self._require(self.record is not None, "the run was not adopted")
        assert self.record is not None
        return self.record

    def _require(self, is_met: object, why: str) -> None:
        if not is_met:
            raise Violation(why)

    def _note(self, step: str) -> None:
        self.steps.append(f"{self.now} {self.world.clock():%H:%M:%S} {step}"[:240])


def format_run(run: Run) -> str:
    """Return a record in short."""
    pending = [type(action).__name__ for action in run.pending]
    return f"v{run.version} {run.state} {run.current.job_name} {run.current.status} {pending}"


def play(seed: int, *, on_table: bool = False) -> History:
    """Play one history over the fake store, or over a table of DynamoDB in moto; return it."""
    history = History(seed)
    if on_table:
        with mock_aws():
            make_table(client("dynamodb"))
            history.world.runs = DynamoRuns(TABLE, lambda: history.world.clock().timestamp())  # type: ignore[assignment]
            history.play()
    else:
        history.play()
    return history


if __name__ == "__main__":
    with our_own_clients():
        try:
            print(*play(int(sys.argv[1]), on_table="table" in sys.argv).steps, sep="\n")
        except AssertionError as error:
            sys.exit(str(error))
