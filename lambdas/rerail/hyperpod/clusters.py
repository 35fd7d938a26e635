"""HyperPod clusters: what people are told of their troubles, once each, with the runs that depend on them.

HyperPod mends its own nodes, and Rerail leaves them to it: nothing is done here but telling. What was told is
remembered for each cluster, since there may be no run at all; a notice is recorded before it is said, as everywhere."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from rerail.hyperpod.events import WHOLE, ClusterEventReceived, Condition, ConditionChange
from rerail.messages.messages import ClusterDue, ClusterMessage
from rerail.model.actions import Severity
from rerail.model.errors import Conflict, PolicyError
from rerail.model.policy import ClusterPolicy, Policy, WhichClusters
from rerail.model.runbooks import Runbook
from rerail.notices.notice import Notice
from rerail.ports import Bus, Policies, Runs

TRIES = 8
# The cap on notices counts those of the last hour; what a part was like is of no use after a month.
WINDOW, KEPT_FOR = timedelta(hours=1), timedelta(days=30)
NAMED_RUNS = 10
NOTHING_MORE = "Nothing more: this page is over"
LEFT_ALONE = "nothing but this notice: HyperPod's nodes are left to HyperPod"


@dataclass(frozen=True, slots=True)
class ClusterPart:
    """One part of a cluster as it was last heard of: its condition since when, when people were last told of it (None:
    they were not), whether a page about it stands, and whether they were told that mending it takes long."""

    condition: Condition
    since: datetime
    heard_at: datetime
    told_at: datetime | None = None
    paged: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """What is known of a cluster's parts, when notices about it were told, and those that are still owed."""

    cluster: str
    arn: str = ""
    parts: Mapping[str, ClusterPart] = field(default_factory=dict)
    told: Mapping[Severity, tuple[datetime, ...]] = field(default_factory=dict)
    pending: tuple[Notice, ...] = ()
    version: int = 0

    @property
    def waits(self) -> bool:
        """People were told of something that HyperPod is mending, and may have to be told that it takes long."""
        return any(_is_awaited(part) for part in self.parts.values())


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """A sign that people do not know of yet; `since` is when the trouble began, `paged` says that they were paged,
    `late` that HyperPod takes long to mend it."""

    sign: ConditionChange
    since: datetime
    paged: bool
    late: bool = False

    def severity(self, depending: Sequence[str]) -> Severity:
        """Somebody is woken for what waits for a human alone, or too long for a run, and told when it is over."""
        if self.sign.condition is Condition.WELL:
            return Severity.CLEAR if self.paged else Severity.INFORM
        wakes = self.sign.condition is Condition.BROKEN or (self.late and bool(depending))
        return Severity.PAGE if wakes else Severity.INFORM


class ClusterRecords(Protocol):
    """The memory of clusters."""

    def recall(self, cluster: str) -> ClusterRecord:
        """What is known of the cluster; of an unknown one, nothing."""

    def keep(self, memory: ClusterRecord, *, until: datetime) -> None:
        """Record it if the stored version is `memory.version - 1`, at least until then; raises Conflict if it is
        not."""

    def waiting(self) -> Iterable[ClusterRecord]:
        """Those of clusters of which something is being mended (see `waits`)."""


@dataclass(frozen=True, slots=True)
class ClusterMonitor:
    """The loop for clusters over its ports."""

    memories: ClusterRecords
    runs: Runs
    policies: Policies
    bus: Bus
    clock: Callable[[], datetime]

    def handle(self, wakeup: ClusterMessage) -> ClusterRecord:
        """Tell what is new of the cluster; raises where it could not be told, so that it is tried again."""
        for _ in range(TRIES):
            before = self.memories.recall(wakeup.cluster)
            try:
                return self._say(self._noted(before, wakeup))
            except Conflict:
                continue
        raise Conflict(f"what is known of {wakeup.cluster} is being changed by others again and again: try later")

    def _noted(self, before: ClusterRecord, wakeup: ClusterMessage) -> ClusterRecord:
        at, policy = self.clock(), default_of(self.policies)
        match wakeup:
            case ClusterEventReceived():
                after, news = with_event(before, wakeup, at=at, policy=policy)
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
        """The open runs whose tag names the cluster."""
        names = (memory.cluster, memory.arn)
        runs = (run for _, run in self.runs.open_runs() if run and run.is_open)
        return sorted(run.id for run in runs if run.hyperpod and run.hyperpod in names)


def default_of(policies: Policies) -> ClusterPolicy:
    """The account's default policy: a cluster is no run's own. People are told, whatever has become of it."""
    try:
        return policies.get("default").hyperpod
    except PolicyError:
        return Policy().hyperpod


def with_event(
    memory: ClusterRecord, heard: ClusterEventReceived, *, at: datetime, policy: ClusterPolicy
) -> tuple[ClusterRecord, tuple[ClusterChange, ...]]:
    """What is known after this event, and what of it is news. A repetition is none until `again` has passed; an event
    that is older than what was heard of the same part is none at all."""
    parts, news = {name: part for name, part in memory.parts.items() if at - _newest(part) < KEPT_FOR}, []
    for sign in heard.signs:
        known = parts.get(sign.part)
        if known is None and sign.condition is Condition.WELL or known and heard.at < known.heard_at:
            continue
        same = known is not None and known.condition is sign.condition
        fresh = known is None or known.condition is Condition.WELL
        since = heard.at if known is None or fresh else known.since
        told_at, paged, late = (known.told_at, known.paged, known.late) if known and not fresh else (None, False, False)
        parts[sign.part] = ClusterPart(sign.condition, since, heard.at, told_at, paged, late)
        if sign.condition is Condition.WELL:
            parts[sign.part] = ClusterPart(sign.condition, heard.at, heard.at)
            if told_at:
                news.append(ClusterChange(sign, since, paged))
        elif not same or told_at is None or (policy.again and at - told_at >= policy.again):
            news.append(ClusterChange(sign, since, paged))
    return replace(memory, arn=heard.arn if parts else "", parts=parts), tuple(news)


def find_overdue(memory: ClusterRecord, *, at: datetime, policy: ClusterPolicy) -> tuple[ClusterChange, ...]:
    """What HyperPod has been mending for longer than the policy's patience, and nobody was told of as late."""
    return tuple(
        ClusterChange(
            ConditionChange(name, part.condition, "is still being mended by HyperPod"),
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
    """The memory with a notice owed for each piece of news that people are to be told of."""
    for each in news:
        part, severity = memory.parts[each.sign.part], each.severity(depending)
        if each.late:  # it is looked at once, whoever is told
            part = replace(part, late=True)
            memory = _with(memory, each, part)
        if each.sign.condition is not Condition.WELL and not _concerns(each, depending, policy):
            continue
        recent = tuple(time for time in memory.told.get(severity, ()) if at - time < WINDOW)
        capped = each.sign.condition is not Condition.WELL and each.sign.part != WHOLE
        if capped and len(recent) >= policy.most:
            continue
        is_last = capped and len(recent) + 1 == policy.most
        notice = _notice(each, memory.cluster, depending, at=at, is_last=is_last)
        if each.sign.condition is not Condition.WELL:
            memory = _with(memory, each, replace(part, told_at=at, paged=part.paged or severity is Severity.PAGE))
        told = {**memory.told, severity: (*recent, at)} if capped else memory.told
        memory = replace(memory, told=told, pending=(*memory.pending, notice))
    return memory


def _with(memory: ClusterRecord, news: ClusterChange, part: ClusterPart) -> ClusterRecord:
    return replace(memory, parts={**memory.parts, news.sign.part: part})


def _is_awaited(part: ClusterPart) -> bool:
    return part.condition is Condition.MENDING and part.told_at is not None and not part.late


def _newest(part: ClusterPart) -> datetime:
    """By whichever clock is later: an event may have lain aside for long."""
    return max(part.heard_at, part.told_at or part.heard_at)


def _concerns(news: ClusterChange, depending: Sequence[str], policy: ClusterPolicy) -> bool:
    """That somebody deletes a cluster is their own affair, unless a run needs it."""
    if policy.tell is WhichClusters.NONE:
        return False
    only_if_needed = policy.tell is WhichClusters.NEEDED or news.sign.condition is Condition.GOING
    return bool(depending) or not only_if_needed


def _notice(news: ClusterChange, name: str, depending: Sequence[str], *, at: datetime, is_last: bool) -> Notice:
    sign, severity = news.sign, news.severity(depending)
    thread = f"hyperpod/{name}"
    page = f"{thread}/{sign.part.replace(' ', '/')}"
    subject = f"HyperPod cluster {name}" if sign.part == WHOLE else f"HyperPod cluster {name}: {sign.part}"
    is_over, is_clear = sign.condition is Condition.WELL, severity is Severity.CLEAR
    kind = "late" if news.late else sign.condition
    body = [f"{subject} {sign.what}", f'HyperPod says: "{sign.says}"' if sign.says else "", _spoken_runs(depending)]
    if is_last:
        until = f"{at + WINDOW:%H:%M} UTC"
        body.append(f"There have been many notices about this cluster: until {until} other parts are told no more")
    keys = {Severity.PAGE: page, Severity.CLEAR: f"{page}/clear", Severity.INFORM: f"{page}/{kind}"}
    return Notice(
        run=depending[0] if len(depending) == 1 else thread,  # which no run is called
        severity=severity,
        title=f"HyperPod cluster {name}: all clear: {sign.part} {sign.what}" if is_clear else f"{subject} {sign.what}",
        body=". ".join(filter(None, body)) + ".",
        key=keys[severity],
        at=at,
        thread=thread,
        since=news.since,
        did="" if is_over else LEFT_ALONE,
        todo=NOTHING_MORE if is_clear else _todo(news, name, depending),
        runbook=Runbook.HYPERPOD,
        clears=page if is_clear else "",
    )


def _spoken_runs(depending: Sequence[str]) -> str:
    if not depending:
        return "No open run says that it depends on this cluster"
    more = len(depending) - NAMED_RUNS
    named = ", ".join(depending[:NAMED_RUNS]) + (f" and {more} more" if more > 0 else "")
    return f"Runs that depend on this cluster: {named}"


def _todo(news: ClusterChange, cluster: str, depending: Sequence[str]) -> str:
    kind, _, id = news.sign.part.partition(" ")
    look = f"rerail show {depending[0]}" if depending else ""
    match news.sign.condition, kind:
        case Condition.MENDING, _ if news.late:
            todo = f"See what it waits for: aws sagemaker list-cluster-events --cluster-name {cluster}"
        case Condition.BROKEN, "node":
            command = f"aws sagemaker batch-replace-cluster-nodes --cluster-name {cluster} --node-ids {id}"
            todo = f"Replace the node: {command}"
        case Condition.BROKEN, _:
            todo = f"See what it lacks, and mend it: aws sagemaker describe-cluster --cluster-name {cluster}"
        case Condition.GOING, _:
            todo = "If runs still need the cluster, hold them before it is gone: rerail hold RUN"
        case _:
            return ""
    return f"{todo}. Then see whether the run goes on: {look}" if look else todo
