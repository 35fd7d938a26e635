"""Read the supervisor's commands to this attempt, and make the reports that answer them."""

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
from rerail.model.signatures import UNSEALED
from rerail_agent.identity import Identity

UNSAFE_CHARACTERS = re.compile(r"[^a-zA-Z0-9._-]")
ID_LENGTH = 60


@dataclass(frozen=True, slots=True)
class CommandEffect:
    """The effect of a command object on this attempt."""

    # Whether to save a checkpoint.
    save: bool = False
    # Whether a newer attempt owns the run.
    fenced: bool = False
    # The report to send, if any.
    report: Report | None = None
    # What the policy sets, as JSON; "" for nothing.
    settings: str = ""


class CommandState:
    """The newest command of the mailbox and its progress; received in one thread, answered in another."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._lock = threading.Lock()
        self._known: set[str] = set()  # ids of commands, digests of unreadable ones
        self._waiting: Command | None = None
        self._agreed: int | None = None
        self._fenced_by: int | None = None

    def receive(self, text: bytes, *, at: datetime) -> CommandEffect:
        """Return the effect of a command object, which may be malformed or meant for another attempt."""
        with self._lock:
            try:
                command = read_command(text, run=self._identity.run, signing_key=self._identity.signing_key)
            except BadMailboxObject as error:
                # Forged commands, of which there may be any number, are reported once.
                name = UNSEALED if error.defect == UNSEALED else hashlib.sha256(text).hexdigest()[:16]
                return self._refuse_once(name, "", str(error), at=at)
            return self._apply(command, at=at)

    def _apply(self, command: Command, *, at: datetime) -> CommandEffect:
        if command.attempt < self._identity.attempt:
            return CommandEffect()
        if command.attempt > self._identity.attempt:
            return self._fence(command, at=at)
        if command.kind is not CommandKind.CHECKPOINT or command.id in self._known:
            return CommandEffect(settings=command.settings)
        if command.deadline is not None and command.deadline <= at:
            late = (at - command.deadline).total_seconds()
            return self._refuse_once(command.id, command.id, f"its deadline passed {late:.0f} s ago", at=at)
        self._known.add(command.id)
        self._waiting, self._agreed = command, None
        report = self._report(ReportKind.ACKNOWLEDGED, command.id, at=at, command=command.id)
        return CommandEffect(save=True, report=report, settings=command.settings)

    def _fence(self, command: Command, *, at: datetime) -> CommandEffect:
        if self._fenced_by is not None:
            return CommandEffect(fenced=True)
        self._fenced_by = command.attempt
        answered, self._waiting = self._waiting, None
        reason = f"attempt {command.attempt} owns the run: attempt {self._identity.attempt} saves no more"
        name = f"fenced-by-{command.attempt}"
        effect = self._refuse_once(name, answered.id if answered else "", reason, at=at)
        return replace(effect, fenced=True)

    def _refuse_once(self, name: str, command: str, reason: str, *, at: datetime) -> CommandEffect:
        if name in self._known:
            return CommandEffect()
        self._known.add(name)
        return CommandEffect(report=self._report(ReportKind.REFUSED, name, at=at, command=command, reason=reason))

    def set_agreed_step(self, step: int | None) -> None:
        """Record the step at which the ranks save; a checkpoint of an earlier step does not answer the command."""
        with self._lock:
            if self._waiting is not None and self._agreed is None:
                self._agreed = step

    def report_committed(self, path: str, *, step: int | None, durability: Durability, at: datetime) -> Report | None:
        """Return the report of a durable checkpoint, if a command waits for it."""
        with self._lock:
            if self._waiting is None or self._agreed is None or (step is not None and step < self._agreed):
                return None
            command, self._waiting = self._waiting, None
            step = self._agreed if step is None else step
        report = self._report(ReportKind.CHECKPOINT, command.id, at=at, command=command.id)
        return replace(report, step=step, durability=durability, path=_truncate(path, LIMITS["path"]))

    def report_failed(self, reason: str, *, at: datetime) -> Report | None:
        """Return the report that the save cannot be done, if a command waits for it."""
        with self._lock:
            if self._waiting is None:
                return None
            command, self._waiting = self._waiting, None
        return self._report(ReportKind.REFUSED, command.id, at=at, command=command.id, reason=reason)

    def report_hello(self, *, at: datetime, abilities: Sequence[str] = ()) -> Report:
        """Return the report that the agent runs, with the script's abilities."""
        return replace(self._report(ReportKind.HELLO, "", at=at), abilities=tuple(abilities))

    def report_not_restored(
        self, step: int, reason: str, *, damaged: bool, saved_by: int | None, at: datetime
    ) -> Report:
        """Return the report of a checkpoint that could not be loaded; each attempt to load is a report of its own."""
        kind = ReportKind.DAMAGED if damaged else ReportKind.UNLOADED
        report = self._report(kind, f"{step}-{at:%Y%m%dT%H%M%S.%f}", at=at, reason=reason)
        return replace(report, step=step, saved_by=saved_by)

    def report_restarted(self, step: int, *, at: datetime) -> Report:
        """Return the report of the first step after a start that the supervisor has ordered."""
        return replace(self._report(ReportKind.RESTARTED, "step", at=at), step=step)

    def report_finding(self, finding: Finding, *, at: datetime, evidence: str = "") -> Report:
        """Return the report of a finding; `evidence` is text for people, such as stacks, innermost frame first."""
        where = finding.onset_step if finding.onset_step is not None else finding.step
        name = f"{finding.kind}-{finding.level}-{'start' if where is None else where}"
        report = self._report(ReportKind.FINDINGS, name, at=at)
        shortened = replace(finding, evidence=_truncate(finding.evidence, LIMITS["evidence"]))
        return truncate_report(replace(report, findings=(shortened,), evidence=_truncate(evidence, LIMITS["evidence"])))

    def _report(self, kind: ReportKind, name: str, *, at: datetime, command: str = "", reason: str = "") -> Report:
        return Report(
            id="-".join(part for part in (self._prefix, kind.value, _make_key_part(name)) if part),
            run=self._identity.run,
            attempt=self._identity.attempt,
            job=self._identity.job[:128],
            kind=kind,
            at=at,
            command=command,
            reason=_truncate(reason, LIMITS["reason"]),
            restart=self._identity.restart,
        )

    @property
    def _prefix(self) -> str:
        """Return the attempt and its restart in place, so that each has report objects of its own."""
        attempt, restart = self._identity.attempt, self._identity.restart
        return f"a{attempt:03d}-r{restart}" if restart else f"a{attempt:03d}"


def truncate_report(report: Report) -> Report:
    """Shorten the report's evidence to the size limit; JSON may take six bytes for one character."""
    while len(serialize(report)) > SIZE_LIMIT and report.evidence:
        report = replace(report, evidence=report.evidence[: int(len(report.evidence) * 0.8)])
    return report


def _truncate(text: str, limit: int) -> str:
    """Return the text's beginning, without the lone surrogates of undecodable file names."""
    return text[:limit].encode("utf-8", "replace").decode()


def _make_key_part(name: str) -> str:
    """Return the name as part of an object key; a name that must be changed gets a digest, so that it stays unique."""
    plain = UNSAFE_CHARACTERS.sub("-", name)[:ID_LENGTH]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
