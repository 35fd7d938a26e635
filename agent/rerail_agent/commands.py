"""What the supervisor asks of this attempt, and what it is answered."""

import hashlib
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rerail.model.errors import BadMailboxObject
from rerail.model.finding import Finding
from rerail.model.mailbox import (
    LIMITS,
    SIZE_LIMIT,
    Command,
    CommandKind,
    Durability,
    Report,
    ReportKind,
    read_command,
    serialize,
)
from rerail_agent.identity import Identity

UNFIT = re.compile(r"[^a-zA-Z0-9._-]")
ID_LENGTH = 60


@dataclass(frozen=True, slots=True)
class CommandEffect:
    """What a command changes: whether to save, whether this attempt is fenced, and what to answer."""

    save: bool = False
    fenced: bool = False
    report: Report | None = None


class CommandState:
    """The newest command of the mailbox, and how far it has come; heard in one thread, answered in another."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._lock = threading.Lock()
        self._known: set[str] = set()  # ids of commands, digests of what was none
        self._waiting: Command | None = None
        self._agreed: int | None = None
        self._fenced_by: int | None = None

    def hear(self, text: bytes, *, at: datetime) -> CommandEffect:
        """A command object, in whatever state it is, for whomever it is."""
        with self._lock:
            try:
                command = read_command(text, run=self._identity.run)
            except BadMailboxObject as error:
                return self._refused_once(hashlib.sha256(text).hexdigest()[:16], "", str(error), at=at)
            return self._heard(command, at=at)

    def _heard(self, command: Command, *, at: datetime) -> CommandEffect:
        if command.attempt < self._identity.attempt:
            return CommandEffect()
        if command.attempt > self._identity.attempt:
            return self._fenced(command, at=at)
        if command.kind is not CommandKind.CHECKPOINT or command.id in self._known:
            return CommandEffect()
        if command.deadline is not None and command.deadline <= at:
            late = (at - command.deadline).total_seconds()
            return self._refused_once(command.id, command.id, f"its deadline passed {late:.0f} s ago", at=at)
        self._known.add(command.id)
        self._waiting, self._agreed = command, None
        return CommandEffect(
            save=True, report=self._report(ReportKind.ACKNOWLEDGED, command.id, at=at, command=command.id)
        )

    def _fenced(self, command: Command, *, at: datetime) -> CommandEffect:
        if self._fenced_by is not None:
            return CommandEffect(fenced=True)
        self._fenced_by = command.attempt
        answered, self._waiting = self._waiting, None
        reason = f"attempt {command.attempt} owns the run: attempt {self._identity.attempt} saves no more"
        name = f"fenced-by-{command.attempt}"
        heard = self._refused_once(name, answered.id if answered else "", reason, at=at)
        return replace(heard, fenced=True)

    def _refused_once(self, name: str, command: str, reason: str, *, at: datetime) -> CommandEffect:
        if name in self._known:
            return CommandEffect()
        self._known.add(name)
        return CommandEffect(report=self._report(ReportKind.REFUSED, name, at=at, command=command, reason=reason))

    def agreed(self, step: int | None) -> None:
        """The ranks save at this step: what was saved before it does not answer the command."""
        with self._lock:
            if self._waiting is not None and self._agreed is None:
                self._agreed = step

    def committed(self, path: str, *, step: int | None, durability: Durability, at: datetime) -> Report | None:
        """A checkpoint is durable: the answer, if a command waits for it."""
        with self._lock:
            if self._waiting is None or self._agreed is None or (step is not None and step < self._agreed):
                return None
            command, self._waiting = self._waiting, None
            step = self._agreed if step is None else step
        report = self._report(ReportKind.CHECKPOINT, command.id, at=at, command=command.id)
        return replace(report, step=step, durability=durability, path=_whole(path, LIMITS["path"]))

    def failed(self, reason: str, *, at: datetime) -> Report | None:
        """The save that a command waits for cannot be done: the answer."""
        with self._lock:
            if self._waiting is None:
                return None
            command, self._waiting = self._waiting, None
        return self._report(ReportKind.REFUSED, command.id, at=at, command=command.id, reason=reason)

    def hello(self, *, at: datetime, abilities: Sequence[str] = ()) -> Report:
        return replace(self._report(ReportKind.HELLO, "", at=at), abilities=tuple(abilities))

    def not_restored(self, step: int, reason: str, *, damaged: bool, saved_by: int | None, at: datetime) -> Report:
        """A checkpoint that could not be loaded; each try is a report of its own."""
        told = ReportKind.DAMAGED if damaged else ReportKind.UNLOADED
        report = self._report(told, f"{step}-{at:%Y%m%dT%H%M%S.%f}", at=at, reason=reason)
        return replace(report, step=step, saved_by=saved_by)

    def stepped(self, step: int, *, at: datetime) -> Report:
        """The first step since a restart in place is done."""
        return replace(self._report(ReportKind.RESTARTED, "step", at=at), step=step)

    def found(self, finding: Finding, *, at: datetime, evidence: str = "") -> Report:
        """One finding's report; `evidence` is text for people, such as stacks, the innermost first."""
        where = finding.onset_step if finding.onset_step is not None else finding.step
        name = f"{finding.kind}-{finding.level}-{'start' if where is None else where}"
        report = self._report(ReportKind.FINDINGS, name, at=at)
        said = replace(finding, evidence=_whole(finding.evidence, LIMITS["evidence"]))
        return truncate_report(replace(report, findings=(said,), evidence=_whole(evidence, LIMITS["evidence"])))

    def _report(self, told: ReportKind, name: str, *, at: datetime, command: str = "", reason: str = "") -> Report:
        return Report(
            id="-".join(part for part in (self._place, told.value, _plain(name)) if part),
            run=self._identity.run,
            attempt=self._identity.attempt,
            job=self._identity.job[:128],
            kind=told,
            at=at,
            command=command,
            reason=_whole(reason, LIMITS["reason"]),
            restart=self._identity.restart,
        )

    @property
    def _place(self) -> str:
        """The attempt, and its restart in place: what each has to say stands in objects of its own."""
        attempt, restart = self._identity.attempt, self._identity.restart
        return f"a{attempt:03d}-r{restart}" if restart else f"a{attempt:03d}"


def truncate_report(report: Report) -> Report:
    """The report with as much of its evidence as its reader takes: JSON makes six bytes of one rare character."""
    while len(serialize(report)) > SIZE_LIMIT and report.evidence:
        report = replace(report, evidence=report.evidence[: int(len(report.evidence) * 0.8)])
    return report


def _whole(text: str, limit: int) -> str:
    """The text's beginning, without the halves of characters that undecodable file names consist of."""
    return text[:limit].encode("utf-8", "replace").decode()


def _plain(name: str) -> str:
    """The name as a part of an object's; one that has to be changed gets a digest, so that it stays its own."""
    plain = UNFIT.sub("-", name)[:ID_LENGTH]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
