"""Check the invariants under any order, repetition, loss and delay of signals, crashes, operators, pauses and modes.

While Rerail is paused nothing is stopped or created. In the mode `approve` nothing costly is done without an approval
or its expiry, one approval covers one action, and the account's rate limit is never exceeded.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rerail.decisions.budgets import with_recent_charges
from rerail.decisions.decision import with_attempt_number
from rerail.messages.messages import (
    SWEEP,
    CommandReceived,
    FindingsReceived,
    JobStateChanged,
    Message,
    ReportFiled,
    RunDue,
    parse_message,
)
from rerail.model import skipped_samples
from rerail.model.actions import ClearedBy, CopyCheckpoint, QuarantineCheckpoints, ReleaseWarmPool, Severity
from rerail.model.checkpoint_layouts import Layout
from rerail.model.checkpoints import EMERGENCY
from rerail.model.errors import CommandNotStored, StateUnknown, Throttled
from rerail.model.finding import Finding, Kind, Level
from rerail.model.machines import TYPES
from rerail.model.mailbox import Ability, Command, CommandKind, Durability, ReportKind, make_change_key, make_report_key
from rerail.model.policy import Capacity, Mode, Policy
from rerail.model.run import JobStatus, Run, RunState
from rerail.model.signals import OperatorVerb
from tests.examples import count_examples
from tests.fakes import Agent, World

DAMAGED = (
    "AlgorithmError: RuntimeError: PytorchStreamReader failed reading zip archive: not a ZIP archive, exit code: 1"
)
REASONS = [
    "InternalServerError: We encountered an internal error.  Please try again.",
    "CapacityError: Unable to provision requested ML compute capacity.",
    "AlgorithmError: RuntimeError: CUDA error: uncorrectable ECC error encountered, exit code: 1",
    'AlgorithmError: {"rerail":1,"cause":"user_code","error":"ValueError: x","step":7,"rank":0}, exit code: 1',
    "AlgorithmError: torch.OutOfMemoryError: CUDA out of memory., exit code: 1",
    "AlgorithmError: , exit code: 137",
    DAMAGED,
    "",
]

OWN, FALLBACKS = "ml.p4d.24xlarge", ("ml.p4de.24xlarge", "ml.g5.12xlarge")
MACHINES = {"ResourceConfig": {"InstanceType": OWN, "InstanceCount": 2, "KeepAlivePeriodInSeconds": 1800}}


HOUR = timedelta(hours=1)


class Crash(BaseException):
    """Ends the function at this call; no handler catches it."""


class SupervisedRun(RuleBasedStateMachine):
    """One run under arbitrary events and faults. The script has an agent or not; the account uses its gates or not."""

    @initialize(
        agent=st.booleans(),
        overwrites=st.booleans(),
        gated=st.booleans(),
        mode=st.sampled_from([Mode.ACT, Mode.APPROVE]),
        rate_limit=st.sampled_from([1, 2, 100]),
    )
    def begin(self, agent: bool, overwrites: bool, gated: bool, mode: Mode, rate_limit: int) -> None:
        self.has_agent = agent
        self.overwrites = overwrites and not agent
        self.gated = gated
        self.world = World()
        self.world.sagemaker.defined_metrics = ("step",) if self.overwrites else ()
        self.faults: list[tuple[int, bool, Callable[[], Exception]]] = []
        self.calls = 0
        self.commands = 0
        self.step = 0
        self.human_stop: tuple[int, int] | None = None
        self.filed: list[str] = []
        self.rollbacks: list[tuple[int, int]] = []
        self.reports = 0
        self.read = 0
        self.open_pages: dict[str, datetime] = {}
        policy = Policy(capacity=Capacity(fallbacks=FALLBACKS))
        if gated:
            policy = replace(policy, mode=mode, limits=replace(policy.limits, account_relaunches=rate_limit))
        self.world.policies.by_name["default"] = policy
        self.rate_limit = policy.limits.account_relaunches
        self.created_at: dict[str, datetime] = {}
        self.world.sagemaker.submit("gpt", request=MACHINES)
        self.world.supervisor().handle(JobStateChanged("gpt"))
        self.before = self.world.run()

    def _handle(self, message: Message) -> None:
        self.fault_raised = False
        try:
            self.world.supervisor(self._wrap).handle(message)
        except (Crash, StateUnknown, Throttled, CommandNotStored):
            self.faults.clear()

    def _wrap(self, port: Any) -> Any:
        machine = self

        class Port:
            def __getattr__(self, name: str) -> Any:
                method = getattr(port, name)
                return lambda *args, **kwargs: machine._call(method, args, kwargs)

        return Port()

    def _call(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls += 1
        if method.__name__ in ("create", "stop"):
            assert not self.world.pause.paused, f"{method.__name__} while paused"
        if method.__name__ == "stop":
            self._check_stop_is_recorded(*args)
            self._check_stop_is_approved(*args)
        if method.__name__ == "post":
            self._check_restart_is_for_the_live_attempt(args[0])
        if method.__name__ == "create":
            self._check_launch_is_allowed(args[0]["TrainingJobName"])
            self._check_launch_is_announced(args[0])
            self._check_bad_machines_are_released()
            self._check_tainted_checkpoints_are_quarantined()
            self._check_machines_are_listed_and_as_large(args[0])
            self._check_launch_keeps_rollbacks(args[0])
        due = [fault for fault in self.faults if fault[0] <= self.calls]
        self.fault_raised = self.fault_raised or bool(due)
        if due and not due[0][1]:
            self.faults.remove(due[0])
            raise due[0][2]()
        result = method(*args, **kwargs)
        if due:
            self.faults.remove(due[0])
            raise due[0][2]()
        return result

    def _check_stop_is_recorded(self, job: str) -> None:
        """Require the record of a stop before it: otherwise it reads as a human's, or is repeated without end."""
        run = self.world.run()
        assert (
            job != run.current.job_name or not run.current.may_be_live or (run.stop and run.state.value == "stopping")
        )

    def _check_stop_is_approved(self, job: str) -> None:
        run = self.world.run()
        if self._needs_approval() and job == run.current.job_name and run.stop:
            assert run.stop.approved_by, "stopped without an approval"

    def _check_launch_is_allowed(self, name: str) -> None:
        run, now = self.world.run(), self.world.clock()
        if name not in self.world.sagemaker.jobs:
            self.created_at[name] = now
        assert sum(now - HOUR < at <= now for at in self.created_at.values()) <= self.rate_limit
        if self._needs_approval():
            assert run.current.job_name == name and run.current.approved_by, "created without an approval"

    def _needs_approval(self) -> bool:
        return self.world.policies.get("default").mode is Mode.APPROVE

    def _check_launch_is_announced(self, request: dict[str, Any]) -> None:
        """Require that agents of older attempts were notified of a launch, unless the mailbox is closed."""
        attempt = int(request["Environment"]["RERAIL_ATTEMPT"])
        owed = any(type(action).__name__ == "PostCommand" for action in self.world.run().pending)
        # The launch may have been deferred since.
        was_asked = any(command.attempt == attempt for command in self.world.mailbox.commands)
        assert owed or was_asked, "the announcement is recorded together with the launch"
        if not self.world.mailbox.closed and not self.fault_raised:
            assert self.world.mailbox.commands[-1].attempt == attempt

    def _check_bad_machines_are_released(self) -> None:
        """Require the release of bad machines before a launch."""
        owed = {action.job_name for action in self.world.run().pending if isinstance(action, ReleaseWarmPool)}
        assert owed <= set(self.world.sagemaker.released)

    def _check_tainted_checkpoints_are_quarantined(self) -> None:
        """Require the quarantine of rolled-back checkpoints before a launch."""
        for action in self.world.run().pending:
            if isinstance(action, QuarantineCheckpoints) and action.is_vital:
                assert not self.world.checkpoints.tainted(action)
                assert not action.strict or not self.world.checkpoints.list_replaced(action)

    def _check_restart_is_for_the_live_attempt(self, command: Command) -> None:
        """Require that a restart command names the current attempt and that its job is not being stopped."""
        run = self.world.run()
        if command.kind is CommandKind.RESTART:
            assert (command.attempt, run.state) == (run.current.number, RunState.RESTARTING)
            assert run.current.may_be_live and run.stop is None
            assert command.id == run.current.in_place_restarts[-1].command_id

    def _check_machines_are_listed_and_as_large(self, request: dict[str, Any]) -> None:
        """Require machines that the policy lists, with as many GPUs."""
        resources = request["ResourceConfig"]
        kind = resources["InstanceType"]
        assert kind in {OWN, *FALLBACKS}
        assert (resources["InstanceCount"], TYPES[kind].gpus) == (2, TYPES[OWN].gpus)

    def _check_launch_keeps_rollbacks(self, request: dict[str, Any]) -> None:
        """Require a resume at or before an operator's rollback step, or from a checkpoint of a later attempt."""
        resumed = int(request["Environment"].get("RERAIL_RESUME_STEP", "0"))
        saved = [c for c in self.world.checkpoints.all(self.world.run().checkpoint_uri) if c.step == resumed]
        for step, attempt in self.rollbacks:
            assert resumed <= step or any(with_attempt_number(self.world.run(), c).attempt > attempt for c in saved)

    def _live(self) -> str | None:
        live = self.world.sagemaker.live()
        return live[0] if live else None

    # What the world does

    @rule(reason=st.sampled_from(REASONS), trained=st.booleans(), step=st.integers(0, 40))
    def the_job_fails(self, reason: str, trained: bool, step: int) -> None:
        if job := self._live():
            facts = {} if trained else {"training_started_at": None}
            self.world.sagemaker.fail(job, reason, metrics={"step": float(step)}, **facts)

    @rule()
    def the_job_completes(self) -> None:
        if job := self._live():
            self.world.sagemaker.end(job, JobStatus.COMPLETED)

    @rule()
    def a_human_stops_the_job(self) -> None:
        if (job := self._live()) and self.world.run().state is not RunState.STOPPING:
            self.world.sagemaker.end(job, JobStatus.STOPPED)
            self.human_stop = (len(self.world.sagemaker.jobs), self.commands)

    @rule(steps=st.integers(1, 30))
    def a_checkpoint_is_saved(self, steps: int) -> None:
        if self._live() and self.overwrites:
            self.world.checkpoints.save_file()
        elif self._live():
            self.step += steps
            self._save()

    def _save(self) -> None:
        if not self.has_agent:
            self.world.checkpoints.save(step=self.step, layout="huggingface")
            return
        current = self.world.run().current
        facts = {"consumed_samples": 16 * self.step, "attempt": current.number, "restart": current.restart}
        self.world.checkpoints.save(step=self.step, **facts)

    @rule()
    def quarantining_is_forbidden_or_allowed(self) -> None:
        checkpoints = self.world.checkpoints
        checkpoints.forbidden = "" if checkpoints.forbidden else "s3:PutObject is missing"

    @rule(tears=st.booleans())
    def the_file_is_copied_and_torn(self, tears: bool) -> None:
        """The next attempt cannot load a torn one."""
        job = self._live()
        if not job or not self.overwrites:
            return
        self.world.clock.pass_by(timedelta(minutes=11))
        self.world.checkpoints.save_file()
        self._handle(RunDue("gpt", lists=True))
        if tears and self._live() == job:
            self.world.clock.pass_by(timedelta(minutes=1))
            self.world.checkpoints.save_file()
            self.world.sagemaker.fail(job, REASONS[0])
            for _ in range(3):
                self.world.clock.pass_by(timedelta(minutes=1))
                self._handle(RunDue("gpt"))
            if successor := self._live():
                self.world.sagemaker.fail(successor, DAMAGED)

    @rule(turns=st.integers(1, 3))
    def copying_takes_several_turns(self, turns: int) -> None:
        self.world.checkpoints.unfinished_copies = turns

    @rule(at_once=st.sampled_from([0, 1, 1000]))
    def quarantining_takes_several_turns(self, at_once: int) -> None:
        self.world.checkpoints.moves_at_once = at_once

    @rule(steps=st.integers(1, 30), torn=st.booleans())
    def the_agent_saves(self, steps: int, torn: bool) -> None:
        """Save with or without a request; the upload may be incomplete."""
        if self._live() and self.has_agent:
            self.step += steps
            attempt = self.world.run().current.number
            missing = ("__0_0.distcp",) if torn else ()
            self.world.checkpoints.save(step=self.step, attempt=attempt, reason=EMERGENCY, missing=missing)

    @rule()
    def the_mailbox_closes_or_opens(self) -> None:
        self.world.mailbox.closed = not self.world.mailbox.closed

    @rule(step=st.integers(0, 40), moved=st.booleans())
    def a_heartbeat_is_written(self, step: int, moved: bool) -> None:
        current = self.world.run().current
        agent = Agent(self.world, attempt=current.number, job=current.job_name)
        agent.beats(step, moved_at=self.world.clock() if moved else None)

    @rule(count=st.integers(1, 3))
    def capacity_is_short(self, count: int) -> None:
        self.world.sagemaker.no_capacity = count

    @rule(kinds=st.sets(st.sampled_from(["ml.p4d.24xlarge", "ml.p4de.24xlarge"])), queue=st.booleans())
    def some_machines_are_all_taken(self, kinds: set[str], queue: bool) -> None:
        """Refuse their launches, or queue them, until this rule runs again."""
        self.world.sagemaker.lacking = {} if queue else dict.fromkeys(kinds, "CapacityError: none")
        self.world.sagemaker.full = kinds if queue else set()

    @rule(minutes=st.sampled_from([0.1, 1, 5, 40, 800]))
    def time_passes(self, minutes: float) -> None:
        self.world.clock.pass_by(timedelta(minutes=minutes))

    @rule()
    def an_operator_pauses_or_resumes(self) -> None:
        if self.gated:
            self.world.pause.paused = not self.world.pause.paused

    @rule(verb=st.sampled_from([OperatorVerb.APPROVE, OperatorVerb.DENY]), late=st.booleans(), twice=st.booleans())
    def an_operator_answers(self, verb: OperatorVerb, late: bool, twice: bool) -> None:
        """Answer the open proposal, or an earlier one."""
        proposal = self.world.run().proposal
        proposal_id = "p1" if late or proposal is None else proposal.id
        self.commands += 1
        for _ in range(2 if twice else 1):
            self._handle(CommandReceived(f"c{self.commands}", "gpt", verb, "ada", "", proposal_id))

    # What reaches the supervisor, or does not

    @rule(attempt=st.integers(1, 6))
    def an_event_arrives(self, attempt: int) -> None:
        name = "gpt" if attempt == 1 else f"gpt-a{attempt:03d}"
        if name in self.world.sagemaker.jobs:
            self._handle(JobStateChanged(name))

    @rule()
    def the_sweep_runs(self) -> None:
        self.world.round().run()
        waiting, self.world.queue.waiting = self.world.queue.waiting, []
        for message in waiting:
            self._handle(parse_message(json.dumps({"source": SWEEP, "detail": message})))

    @rule(kind=st.sampled_from(Kind), level=st.sampled_from(Level), onset=st.integers(0, 40), late=st.booleans())
    def the_detectors_report(self, kind: Kind, level: Level, onset: int, late: bool) -> None:
        """Report on the current job, or late, on the first."""
        job = "gpt" if late else self.world.run().current.job_name
        self._handle(FindingsReceived("gpt", job, (Finding(kind, level, onset + 5, onset, "reported"),)))

    @rule(onset=st.integers(0, 40), over=st.booleans())
    def the_metrics_are_missing_or_back(self, onset: int, over: bool) -> None:
        """Report missing metrics of the current job, or their return."""
        level = Level.RECOVERED if over else Level.INTERVENE
        finding = Finding(Kind.BLIND, level, onset, onset, "silence")
        self._handle(FindingsReceived("gpt", self.world.run().current.job_name, (finding,)))

    @rule(count=st.integers(1, 3))
    def the_bus_is_full(self, count: int) -> None:
        self.world.bus.refusals = count

    @rule(since=st.integers(0, 20))
    def the_loss_is_not_finite(self, since: int) -> None:
        """Report a non-finite loss of the current job that began some steps ago."""
        finding = Finding(Kind.NON_FINITE, Level.INTERVENE, self.step, max(0, self.step - since), "nan")
        self._handle(FindingsReceived("gpt", self.world.run().current.job_name, (finding,)))

    @rule()
    def the_agent_reports_its_abilities(self) -> None:
        self._report(ReportKind.HELLO, abilities=tuple(Ability))

    @rule(step=st.none() | st.integers(1, 60))
    def the_processes_are_restarted(self, step: int | None) -> None:
        """Report that the last restart command was executed."""
        orders = self.world.run().current.in_place_restarts
        if orders and self._live():
            self._report(ReportKind.RESTARTED, command=orders[-1].command_id, restart=orders[-1].number, step=step)

    def _report(self, kind: ReportKind, **facts: Any) -> None:
        if not self.has_agent:
            return
        attempt = self.world.run().current
        self.reports += 1
        agent = Agent(self.world, attempt=attempt.number, job=attempt.job_name, reports=self.reports)
        key = agent.files(kind, **facts)
        self.filed.append(key)
        self._deliver(key)

    @rule(
        kind_of_report=st.sampled_from(ReportKind),
        late=st.booleans(),
        asked=st.booleans(),
        lost=st.booleans(),
        step=st.none() | st.integers(0, 60),
        durability=st.sampled_from(Durability),
        kind=st.sampled_from(Kind),
        level=st.sampled_from(Level),
        able=st.sets(st.sampled_from(Ability)),
        restarts=st.integers(0, 2),
    )
    def an_agent_reports(
        self,
        kind_of_report: ReportKind,
        late: bool,
        asked: bool,
        lost: bool,
        step: int | None,
        durability: Durability,
        kind: Kind,
        level: Level,
        able: set[Ability],
        restarts: int,
    ) -> None:
        """Report for the current attempt or the first, to the open command or another; the event may be lost."""
        if not self.has_agent:
            return
        run = self.world.run()
        attempt = run.attempts[0 if late else -1]
        self.reports += 1
        agent = Agent(self.world, attempt=attempt.number, job=attempt.job_name, reports=self.reports)
        wishes = [run.stop.command_id] if run.stop else [order.command_id for order in attempt.in_place_restarts[-1:]]
        command = wishes[0] if asked and wishes else ""
        findings = (Finding(kind, level, step, step, "seen"),) if kind_of_report is ReportKind.FINDINGS else ()
        facts = {"command": command, "step": step, "durability": durability, "findings": findings}
        facts |= {"abilities": tuple(sorted(able))} if kind_of_report is ReportKind.HELLO else {}
        facts |= {"restart": max(0, attempt.restart + 1 - restarts), "evidence": REASONS[3] if asked else ""}
        key = agent.files(kind_of_report, **facts)
        self.filed.append(key)
        if not lost:
            self._deliver(key)

    @rule(which=st.integers(0, 50))
    def a_report_is_delivered_again(self, which: int) -> None:
        """Deliver any earlier report again."""
        if self.filed:
            self._deliver(self.filed[which % len(self.filed)])

    @rule(text=st.sampled_from([b"{", b"[]", b'{"schema":1}']))
    def an_unreadable_report_is_written(self, text: bytes) -> None:
        self.world.mailbox.put(make_report_key("gpt", "rubbish"), text)
        self._deliver(make_report_key("gpt", "rubbish"))

    def _deliver(self, key: str) -> None:
        self._handle(ReportFiled("gpt", key.rpartition("/")[2].removesuffix(".json"), key))

    @rule(verb=st.sampled_from(OperatorVerb), twice=st.booleans())
    def an_operator_sends_a_command(self, verb: OperatorVerb, twice: bool) -> None:
        self.commands += 1
        for _ in range(2 if twice else 1):
            self._handle(CommandReceived(f"c{self.commands}", "gpt", verb, "ada", ""))

    @rule(twice=st.booleans(), moved=st.booleans())
    def an_operator_continues(self, twice: bool, moved: bool) -> None:
        """Name a change of code, and of machines or not; it counts only for a run without a live job."""
        self.commands += 1
        change = {"HyperParameters": {"code": str(self.commands)}}
        text = json.dumps(change | ({"ResourceConfig": {"InstanceType": FALLBACKS[0]}} if moved else {})).encode()
        digest = sha256(text).hexdigest()
        self.world.mailbox.put(make_change_key("gpt", digest), text)
        command = CommandReceived(f"c{self.commands}", "gpt", OperatorVerb.CONTINUE, "ada", "", change=digest)
        for _ in range(2 if twice else 1):
            self._handle(command)

    @rule(back=st.integers(0, 60), twice=st.booleans())
    def an_operator_rolls_back(self, back: int, twice: bool) -> None:
        """Roll back that many steps from the newest, or to the start; without a checkpoint it is refused."""
        self.commands += 1
        name, step = f"c{self.commands}", max(0, self.step - back)
        for _ in range(2 if twice else 1):
            self._handle(CommandReceived(name, "gpt", OperatorVerb.ROLLBACK, "ada", "", step=step))
        self.rollbacks += [(step, label.attempt) for label in self.world.run().labels if label.source == name]

    @rule(back=st.integers(0, 30), steps=st.integers(0, 30))
    def an_operator_drills(self, back: int, steps: int) -> None:
        """Drill from a saved step or from none; the job saves meanwhile."""
        self.commands += 2
        self._handle(CommandReceived(f"c{self.commands - 1}", "gpt", OperatorVerb.SAVE, "ada", ""))
        named = max(0, self.step - back) if back else None
        if steps and self._live():
            self.step += steps
            self._save()
        before = self.world.run()
        self._handle(CommandReceived(f"c{self.commands}", "gpt", OperatorVerb.DRILL, "ada", "", step=named))
        after = self.world.run()
        assert after.labels == before.labels or len(after.attempts) > len(before.attempts)
        assert before.ledger.charges == after.ledger.charges or not (after.stop and after.stop.drill)

    @rule(
        calls=st.integers(1, 12),
        after=st.booleans(),
        error=st.sampled_from([Crash, lambda: Throttled("Rate exceeded"), lambda: StateUnknown("timed out")]),
    )
    def a_fault_will_be_injected(self, calls: int, after: bool, error: Callable[[], Exception]) -> None:
        self.faults.append((self.calls + calls, after, error))

    # The promises

    @invariant()
    def never_two_live_attempts(self) -> None:
        assert self.world.sagemaker.most_live_at_once <= 1

    @invariant()
    def a_live_job_runs_the_recorded_request(self) -> None:
        """An operator's change reaches the next job and all after it, never a job that is being created."""
        if (job := self._live()) and job in self.world.sagemaker.requests:
            given = self.world.sagemaker.requests[job].get("HyperParameters", {})
            assert given == self.world.runs.request("gpt").get("HyperParameters", {})

    @invariant()
    def never_a_launch_against_a_human_stop(self) -> None:
        """After a human's stop there is no other job, unless an operator sent a command since."""
        if self.human_stop and self.human_stop[1] == self.commands:
            assert len(self.world.sagemaker.jobs) == self.human_stop[0]

    @invariant()
    def a_proposal_is_about_the_current_attempt(self) -> None:
        run = self.world.run()
        if run.proposal:
            assert run.proposal.attempt == run.current.number
            assert not run.state.is_end

    @invariant()
    def one_approval_covers_one_job(self) -> None:
        """A restart or an approval covers one job, a release another: there are never more jobs than commands."""
        run = self.world.run()
        assert sum(attempt.approved_by == "ada" for attempt in run.attempts) <= self.commands

    @invariant()
    def a_blocked_launch_waits(self) -> None:
        run = self.world.run()
        assert not run.blocked_by or run.state is RunState.WAITING

    @invariant()
    def budgets_grow_only_by_progress_or_a_human(self) -> None:
        run, before = self.world.run(), self.before
        self.before = run
        refunded = run.ledger.progress_step != before.ledger.progress_step
        released = run.commands != before.commands
        if not (refunded or released):
            window = self.world.policies.get("default").retries.window
            kept = with_recent_charges(before.ledger, window=window, at=self.world.clock())
            for cause, count in kept.charges.items():
                assert run.ledger.charges.get(cause, 0) >= count
            assert run.ledger.without_progress >= before.ledger.without_progress

    @invariant()
    def an_attempt_is_named_once_and_resumes_from_what_was_saved(self) -> None:
        run: Run = self.world.run()
        assert [attempt.number for attempt in run.attempts] == list(range(1, len(run.attempts) + 1))
        saved = {checkpoint.step for checkpoint in self.world.checkpoints.all(run.checkpoint_uri)}
        assert {a.resumed_from_step for a in run.attempts} <= saved | {None}

    @invariant()
    def a_rollback_reaches_behind_the_onset_and_what_is_skipped_stays_skipped(self) -> None:
        run = self.world.run()
        assert all((climb.resume_step or 0) < max(1, climb.onset_step) for climb in run.rungs_taken)
        skipped = [skipped_samples.parse_ranges(attempt.skip_samples) for attempt in run.attempts]
        assert all(skipped_samples.merge_ranges((*before, *after)) == after for before, after in pairwise(skipped))
        assert [attempt.rate for attempt in run.attempts] == sorted((a.rate for a in run.attempts), reverse=True)

    @invariant()
    def no_checkpoint_is_ever_lost(self) -> None:
        """A checkpoint is at most quarantined."""
        run, checkpoints = self.world.run(), self.world.checkpoints
        saved = [c.step for c in checkpoints.all(run.checkpoint_uri) if c.layout != Layout.FILE]
        assert sorted(set(saved))[-1:] in ([self.step], [])
        assert len(saved) == checkpoints.count
        expired = {copy.key for action in run.pending if isinstance(action, CopyCheckpoint) for copy in action.expired}
        kept = {copy.key: copy.etag for copy in run.copies if copy.key not in expired}
        assert kept.items() <= checkpoints.copies.items() and len(run.copies) <= Policy().copies.keep

    @invariant()
    def an_order_to_restart_is_one_of_few_and_ends(self) -> None:
        """One at a time, to a live job; a bounded number for each attempt, each with its end."""
        run = self.world.run()
        for attempt in run.attempts:
            assert [order.number for order in attempt.in_place_restarts] == list(
                range(1, len(attempt.in_place_restarts) + 1)
            )
            assert len(attempt.in_place_restarts) <= Policy().restart.per_attempt
            assert all(before.restarted_at or before.failed for before in attempt.in_place_restarts[:-1])
        if run.state is RunState.RESTARTING:
            assert (
                run.current.may_be_live
                and run.current.in_place_restarts
                and not run.current.in_place_restarts[-1].failed
            )

    @invariant()
    def an_open_page_is_sent_once_and_ends_with_an_all_clear(self) -> None:
        """A page repeats only after its interval or a new hold; an all-clear needs a page."""
        for entry in self.world.runs.timeline[self.read :]:
            for action in entry.actions:
                if action.get("severity") == Severity.PAGE:
                    key, until = action["key"], action.get("until", ClearedBy.RELEASED)
                    since = entry.at - self.open_pages.get(key, entry.at - timedelta(days=1))
                    assert until == ClearedBy.RELEASED or since >= Policy().notices.refire, f"{key} was told already"
                    self.open_pages[key] = entry.at
                elif action.get("severity") == Severity.CLEAR:
                    assert self.open_pages.pop(action["clears"], None), f"{action['clears']} was never paged"
        self.read = len(self.world.runs.timeline)
        run = self.world.run()
        assert {page.notice.key for page in run.pages} == set(self.open_pages)
        if run.state in (RunState.COMPLETED, RunState.STOPPED):
            assert not self.open_pages, "the run is over, its pages are not"

    @invariant()
    def every_hold_pages(self) -> None:
        """A run that an operator did not hold has recorded its page together with the hold."""
        run = self.world.run()
        if run.state is RunState.HELD and "said hold" not in run.hold_reason:
            keys = {action.get("key") for entry in self.world.runs.timeline for action in entry.actions}
            assert f"{run.id}/held-{run.current.number}" in keys

    @invariant()
    def no_state_change_is_lost(self) -> None:
        """What was published and what is still to be is a chain from the adoption to the run's state."""
        run = self.world.run()
        events = [(e.sequence, e.previous_state, e.state) for e in self.world.bus.distinct_events()]
        known = {sequence for sequence, *_ in events}
        owed = [(c.version, c.before or "", c.after) for c in run.unpublished if c.version not in known]
        chain = sorted([*events, *owed])
        assert chain[0][1] == "" and chain[-1][2] == run.state
        assert all(before[2] == after[1] for before, after in pairwise(chain))

    @invariant()
    def an_all_clear_follows_its_page(self) -> None:
        paged = set()
        for notice in self.world.bus.notices:
            if notice.severity is Severity.PAGE:
                paged.add(notice.key)
            assert not notice.clears or notice.clears in paged

    def teardown(self) -> None:
        """Let each job fail without progress: the run ends or is held, and no action stays pending."""
        if not hasattr(self, "world"):
            return
        self.faults.clear()
        self.world.pause.paused = False
        self.world.sagemaker.no_capacity = 0
        self.world.bus.refusals = 0
        self.world.sagemaker.lacking, self.world.sagemaker.full = {}, set()
        self.world.mailbox.closed = False
        self.world.checkpoints.forbidden, self.world.checkpoints.moves_at_once = "", 1000
        if self.world.run().state is RunState.RESTARTING:
            self.world.minutes(7)
            assert self.world.run().state is not RunState.RESTARTING, "an order to restart never ended"
        if self.world.run().state is RunState.SAVING:
            self.world.minutes(17)
            assert self.world.run().state is not RunState.SAVING, "a stop that saves first never ended"
        for _ in range(400):
            if not self.world.run().is_open:
                break
            if job := self._live():
                self.world.sagemaker.fail(job, REASONS[0])
            self.world.minutes(20, every=timedelta(minutes=10))
        run = self.world.run()
        assert run.state.is_end, f"the run never ended: {run.state}"
        assert run.pending == () and run.unpublished == ()
        assert self._live() is None


TestSupervisedRun = SupervisedRun.TestCase
TestSupervisedRun.settings = settings(max_examples=count_examples(200), stateful_step_count=50, deadline=None)
