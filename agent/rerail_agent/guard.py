"""The agent in a training script: one guard, asked once a step. This is the page to read.

    guard = Guard.from_env()
    for step in ...:
        loss = guard.reduce(loss)                   # the mean over the ranks; the agreement rides along
        guard.step(step=step, loss=loss, tokens=tokens)
        if guard.wants_checkpoint:                  # the same on every rank
            guard.committed(save(step))
        if guard.should_stop:
            break

Call reduce() and step() on every rank: they are collective. Everything else may be called anywhere. No method raises on
account of the agent, and none waits for the network; only a collective that fails in reduce() or step() raises, because
then the job has lost a rank.
"""

import atexit
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Phase
from rerail.model.mailbox import Durability, Heartbeat, Report, serialize
from rerail.model.sample import Sample
from rerail_agent import agreement, manifests
from rerail_agent.agreement import Agreement
from rerail_agent.commands import CommandState
from rerail_agent.detection import CLEAN, SUSPECT, StepDetection
from rerail_agent.fault_isolation import FaultIsolation, print_line
from rerail_agent.hang import HangLimits, Watchdog
from rerail_agent.identity import Identity
from rerail_agent.mailbox_client import MailboxClient
from rerail_agent.mailbox_objects import MailboxBucket
from rerail_agent.progress import Progress
from rerail_agent.settings import Settings
from rerail_agent.sigterm import SigtermHandler
from rerail_agent.telemetry import Meter

_forks = 0  # how many forks this process is away from the one that imported this module


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

Save = Callable[[str], str | os.PathLike[str] | None]
LAST_MAIL_S = 5.0
HELLO_AGAIN = (2, 10)  # heartbeats at which the agent says hello again: the first may come before the run is known


class Guard:
    """Watches one rank of a training job. Outside SageMaker it prints metric lines, agrees, and hears SIGTERM.

    `save(reason)`, if given, is called by step() on every rank whenever a checkpoint is wanted; it returns the path
    once the checkpoint is durable, or None where committed() will be called later. `log_every`: steps between metric
    lines. `agree_every`: the most steps between two agreements in a loop that does not call reduce(). `abilities`: what
    the script does beyond saving, so that the supervisor may ask for it: `skip` (it passes over RERAIL_SKIP_SAMPLES),
    `rate` (it multiplies its learning rate by RERAIL_LR_SCALE).
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
        self._harmless = FaultIsolation()
        self._save, self._log_every = save, max(1, log_every)
        restarts = ("restart",) if environment.get("RERAIL_INIT") else ()  # its init can restart it in place
        self._abilities = (*abilities, *restarts)
        self._identity = self._harmless.run(
            "identity", lambda: Identity.from_environment(environment, print_line), otherwise=Identity()
        )
        self._settings = self._harmless.run(
            "settings", lambda: Settings.from_environment(environment, print_line), otherwise=Settings()
        )
        self._agreement = Agreement(every=agree_every, tell=print_line)
        self._agreement.rank, self._agreement.expected = self._identity.rank or 0, self._identity.size
        self._progress, self._meter = Progress(), Meter()
        self._judgement, self._orders = StepDetection(self._settings.detection), CommandState(self._identity)
        self._agreed, self._stops, self._is_fenced, self._finite = agreement.NONE, False, False, True
        self._loss: float | None = None
        self._beaten: tuple[int, float] = (0, 0.0)  # steps and seconds in steps at the last heartbeat
        self._beats = 0
        self._stopping = SigtermHandler(lambda: self._agreement.hoist(agreement.SIGTERM))
        self._courier: MailboxClient | None = None
        self._watchdog: Watchdog | None = None
        self._closed = False
        self._restarted = self._identity.restart > 0  # and no step of it is done yet
        for part, start in (("SIGTERM", self._listen), ("mailbox", self._open), ("watchdog", self._watch)):
            self._harmless.run(part, start, None)

    @classmethod
    def from_env(
        cls, save: Save | None = None, *, log_every: int = 1, agree_every: int = 10, abilities: Sequence[str] = ()
    ) -> "Guard":
        """The guard of this process, as its environment describes it."""
        return cls(save=save, log_every=log_every, agree_every=agree_every, abilities=abilities)

    # ------------------------------------------------------------------ in each step

    def reduce(self, loss: Any) -> float:
        """The mean of the loss over all ranks; a tensor on any device, or a number. Collective."""
        return float(loss) if self._is_child() else self._agreement.reduce(loss)

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
        """A step is done. `loss` is the mean over the ranks (None: not known for this step), `tokens` those of this
        step over all ranks, `extra` further numbers for the metric line, `log` overrides `log_every`. Collective."""
        if self._is_child():
            return
        self._agreement.join()
        if self._courier is not None and not self._is_first():
            self._stand_down(self._courier)
        self._harmless.run("progress", lambda: self._progress.stepped(step), None)
        if self._restarted:
            self._restarted = False
            self._harmless.run("reports", lambda: self._file(self._orders.stepped(step, at=_now())), None)
        self._harmless.run("telemetry", lambda: self._measure(step, loss, grad_norm, tokens, lr, extra, log), None)
        agreed = self._agreement.settle(self._progress.mean_s)
        if agreed is not self._agreed:
            self._agreed = agreed
            self._harmless.run("agreement", lambda: self._act_on(agreed, step), None)
        if self._save is not None and self.wants_checkpoint:
            self._save_now(self._save, step)

    @property
    def wants_checkpoint(self) -> bool:
        """Save now: the same on every rank, from one step() to the next."""
        wanted = self._agreed
        if wanted is agreement.NONE or self._is_fenced or self._agreement.is_mute:
            return False
        return any(wanted[: agreement.FENCED])

    @property
    def reason(self) -> str:
        """Why it wants one: `sigterm`, `emergency` (the supervisor asks) or `warning` (the loss has jumped)."""
        for flag, name in (
            (agreement.SIGTERM, "sigterm"),
            (agreement.COMMAND, "emergency"),
            (agreement.WARNING, "warning"),
        ):
            if self._agreed[flag]:
                return name
        return ""

    @property
    def health(self) -> str:
        """`suspect` while there is trouble with the loss, else `clean`; known to rank 0, which writes the manifest."""
        return CLEAN if self._finite and self._judgement.health == CLEAN else SUSPECT

    @property
    def should_stop(self) -> bool:
        """SIGTERM came to some rank: save, then leave the loop and exit with 0. The same on every rank."""
        return self._stops

    @property
    def fenced(self) -> bool:
        """A newer attempt owns the run: this one must not save any more. The same on every rank."""
        return self._is_fenced

    # ------------------------------------------------------------------ around a save

    def committed(
        self, path: str | os.PathLike[str], step: int | None = None, durability: Durability | str | None = None
    ) -> None:
        """A checkpoint is durable: a folder called `step-<n>` or `checkpoint-<n>`, given a manifest if it has none.

        It is reported if a command waits for it; `durability` says where it lies."""
        if self._is_first():
            self._harmless.once("reports", lambda: self._answer(str(path), step, durability), None)

    def save_failed(self, reason: str) -> None:
        """The checkpoint that was wanted cannot be saved: whoever asked for it waits no longer."""
        if self._is_first():
            self._harmless.once("reports", lambda: self._file(self._orders.failed(str(reason), at=_now())), None)

    def not_restored(self, step: int, reason: str, *, damaged: bool = False, saved_by: int | None = None) -> None:
        """The checkpoint of this step could not be loaded; `damaged`: its files are not those of its manifest.
        `saved_by` is the attempt in its manifest. The supervisor has no attempt resume from it a third time."""
        if self._is_first():
            make = self._orders.not_restored
            self._harmless.once(
                "reports",
                lambda: self._file(make(step, str(reason), damaged=damaged, saved_by=saved_by, at=_now())),
                None,
            )

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Around a `save` or an `evaluation`, so that its time is not taken for a slow step or a hang."""
        if self._is_child():
            return nullcontext()
        return self._harmless.once("phase", lambda: self._progress.within(Phase(name)), nullcontext())

    def report(self, finding: Finding) -> None:
        """Tells the supervisor of something that the script itself has found."""
        if self._is_first():
            self._harmless.once("reports", lambda: self._tell_of(finding), None)

    # ------------------------------------------------------------------ with a checkpoint

    def state_dict(self) -> dict[str, str]:
        """What the detectors have learnt, to be saved with the checkpoint; the same keys on every rank."""
        learnt = self._harmless.run("detectors", self._judgement.state, "") if self._is_first() else ""
        return {"detectors": learnt}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with what they had learnt; what cannot be read is done without."""
        text = state.get("detectors") if isinstance(state, Mapping) else None
        if not self._is_first() or not text:
            return
        try:
            self._judgement.restore(str(text))
        except Exception as error:
            print_line(
                f"the detectors' saved state cannot be read ({type(error).__name__}: {error}); they start afresh"
            )

    def close(self, within_s: float = LAST_MAIL_S) -> None:
        """Sends what is still to be told, for no longer than this, and stops watching."""
        if self._closed or self._is_child():
            return
        self._closed = True
        if self._watchdog is not None:
            self._harmless.run("watchdog", self._watchdog.stop, None)
        if self._courier is not None:
            courier = self._courier
            self._harmless.run("mailbox", lambda: courier.stop(within_s), None)
        self._harmless.run("SIGTERM", self._stopping.restore, None)

    # ------------------------------------------------------------------ inside

    def _is_child(self) -> bool:
        return self._forks != _forks

    def _is_first(self) -> bool:
        return self._agreement.rank == 0 and not self._is_child()

    def _listen(self) -> None:
        self._stopping.listen()

    def _open(self) -> None:
        """Rank 0's line to the supervisor."""
        self._agreement.join()
        atexit.register(self.close, 2.0)
        if not self._identity.bucket or not self._is_first():
            return
        self._courier = MailboxClient(
            MailboxBucket(self._identity.bucket, self._identity.region, self._identity.signing_key),
            self._identity.run,
            hear=self._hear,
            beat=self._beat,
            poll_s=self._settings.poll_s,
            heartbeat_s=self._settings.heartbeat_s,
            harmless=self._harmless,
        )
        self._courier.file(self._orders.hello(at=_now(), abilities=self._abilities))
        self._courier.start()

    def _stand_down(self, courier: MailboxClient) -> None:
        """No launcher had said which rank this is, and now torch.distributed has: another one talks to the mailbox."""
        self._courier = None
        self._harmless.run("mailbox", lambda: courier.stop(0.0), None)

    def _watch(self) -> None:
        if not self._identity.run:
            return
        limits = HangLimits.of(self._settings.detection, hang_s=self._settings.hang_s)
        rank = self._agreement.rank
        file = self._identity.base / "output" / "data" / f"rerail-stacks-rank{rank}.txt"
        self._watchdog = Watchdog(self._progress, limits, file=file, found=self._hangs, harmless=self._harmless)
        self._watchdog.start()

    def _measure(
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
            # The others need not wait for their device to read a loss that nobody asks them for.
            self._finite = not isinstance(loss, float) or math.isfinite(loss)
            return
        self._meter.count(tokens)
        if loss is None:
            return
        loss, norm = float(loss), None if grad_norm is None else float(grad_norm)
        self._finite = math.isfinite(loss)
        self._loss = loss if self._finite else None
        self._harmless.run("detectors", lambda: self._judge(step, loss, norm, lr), None)
        if step % self._log_every == 0 if log is None else log:
            self._harmless.run("the metric line", lambda: self._print(step, loss, norm, lr, extra), None)

    def _print(
        self, step: int, loss: float, grad_norm: float | None, lr: float | None, extra: Mapping[str, Any] | None
    ) -> None:
        trained_s = self._progress.trained_s
        self._meter.report(step=step, loss=loss, grad_norm=grad_norm, lr=lr, trained_s=trained_s, extra=extra)

    def _judge(self, step: int, loss: float, grad_norm: float | None, lr: float | None) -> None:
        sample = Sample(step=step, loss=loss, grad_norm=grad_norm, step_time_s=self._progress.step_s, lr=lr)
        for finding in self._judgement.see(sample):
            self._tell_of(finding)
            if finding.kind is Kind.LOSS_SPIKE and finding.level is Level.WARN and self._settings.save_on_warning:
                self._agreement.hoist(agreement.WARNING)

    def _act_on(self, agreed: agreement.Raised, step: int) -> None:
        self._stops = self._stops or agreed[agreement.SIGTERM]
        self._is_fenced = self._is_fenced or agreed[agreement.FENCED]
        if agreed[agreement.COMMAND]:
            self._orders.agreed(step)
            if self._agreement.is_mute:
                self.save_failed("torch.distributed is not initialized, so the ranks cannot agree on a step")

    def _save_now(self, save: Save, step: int) -> None:
        try:
            with self.phase("save"):
                path = save(self.reason)
        except Exception as error:
            reason = f"the save at step {step} failed: {type(error).__name__}: {error}"
            self._harmless.once("stderr", lambda: print_line(reason), None)
            self.save_failed(reason)
            return
        if path is not None:
            self.committed(path, step)

    def _answer(self, path: str, step: int | None, durability: Durability | str | None) -> None:
        """A folder that a saver of the script's own has written becomes a checkpoint here: by its manifest."""
        try:
            manifests.commit_if_missing(path, loss=self._loss, health=self.health, reason=self.reason or "periodic")
        except (OSError, ValueError) as error:
            print_line(f"{path} has no manifest and gets none, so it cannot be resumed from: {error}")
            self.save_failed(f"the manifest of {path} cannot be written: {error}")
            return
        lies = Durability(durability) if durability else Durability.REMOTE if "://" in path else Durability.LOCAL
        self._file(self._orders.committed(path, step=step, durability=lies, at=_now()))

    def _tell_of(self, finding: Finding, evidence: str = "") -> None:
        print_line(f"{finding.level}: {finding.kind} at step {finding.step}: {finding.evidence}")
        self._file(self._orders.found(finding, at=_now(), evidence=evidence))

    def _hangs(self, finding: Finding, evidence: str) -> None:
        """On the watchdog's thread."""
        if self._is_first():
            self._tell_of(finding, evidence)

    def _hear(self, text: bytes) -> None:
        """On the courier's thread: a new command."""
        heard = self._orders.hear(text, at=_now())
        if heard.save:
            self._agreement.hoist(agreement.COMMAND)
        if heard.fenced:
            self._agreement.hoist(agreement.FENCED)
        self._file(heard.report)

    def _beat(self) -> bytes:
        """On the courier's thread: where the job is now."""
        progress, (steps, seconds) = self._progress, self._beaten
        self._beaten = progress.steps, progress.trained_s
        self._beats += 1
        if self._beats in HELLO_AGAIN:
            self._file(self._orders.hello(at=_now(), abilities=self._abilities))
        new = self._beaten[0] - steps
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
                step_seconds=(self._beaten[1] - seconds) / new if new > 0 else None,
                tokens_per_s=self._meter.tokens_per_s,
                restart=self._identity.restart,
            )
        )

    def _file(self, report: Report | None) -> None:
        if report is not None and self._courier is not None:
            self._courier.file(report)


def _now() -> datetime:
    return datetime.now(UTC)
