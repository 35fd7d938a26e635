"""Send notices about problems of HyperPod clusters, once each, with the runs that depend on them.

HyperPod repairs its own nodes, so Rerail takes no action besides the notices. What was reported is recorded for each
cluster, since there may be no run at all. As everywhere, a notice is recorded before it is sent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from rerail.messages.cluster_events import WHOLE, ClusterEventReceived, Condition, ConditionChange
from rerail.messages.messages import ClusterDue, ClusterMessage
from rerail.model.actions import Severity
from rerail.model.errors import Conflict, PolicyError
from rerail.model.notice import Notice
from rerail.model.policy import ClusterPolicy, Policy, WhichClusters
from rerail.model.runbooks import Runbook
from rerail.ports import Bus, Policies, Runs

TRIES = 8
# The limit on notices counts those of the last hour; the condition of a part is dropped after a month.
WINDOW, KEPT_FOR = timedelta(hours=1), timedelta(days=30)
MOST_PARTS = 1_000  # of a cluster's record: DynamoDB takes 400 KB
CLOCKS_DIFFER = timedelta(minutes=10)  # at most
NAMED_RUNS = 10
NOTHING_MORE = "Nothing more: this page is over"
LEFT_ALONE = "nothing but this notice: HyperPod's nodes are left to HyperPod"


@dataclass(frozen=True, slots=True)
class ClusterPart:
    """The last known state of one part of a cluster."""

    condition: Condition
    # When the condition began.
    since: datetime
    # The time of the last event about the part.
    received_at: datetime
    # When the last notice about it was sent; None: never.
    notified_at: datetime | None = None
    # A page about it is open.
    paged: bool = False
    # A notice was sent that its repair takes long.
    late: bool = False


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The recorded state of a cluster."""

    cluster: str
    arn: str = ""
    parts: Mapping[str, ClusterPart] = field(default_factory=dict)
    # When notices of each severity were sent in the last hour.
    notified: Mapping[Severity, tuple[datetime, ...]] = field(default_factory=dict)
    # Notices that are not sent yet.
    pending: tuple[Notice, ...] = ()
    version: int = 0

    @property
    def waits(self) -> bool:
        """Return whether HyperPod is repairing a reported part, so that a late notice may be due."""
        return any(_is_awaited(part) for part in self.parts.values())


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """A change of condition that was not reported yet."""

    sign: ConditionChange
    # When the problem began.
    since: datetime
    # On-call was paged about the part.
    paged: bool
    # HyperPod takes long to repair it.
    late: bool = False

    def severity(self, depending: Sequence[str]) -> Severity:
        """Return the severity of the notice, given the runs that depend on the cluster.

        On-call is paged for problems that need an operator or delay a run too long, and gets an all-clear afterwards.
        """
        if self.sign.condition is Condition.HEALTHY:
            return Severity.CLEAR if self.paged else Severity.INFORM
        wakes = self.sign.condition is Condition.BROKEN or (self.late and bool(depending))
        return Severity.PAGE if wakes else Severity.INFORM


class ClusterRecords(Protocol):
    """The store of cluster records."""

    def recall(self, cluster: str) -> ClusterRecord:
        """Return the record of the cluster; an empty one if there is none."""

    def keep(self, memory: ClusterRecord, *, until: datetime) -> None:
        """Store the record at least until `until`; raise Conflict unless the stored version is `memory.version - 1`."""

    def waiting(self) -> Iterable[ClusterRecord]:
        """Return the records of clusters with a part under repair (see `waits`)."""


@dataclass(frozen=True, slots=True)
class ClusterMonitor:
    """Processes messages about clusters."""

    memories: ClusterRecords
    runs: Runs
    policies: Policies
    bus: Bus
    clock: Callable[[], datetime]

    def handle(self, message: ClusterMessage) -> ClusterRecord:
        """Record the news of a cluster and send notices; raise an error if sending fails, so that it is tried again."""
        for _ in range(TRIES):
            before = self.memories.recall(message.cluster)
            try:
                return self._say(self._noted(before, message))
            except Conflict:
                continue
        raise Conflict(f"the record of {message.cluster} is being changed concurrently again and again: try later")

    def _noted(self, before: ClusterRecord, message: ClusterMessage) -> ClusterRecord:
        at, policy = self.clock(), default_of(self.policies)
        match message:
            case ClusterEventReceived():
                after, news = with_event(before, message, at=at, policy=policy)
            case ClusterDue():
                after, news = before, find_overdue(before, at=at, policy=policy)
        if news:
            after = with_notices(after, news, self._depending(after), at=at, policy=policy)
        return self._kept(after) if after != before else before

    def _say(self, memory: ClusterRecord) -> ClusterRecord:
        if not memory.pending:
            return memory
        for notice in memory.pending:
            self.bus.publish(notice)
        return self._kept(replace(memory, pending=()))

    def _kept(self, memory: ClusterRecord) -> ClusterRecord:
        after = replace(memory, version=memory.version + 1)
        self.memories.keep(after, until=self.clock() + KEPT_FOR)
        return after

    def _depending(self, memory: ClusterRecord) -> list[str]:
        """Return the ids of the open runs whose tag names the cluster."""
        names = (memory.cluster, memory.arn)
        runs = (run for _, run in self.runs.open_runs() if run and run.is_open)
        return sorted(run.id for run in runs if run.hyperpod and run.hyperpod in names)


def default_of(policies: Policies) -> ClusterPolicy:
    """Return the cluster settings of the default policy, or the built-in ones if that policy is invalid."""
    try:
        return policies.get("default").hyperpod
    except PolicyError:
        return Policy().hyperpod


def with_event(
    memory: ClusterRecord, event: ClusterEventReceived, *, at: datetime, policy: ClusterPolicy
) -> tuple[ClusterRecord, tuple[ClusterChange, ...]]:
    """Return the record after an event, and the changes to report.

    A repetition is reported only after `policy.again`. An event older than the last one about the same part is ignored.
    One from the future counts from about its arrival: it would hide all others until then.
    """
    event = replace(event, at=min(event.at, at + CLOCKS_DIFFER))
    parts, news = {name: part for name, part in memory.parts.items() if at - _last_activity(part) < KEPT_FOR}, []
    for sign in event.signs:
        known = parts.get(sign.part)
        if known is None and sign.condition is Condition.HEALTHY or known and event.at < known.received_at:
            continue
        same = known is not None and known.condition is sign.condition
        fresh = known is None or known.condition is Condition.HEALTHY
        since, notified_at, paged, late = event.at, None, False, False
        if known and not fresh:
            since, notified_at, paged, late = known.since, known.notified_at, known.paged, known.late
        parts[sign.part] = ClusterPart(sign.condition, since, event.at, notified_at, paged, late)
        if sign.condition is Condition.HEALTHY:
            parts[sign.part] = ClusterPart(sign.condition, event.at, event.at)
            if notified_at:
                news.append(ClusterChange(sign, since, paged))
        elif not same or notified_at is None or (policy.again and at - notified_at >= policy.again):
            news.append(ClusterChange(sign, since, paged))
    if len(parts) > MOST_PARTS:
        about = {sign.part for sign in event.signs}
        order = sorted(parts, key=lambda name: (name in about, parts[name].paged, _last_activity(parts[name])))
        parts = {name: parts[name] for name in order[-MOST_PARTS:]}
    return replace(memory, arn=event.arn if parts else "", parts=parts), tuple(news)


def find_overdue(memory: ClusterRecord, *, at: datetime, policy: ClusterPolicy) -> tuple[ClusterChange, ...]:
    """Return the parts under repair for longer than the policy's patience that were not yet reported as late."""
    return tuple(
        ClusterChange(
            ConditionChange(name, part.condition, "is still being repaired by HyperPod"),
            part.since,
            part.paged,
            late=True,
        )
        for name, part in memory.parts.items()
        if policy.patience and _is_awaited(part) and at - part.since >= policy.patience
    )


def with_notices(
    memory: ClusterRecord,
    news: Sequence[ClusterChange],
    depending: Sequence[str],
    *,
    at: datetime,
    policy: ClusterPolicy,
) -> ClusterRecord:
    """Return the record with a pending notice for each change that has to be reported."""
    for change in news:
        part, severity = memory.parts[change.sign.part], change.severity(depending)
        if change.late:  # lateness is reported at most once, whether or not a notice follows
            part = replace(part, late=True)
            memory = _with_part(memory, change, part)
        if change.sign.condition is not Condition.HEALTHY and not _is_reportable(change, depending, policy):
            continue
        recent = tuple(time for time in memory.notified.get(severity, ()) if at - time < WINDOW)
        capped = change.sign.condition is not Condition.HEALTHY
        # Notices about parts never take the room of those about the cluster itself.
        if capped and len(recent) >= policy.most * (2 if change.sign.part == WHOLE else 1):
            continue
        is_last = capped and len(recent) + 1 == policy.most
        notice = _make_notice(change, memory.cluster, depending, at=at, is_last=is_last)
        if change.sign.condition is not Condition.HEALTHY:
            memory = _with_part(
                memory, change, replace(part, notified_at=at, paged=part.paged or severity is Severity.PAGE)
            )
        notified = {**memory.notified, severity: (*recent, at)} if capped else memory.notified
        memory = replace(memory, notified=notified, pending=(*memory.pending, notice))
    return memory


def _with_part(memory: ClusterRecord, news: ClusterChange, part: ClusterPart) -> ClusterRecord:
    return replace(memory, parts={**memory.parts, news.sign.part: part})


def _is_awaited(part: ClusterPart) -> bool:
    return part.condition is Condition.RECOVERING and part.notified_at is not None and not part.late


def _last_activity(part: ClusterPart) -> datetime:
    """Return the later of the last event and the last notice, since an event may have been delayed for long."""
    return max(part.received_at, part.notified_at or part.received_at)


def _is_reportable(news: ClusterChange, depending: Sequence[str], policy: ClusterPolicy) -> bool:
    """Return whether a change has to be reported; a deletion only if a run needs the cluster."""
    if policy.notify_for is WhichClusters.NONE:
        return False
    only_if_needed = policy.notify_for is WhichClusters.NEEDED or news.sign.condition is Condition.LEAVING
    return bool(depending) or not only_if_needed


def _make_notice(news: ClusterChange, name: str, depending: Sequence[str], *, at: datetime, is_last: bool) -> Notice:
    sign, severity = news.sign, news.severity(depending)
    thread = f"hyperpod/{name}"
    page = f"{thread}/{sign.part.replace(' ', '/')}"
    subject = f"HyperPod cluster {name}" if sign.part == WHOLE else f"HyperPod cluster {name}: {sign.part}"
    is_over, is_clear = sign.condition is Condition.HEALTHY, severity is Severity.CLEAR
    kind = "late" if news.late else sign.condition
    body = [
        f"{subject} {sign.what}",
        f'HyperPod reports: "{sign.message}"' if sign.message else "",
        _format_runs(depending),
    ]
    if is_last:
        until = f"{at + WINDOW:%H:%M} UTC"
        body.append(f"There have been many notices about this cluster: until {until} other parts are not reported")
    keys = {Severity.PAGE: page, Severity.CLEAR: f"{page}/clear", Severity.INFORM: f"{page}/{kind}"}
    return Notice(
        run=depending[0] if len(depending) == 1 else thread,  # which cannot be the name of a run
        severity=severity,
        title=f"HyperPod cluster {name}: all clear: {sign.part} {sign.what}" if is_clear else f"{subject} {sign.what}",
        body=". ".join(filter(None, body)) + ".",
        key=keys[severity],
        at=at,
        thread=thread,
        since=news.since,
        did="" if is_over else LEFT_ALONE,
        todo=NOTHING_MORE if is_clear else _format_todo(news, name, depending),
        runbook=Runbook.HYPERPOD,
        clears=page if is_clear else "",
    )


def _format_runs(depending: Sequence[str]) -> str:
    if not depending:
        return "No open run is tagged as depending on this cluster"
    more = len(depending) - NAMED_RUNS
    named = ", ".join(depending[:NAMED_RUNS]) + (f" and {more} more" if more > 0 else "")
    return f"Runs that depend on this cluster: {named}"


def _format_todo(news: ClusterChange, cluster: str, depending: Sequence[str]) -> str:
    kind, _, id = news.sign.part.partition(" ")
    look = f"rerail show {depending[0]}" if depending else ""
    match news.sign.condition, kind:
        case Condition.RECOVERING, _ if news.late:
            todo = f"Check what it waits for: aws sagemaker list-cluster-events --cluster-name {cluster}"
        case Condition.BROKEN, "node":
            command = f"aws sagemaker batch-replace-cluster-nodes --cluster-name {cluster} --node-ids {id}"
            todo = f"Replace the node: {command}"
        case Condition.BROKEN, _:
            todo = f"Check what is wrong and repair it: aws sagemaker describe-cluster --cluster-name {cluster}"
        case Condition.LEAVING, _:
            todo = "If runs still need the cluster, hold them before it is gone: rerail hold RUN"
        case _:
            return ""
    return f"{todo}. Then check that the run continues: {look}" if look else todo
