"""Connect a training script to Rerail: one guard, called once in each step.

    guard = Guard.from_env()
    for step in ...:
        loss = guard.reduce(loss)                   # the mean over the ranks; the agreement is part of it
        guard.step(step=step, loss=loss, tokens=tokens)
        if guard.wants_checkpoint:                  # on request and periodically, the same on every rank
            guard.committed(save(step))
        if guard.should_stop:
            break

Call reduce() and step() on every rank: they are collective. Everything else may be called anywhere. No fault of the
agent is raised, and no method waits for the network. Only a collective that fails in reduce() or step() raises, because
then the job has lost a rank.
"""

import atexit
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Phase
from rerail.model.mailbox import Durability, Heartbeat, Report, serialize
from rerail.model.sample import Sample
from rerail_agent import agreement, manifests
from rerail_agent.agreement import Agreement
from rerail_agent.commands import CommandState
from rerail_agent.deferred_torch import to_number
from rerail_agent.detection import CLEAN, SUSPECT, StepDetection
from rerail_agent.fault_isolation import FaultIsolation, print_line
from rerail_agent.hang import HangLimits, Watchdog
from rerail_agent.identity import Identity
from rerail_agent.mailbox_client import MailboxClient
from rerail_agent.mailbox_objects import MailboxBucket, MailboxObject
from rerail_agent.progress import Progress
from rerail_agent.rank_times import RankComparison, RankTimer, describe_place
from rerail_agent.save_schedule import SaveSchedule
from rerail_agent.settings import AgentSettings, read_microbatches, read_rate
from rerail_agent.sigterm import SigtermHandler
from rerail_agent.stalled_ranks import StallExchange
from rerail_agent.telemetry import TokenMeter
from rerail_agent.tracking import Tracking

_forks = 0  # forks between the process that imported this module and this one


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


@cache
def _find_exit_end() -> float:
    """Return when the guards of this process must be closed at its exit, counted from the first call.

    A search over settings may have made many guards.
    """
    return time.monotonic() + EXIT_REPORTS_S


Save = Callable[[str], str | os.PathLike[str] | None]
# SageMaker begins to end the instances of reserved capacity 30 minutes before that ends.
BEFORE_END_S = 35 * 60.0
LAST_REPORTS_S = 5.0
# The same at the exit of an interpreter whose script has not called close().
EXIT_REPORTS_S = 2.0
# The time of a guard after others have used up those seconds.
LEAST_EXIT_S = 0.1
HELLO_HEARTBEATS = (2, 10)  # heartbeats with another hello report: the first one may come before the run is known
# An open finding is reported again after these numbers of heartbeats, and then at this interval: its report, or the
# event about it, may be lost.
FINDING_HEARTBEATS, FINDING_INTERVAL = (2, 10), 60


class Guard:
    """Monitor one rank of a training job. Outside SageMaker it prints metric lines, agrees, and handles SIGTERM.

    step() calls `save(reason)`, if given, on every rank whenever a checkpoint is wanted. It returns the path once the
    checkpoint is durable, or None where committed() will be called later. `log_every` is the number of steps between
    metric lines. `agree_every` is the most steps between two agreements in a loop that does not call reduce().
    `abilities` is what the script does beyond saving, so that the supervisor may ask for it. `skip`: it omits
    RERAIL_SKIP_SAMPLES. `rate`: it multiplies its learning rate by RERAIL_LR_SCALE. `microbatch`: it can divide
    its batches into twice as many parts as `microbatches`.
    """

    def __init__(
        self,
        *,
        save: Save | None = None,
        log_every: int = 1,
        agree_every: int = 10,
        abilities: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        environment = os.environ if environment is None else environment
        self._forks = _forks
        self._isolation, self._environment = FaultIsolation(), environment
        self._save, self._log_every = save, max(1, log_every)
        restarts = ("restart",) if environment.get("RERAIL_INIT") else ()  # its init can restart it in place
        self._abilities = (*abilities, *restarts)
        self._identity = self._isolation.run(
            "identity", lambda: Identity.from_environment(environment, print_line), otherwise=Identity()
        )
        self._settings = self._isolation.run(
            "settings", lambda: AgentSettings.from_environment(environment, print_line), otherwise=AgentSettings()
        )
        self._agreement = Agreement(every=agree_every, log=print_line)
        self._agreement.rank, self._agreement.expected = self._identity.rank or 0, self._identity.size
        self._progress, self._meter = Progress(), TokenMeter()
        self._rank_timer, self._comparison = RankTimer(), RankComparison()
        # The script has announced a change since the last row.
        self._is_changed = False
        # The slowest rank whose result is open, in words.
        self._slowest = ""
        self._schedule = self._isolation.run("save schedule", self._make_schedule, None)
        rate_scale = self._isolation.run("learning rate", lambda: read_rate(environment), otherwise=1.0)
        self._detection = StepDetection(self._settings.detection, rate_scale=rate_scale)
        self._commands = CommandState(self._identity)
        self._agreed, self._stops, self._is_fenced, self._finite = agreement.NONE, False, False, True
        self._loss: float | None = None
        self._last_heartbeat: tuple[int, float] = (0, 0.0)  # steps and seconds in steps at the last heartbeat
        self._heartbeats = 0
        # The detectors' open interventions, each with the number of heartbeats before it.
        self._open_findings: dict[Kind, tuple[Finding, int]] = {}
        self._sigterm = SigtermHandler(lambda: self._agreement.raise_flag(agreement.SIGTERM))
        self._mailbox_client: MailboxClient | None = None
        self._watchdog: Watchdog | None = None
        self._tracking = self._isolation.run(
            "tracking", lambda: Tracking.from_environment(self._identity, environment), None
        )
        self._closed = False
        self._asked_at_end = False
        # Whether the supervisor has ordered this start, and no step since then is done yet.
        self._restarted = self._identity.restart > 0 or self._identity.attempt > 1
        for part, start in (
            ("SIGTERM", self._sigterm.listen),
            ("watchdog", self._start_watchdog),
            ("mailbox", self._open_mailbox),
        ):
            self._isolation.run(part, start, None)

    @classmethod
    def from_env(
        cls, save: Save | None = None, *, log_every: int = 1, agree_every: int = 10, abilities: Sequence[str] = ()
    ) -> "Guard":
        """Return the guard of this process, as its environment describes it."""
        return cls(save=save, log_every=log_every, agree_every=agree_every, abilities=abilities)

    # ------------------------------------------------------------------ in each step

    def reduce(self, loss: Any) -> float:
        """Return the mean of the loss over all ranks; takes a tensor on any device, or a number. Collective."""
        if self._is_child():
            return to_number(loss)
        self._isolation.run("rank times", self._rank_timer.on_arrival, None)
        mean = self._agreement.reduce(loss)
        self._isolation.run("rank times", self._rank_timer.on_release, None)
        return mean

    def step(
        self,
        *,
        step: int,
        loss: Any = None,
        grad_norm: Any = None,
        tokens: float | None = None,
        lr: float | None = None,
        extra: Mapping[str, Any] | None = None,
        log: bool | None = None,
    ) -> None:
        """Record that a step is done. Collective.

        `loss` is the mean over the ranks (None: not known for this step). `tokens` are those of this step over all
        ranks. `extra` are further numbers for the metric line. `log` overrides `log_every`.
        """
        if self._is_child():
            return
        self._agreement.join()
        if self._mailbox_client is not None and not self._is_first():
            self._stop_mailbox_client(self._mailbox_client)
        self._isolation.run("progress", lambda: self._progress.on_step(step), None)
        if self._restarted:
            self._restarted = False
            self._isolation.run(
                "reports", lambda: self._enqueue(self._commands.report_restarted(step, at=_now())), None
            )
        self._isolation.run("telemetry", lambda: self._record_step(step, loss, grad_norm, tokens, lr, extra, log), None)
        if (tracking := self._tracking) is not None and self._is_first():
            self._isolation.run("tracking", lambda: tracking.on_step(step), None)
        if self._is_first():
            self._isolation.run("save schedule", self._ask_periodically, None)
        if self._agreement.size > 1 and not self._agreement.place:
            self._isolation.run("rank times", lambda: self._agreement.publish_place(describe_place(os.environ)), None)
        if self._agreement.size > 1 and self._is_first():
            self._isolation.run("rank times", self._ask_to_compare, None)
        agreed = self._agreement.agree(self._progress.mean_s)
        if agreed[agreement.COMPARE]:
            self._compare_ranks(step)
        if agreed is not self._agreed:
            self._agreed = agreed
            self._isolation.run("agreement", lambda: self._act_on(agreed, step), None)
        if self.wants_checkpoint:
            self._isolation.run("save schedule", self._note_save, None)
            if self._save is not None:
                self._save_now(self._save, step)
        self._isolation.run("rank times", self._rank_timer.on_step, None)

    @property
    def wants_checkpoint(self) -> bool:
        """Return whether to save now: the same on every rank, from one step() to the next."""
        wanted = self._agreed
        if wanted is agreement.NONE or self._is_fenced or self._agreement.lacks_process_group:
            return False
        return any(wanted[: agreement.FENCED])

    @property
    def reason(self) -> str:
        """Return why a checkpoint is wanted.

        `sigterm`, `emergency` (a command), `warning` (the loss has jumped) or `periodic` (the last one is old enough).
        """
        for flag, name in (
            (agreement.SIGTERM, "sigterm"),
            (agreement.COMMAND, "emergency"),
            (agreement.WARNING, "warning"),
            (agreement.INTERVAL, "periodic"),
        ):
            if self._agreed[flag]:
                return name
        return ""

    @property
    def health(self) -> str:
        """Return `suspect` while a finding about the loss is open, else `clean`; known to rank 0, which writes the
        manifest."""
        return CLEAN if self._finite and self._detection.health == CLEAN else SUSPECT

    @property
    def onset(self) -> int | None:
        """Return the step at which the open problem with the loss began; None while there is none. Known to rank 0."""
        if self.health == CLEAN:
            return None
        return self._progress.step if self._detection.onset is None else self._detection.onset

    @property
    def microbatches(self) -> int:
        """Return into how many parts to divide each batch, so that it fits into memory; 1 unless memory has run out."""
        return self._isolation.once("microbatches", lambda: read_microbatches(self._environment), 1)

    @property
    def should_stop(self) -> bool:
        """Return whether a rank got SIGTERM: save, leave the loop and exit with 0. The same on every rank."""
        return self._stops

    @property
    def fenced(self) -> bool:
        """Return whether a newer attempt owns the run, so that this one must not save. The same on every rank."""
        return self._is_fenced

    # ------------------------------------------------------------------ around a save

    def committed(
        self, path: str | os.PathLike[str], step: int | None = None, durability: Durability | str | None = None
    ) -> None:
        """Record that a checkpoint is durable, and report it if a command waits for it.

        A folder called `step-<n>` or `checkpoint-<n>` without a manifest gets one. `durability` says where the
        checkpoint is.
        """
        if self._is_first():
            self._isolation.once("reports", lambda: self._commit_and_report(str(path), step, durability), None)

    def save_failed(self, reason: str) -> None:
        """Report that the wanted checkpoint cannot be saved, so that the supervisor does not wait for it."""
        if self._is_first():
            if self._schedule is not None:
                self._isolation.run("save schedule", self._schedule.on_failure, None)
            self._isolation.once(
                "reports", lambda: self._enqueue(self._commands.report_failed(str(reason), at=_now())), None
            )

    def not_restored(self, step: int, reason: str, *, damaged: bool = False, saved_by: int | None = None) -> None:
        """Report that the checkpoint of this step could not be loaded.

        `damaged`: its files do not match its manifest. `saved_by` is the attempt in its manifest. The supervisor makes
        no attempt resume from it a third time.
        """
        if self._is_first():
            make = self._commands.report_not_restored
            self._isolation.once(
                "reports",
                lambda: self._enqueue(make(step, str(reason), damaged=damaged, saved_by=saved_by, at=_now())),
                None,
            )

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Enter a `save` or an `evaluation`, so that its time does not count as a slow step or a hang."""
        if self._is_child():
            return nullcontext()
        self._rank_timer.leave_out()
        if name == Phase.SAVE:
            self._isolation.run("save schedule", self._note_save, None)
        return self._isolation.once("phase", lambda: self._progress.track_phase(Phase(name)), nullcontext())

    def track_data(self) -> AbstractContextManager[None]:
        """Count the time within as waiting for data, in the comparison of the ranks."""
        return nullcontext() if self._is_child() else self._rank_timer.track_data()

    def report(self, finding: Finding) -> None:
        """Report a finding of the script itself to the supervisor."""
        if self._is_first():
            self._isolation.once("reports", lambda: self._report_finding(finding), None)

    def expect_change(self, what: str) -> None:
        """Compare loss and speed from the next step on only with each other: the script changes them on purpose.

        `what` is a few words for the log, such as "sequence length 8192". A loss that is not finite is still a fault.
        """
        self._is_changed = True
        if self._agreement.rank == 0:
            print_line(
                f"planned change after step {self._progress.step}: {what}; later rows are compared without earlier ones"
            )

    def announce(self, *abilities: str) -> None:
        """Report abilities of the script that are known only after the start, such as `skip` or `rate`."""
        new = tuple(ability for ability in abilities if ability not in self._abilities)
        self._abilities = (*self._abilities, *new)
        if new and self._is_first():
            self._isolation.once("reports", self._enqueue_hello, None)

    # ------------------------------------------------------------------ with a checkpoint

    def state_dict(self) -> dict[str, str]:
        """Return what detectors and save schedule have learned, for the checkpoint; the same keys on every rank."""
        state_text = self._isolation.run("detectors", self._dump_state, "") if self._is_first() else ""
        return {"detectors": state_text}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what the detectors had learned; a state that cannot be read is ignored."""
        text = state.get("detectors") if isinstance(state, Mapping) else None
        if not self._is_first() or not text:
            return
        try:
            self._detection.restore(str(text))
            if self._schedule is not None and "saves" in (table := json.loads(text)):
                self._schedule.restore(table["saves"])
        except Exception as error:
            print_line(f"the detectors' saved state cannot be read ({type(error).__name__}: {error}); it is ignored")

    def close(self, within_s: float = LAST_REPORTS_S) -> None:
        """Send the queued reports, for no longer than this, and stop monitoring."""
        if self._closed or self._is_child():
            return
        self._closed = True
        if self._watchdog is not None:
            self._isolation.run("watchdog", self._watchdog.stop, None)
        if self._mailbox_client is not None:
            client = self._mailbox_client
            self._isolation.run("mailbox", lambda: client.stop(within_s), None)
        if (tracking := self._tracking) is not None:
            self._isolation.run("tracking", lambda: tracking.close(within_s), None)
        self._isolation.run("SIGTERM", self._sigterm.restore, None)

    # ------------------------------------------------------------------ inside

    def _is_child(self) -> bool:
        return self._forks != _forks

    def _is_first(self) -> bool:
        return self._agreement.rank == 0 and not self._is_child()

    def _open_mailbox(self) -> None:
        """Connect rank 0 to the supervisor's mailbox."""
        self._agreement.join()
        atexit.register(lambda: self.close(max(LEAST_EXIT_S, _find_exit_end() - time.monotonic())))
        if not self._identity.bucket or not self._is_first():
            return
        self._mailbox_client = MailboxClient(
            MailboxBucket.of(self._identity),
            self._identity.run,
            on_command=self._on_command,
            make_heartbeat=self._make_heartbeat,
            poll_s=self._settings.poll_s,
            heartbeat_s=self._settings.heartbeat_s,
            isolation=self._isolation,
        )
        self._enqueue_hello()
        self._mailbox_client.start()

    def _stop_mailbox_client(self, client: MailboxClient) -> None:
        """Stop using the mailbox: torch.distributed says that another rank is the first one."""
        self._mailbox_client = None
        self._isolation.run("mailbox", lambda: client.stop(0.0), None)

    def _dump_state(self) -> str:
        text = self._detection.dump_state()
        if self._schedule is None:
            return text
        return json.dumps({**json.loads(text), "saves": self._schedule.dump_state()}, separators=(",", ":"))

    def _make_schedule(self) -> SaveSchedule | None:
        """Return the schedule of periodic checkpoints; only a training job has one."""
        settings = self._settings
        if not self._identity.run or not settings.interval.automatic:
            return None
        return SaveSchedule(settings.interval, self._progress, mtbf_s=settings.mtbf_s)

    def _ask_periodically(self) -> None:
        ends = self._settings.capacity_ends
        if ends is not None and not self._asked_at_end and time.time() >= ends - BEFORE_END_S:
            self._asked_at_end = True
            print_line("the reserved capacity ends soon: asking for a checkpoint")
            self._agreement.raise_flag(agreement.INTERVAL)
        ranks = max(self._agreement.size, self._agreement.expected)
        if self._schedule is not None and self._schedule.is_due(ranks=ranks):
            self._agreement.raise_flag(agreement.INTERVAL)

    def _ask_to_compare(self) -> None:
        if self._rank_timer.has_times and self._comparison.is_due():
            self._agreement.raise_flag(agreement.COMPARE)

    def _compare_ranks(self, step: int) -> None:
        """Gather the times of all ranks, and report on rank 0 which are slow. Collective.

        The collective is not isolated: a rank that skipped it would hang the others.
        """
        times = self._isolation.run("rank times", self._rank_timer.take_round, [0.0, 0.0])
        table = self._agreement.gather(times)
        if self._is_first():  # in a thread: with many thousand ranks the scores take a fraction of a second
            compare = partial(self._isolation.run, "rank times", lambda: self._report_ranks(table, step), None)
            threading.Thread(target=compare, name="rerail-ranks", daemon=True).start()

    def _report_ranks(self, table: list[list[float]], step: int) -> None:
        find_place = self._agreement.find_place
        for finding in self._comparison.compare(table, step, at=_now(), find_place=find_place):
            self._report_finding(finding)
        self._slowest = self._comparison.describe(find_place)

    def _note_save(self) -> None:
        if self._schedule is not None:
            self._schedule.on_save(time.monotonic())

    def _start_watchdog(self) -> None:
        if not self._identity.run:
            return
        limits = HangLimits.from_thresholds(self._settings.detection, hang_s=self._settings.hang_s)
        rank = self._agreement.rank
        file = self._identity.base / "output" / "data" / f"rerail-stacks-rank{rank}.txt"
        self._watchdog = Watchdog(
            self._progress,
            limits,
            file=file,
            on_hang=self._on_hang,
            isolation=self._isolation,
            stalls=StallExchange(self._agreement, self._progress, self._isolation),
        )
        self._watchdog.start()

    def _record_step(
        self,
        step: int,
        loss: Any,
        grad_norm: Any,
        tokens: float | None,
        lr: float | None,
        extra: Mapping[str, Any] | None,
        log: bool | None,
    ) -> None:
        if self._agreement.rank != 0:
            # The others need not wait for their device to read a loss that is not used there.
            self._finite = not isinstance(loss, float) or math.isfinite(loss)
            return
        self._meter.add_tokens(tokens)
        if loss is None:
            return
        loss, norm = to_number(loss), None if grad_norm is None else to_number(grad_norm)
        self._finite = math.isfinite(loss)
        self._loss = loss if self._finite else None
        self._isolation.run("detectors", lambda: self._detect(step, loss, norm, lr), None)
        if step % self._log_every == 0 if log is None else log:
            self._isolation.run("the metric line", lambda: self._print(step, loss, norm, lr, extra), None)

    def _print(
        self, step: int, loss: float, grad_norm: float | None, lr: float | None, extra: Mapping[str, Any] | None
    ) -> None:
        trained_s = self._progress.trained_s
        self._meter.report(step=step, loss=loss, grad_norm=grad_norm, lr=lr, trained_s=trained_s, extra=extra)

    def _detect(self, step: int, loss: float, grad_norm: float | None, lr: float | None) -> None:
        seconds, slowest = self._progress.step_s, self._slowest
        is_changed, self._is_changed = self._is_changed, False
        sample = Sample(
            step=step,
            loss=loss,
            grad_norm=grad_norm,
            step_time_s=seconds,
            lr=lr,
            suspect=slowest,
            is_changed=is_changed,
        )
        for finding in self._detection.evaluate(sample):
            self._report_finding(finding)
            if finding.level is Level.INTERVENE:
                self._open_findings[finding.kind] = finding, self._heartbeats
            elif finding.level is not Level.WARN:
                self._open_findings.pop(finding.kind, None)
            if finding.kind is Kind.LOSS_SPIKE and finding.level is Level.WARN and self._settings.save_on_warning:
                self._agreement.raise_flag(agreement.WARNING)

    def _act_on(self, agreed: agreement.Raised, step: int) -> None:
        self._stops = self._stops or agreed[agreement.SIGTERM]
        self._is_fenced = self._is_fenced or agreed[agreement.FENCED]
        if agreed[agreement.COMMAND]:
            self._commands.set_agreed_step(step)
            if self._agreement.lacks_process_group:
                self.save_failed("torch.distributed is not initialized, so the ranks cannot agree on a step")

    def _save_now(self, save: Save, step: int) -> None:
        try:
            with self.phase("save"):
                path = save(self.reason)
        except Exception as error:
            reason = f"the save at step {step} failed: {type(error).__name__}: {error}"
            self._isolation.once("stderr", lambda: print_line(reason), None)
            self.save_failed(reason)
            return
        if path is not None:
            self.committed(path, step)

    def _commit_and_report(self, path: str, step: int | None, durability: Durability | str | None) -> None:
        """Write the manifest of a folder without one, and report the checkpoint."""
        try:
            manifests.commit_if_missing(path, loss=self._loss, health=self.health, reason=self.reason or "periodic")
        except (OSError, ValueError) as error:
            print_line(f"the manifest of {path} cannot be written, so it cannot be resumed from: {error}")
            self.save_failed(f"the manifest of {path} cannot be written: {error}")
            return
        if self._schedule is not None:
            self._schedule.on_durable(time.monotonic())
        at, reason = step if step is not None else self._progress.step, self.reason
        if (tracking := self._tracking) is not None and reason not in ("", "periodic"):
            self._isolation.run("tracking", lambda: tracking.on_checkpoint(at or 0, reason), None)
        durable = Durability(durability) if durability else Durability.REMOTE if "://" in path else Durability.LOCAL
        self._enqueue(self._commands.report_committed(path, step=step, durability=durable, at=_now()))

    def _report_finding(self, finding: Finding, evidence: str = "") -> None:
        print_line(f"{finding.level}: {finding.kind} at step {finding.step}: {finding.evidence}")
        self._enqueue(self._commands.report_finding(finding, at=_now(), evidence=evidence))

    def _on_hang(self, finding: Finding, evidence: str) -> None:
        """Report a hang; called on the watchdog's thread."""
        if self._is_first():
            self._report_finding(finding, evidence)

    def _on_command(self, command: MailboxObject) -> None:
        """Act on a new command, by S3's time; called on the mailbox client's thread."""
        effect = self._commands.receive(command.text, at=command.at)
        if effect.save:
            self._agreement.raise_flag(agreement.COMMAND)
        if effect.fenced:
            self._agreement.raise_flag(agreement.FENCED)
        self._enqueue(effect.report)
        if effect.settings:
            self._take_settings(effect.settings)

    def _take_settings(self, text: str) -> None:
        """Take what the policy sets, from a command: a job that Rerail has not launched has no variables for it."""
        before = self._settings
        self._settings = settings = before.with_policy(text, self._environment, print_line)
        if settings == before:
            return
        print_line(f"settings of the policy: {text}")
        self._detection.thresholds = settings.detection
        if self._schedule is not None:
            self._schedule.set_bounds(settings.interval, mtbf_s=settings.mtbf_s)
        if self._watchdog is not None:
            self._watchdog.limits = HangLimits.from_thresholds(settings.detection, hang_s=settings.hang_s)

    def _make_heartbeat(self) -> bytes:
        """Return the heartbeat of now; called on the mailbox client's thread."""
        progress, (steps, seconds) = self._progress, self._last_heartbeat
        self._last_heartbeat = progress.steps, progress.trained_s
        self._heartbeats += 1
        if self._heartbeats in HELLO_HEARTBEATS:
            self._enqueue_hello()
        for finding, since in list(self._open_findings.values()):
            after = self._heartbeats - since
            if after in FINDING_HEARTBEATS or (after > 0 and after % FINDING_INTERVAL == 0):
                self._enqueue(self._commands.report_finding(finding, at=_now()))
        new = self._last_heartbeat[0] - steps
        return serialize(
            Heartbeat(
                run=self._identity.run,
                attempt=self._identity.attempt,
                job=self._identity.job,
                at=_now(),
                phase=progress.phase,
                step=progress.step,
                moved_at=datetime.fromtimestamp(progress.moved_wall, UTC) if progress.moved_wall else None,
                loss=self._loss,
                step_seconds=(self._last_heartbeat[1] - seconds) / new if new > 0 else None,
                tokens_per_s=self._meter.tokens_per_s,
                restart=self._identity.restart,
            )
        )

    def _enqueue_hello(self) -> None:
        self._enqueue(self._commands.report_hello(at=_now(), abilities=self._abilities))

    def _enqueue(self, report: Report | None) -> None:
        if report is not None and self._mailbox_client is not None:
            self._mailbox_client.enqueue(report)


def _now() -> datetime:
    return datetime.now(UTC)
