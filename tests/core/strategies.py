"""Any record of the core, for Hypothesis: runs with all that they may hold, policies, JSON of any shape."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from rerail.model.actions import (
    Action,
    CopyCheckpoint,
    CreateJob,
    Machines,
    Notify,
    PostCommand,
    QuarantineCheckpoints,
    ReleaseWarmPool,
    StopJob,
)
from rerail.model.codec import NEWER
from rerail.model.file_copies import FileCopy
from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Phase
from rerail.model.machines import Cluster, WarmPool
from rerail.model.mailbox import Command, CommandKind, Durability, Heartbeat, Report, ReportKind
from rerail.model.policy import (
    Backoff,
    Capacity,
    Limits,
    Mode,
    OnDoubtfulEnd,
    OnMaxRuntime,
    Policy,
    Retries,
    SaveTimeouts,
)
from rerail.model.run import (
    Attempt,
    HealthLabel,
    Incident,
    InPlaceRestart,
    Ledger,
    OpenPage,
    PlannedStop,
    Proposal,
    Run,
    RungTaken,
    StateChange,
    TimelineEntry,
)

YEAR = timedelta(days=366)

moments = st.datetimes(min_value=datetime(2020, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC))
words = st.text(max_size=12)
counts = st.integers(0, 1_000_000)
steps = st.none() | counts
durations = st.timedeltas(timedelta(0), YEAR)
job_names = st.text("abzABZ0159-", min_size=1, max_size=63).filter(lambda name: name.strip("-") == name)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)

names = st.text("abz019._-", min_size=1, max_size=20)
numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
commands = st.builds(
    Command,
    id=names,
    run=job_names,
    attempt=counts,
    kind=st.sampled_from(CommandKind),
    asked_at=moments,
    deadline=st.none() | moments,
    reason=words,
    restart=counts,
    resume_step=steps,
    skip_samples=st.sampled_from(["", "10240-10495,20000-20015"]),
    rate=st.floats(0.001, 10),
)
findings = st.builds(
    Finding,
    kind=st.sampled_from(Kind),
    level=st.sampled_from(Level),
    step=steps,
    onset_step=steps,
    evidence=words,
    at=st.none() | moments,
    onset_at=st.none() | moments,
)
reports = st.builds(
    Report,
    id=names,
    run=job_names,
    attempt=counts,
    job=job_names,
    kind=st.sampled_from(ReportKind),
    at=moments,
    command=names | st.just(""),
    step=steps,
    durability=st.none() | st.sampled_from(Durability),
    path=words,
    reason=words,
    findings=st.lists(findings, max_size=3).map(tuple),
    evidence=words,
)
heartbeats = st.builds(
    Heartbeat,
    run=job_names,
    attempt=counts,
    job=job_names,
    at=moments,
    phase=st.sampled_from(Phase),
    step=steps,
    moved_at=st.none() | moments,
    loss=numbers,
    step_seconds=numbers,
    tokens_per_s=numbers,
)
policies = st.builds(
    Policy,
    name=st.just("any"),
    mode=st.sampled_from(Mode),
    on_max_runtime=st.sampled_from(OnMaxRuntime),
    on_doubtful_end=st.sampled_from(OnDoubtfulEnd),
    retries=st.builds(
        Retries,
        infrastructure=counts,
        hardware=counts,
        hang=counts,
        diverged=counts,
        user_code=counts,
        data=counts,
        oom=counts,
    ),
    limits=st.builds(Limits, attempts=counts, attempts_without_progress=counts, starts=counts, starts_window=durations),
    backoff=st.builds(Backoff, base=durations, cap=durations),
    capacity=st.builds(
        Capacity,
        wait=durations,
        base=durations,
        cap=durations,
        fallback_after=durations,
        fallbacks=st.lists(st.sampled_from(["ml.p4de.24xlarge", "subnet-1"]), max_size=2).map(tuple),
    ),
    save=st.builds(SaveTimeouts, answer=durations, deadline=durations),
)


def build(cls: type, **given: st.SearchStrategy) -> st.SearchStrategy:
    """Return records of a class: a field is drawn by its type unless it is given, and tuples are short."""
    types = get_type_hints(cls)
    for field in fields(cls):
        if get_origin(types[field.name]) is tuple:
            part = get_args(types[field.name])[0]
            given.setdefault(field.name, st.lists(st.from_type(part), max_size=2).map(tuple))
        given.setdefault(field.name, st.just("") if field.name == NEWER else st.from_type(types[field.name]))
    strategy = st.builds(cls, **given)
    st.register_type_strategy(cls, strategy)
    return strategy


for known, drawn in {
    str: words,
    int: counts,
    float: st.floats(0.1, 1.0),
    datetime: moments,
    timedelta: durations,
    Command: commands,
    Finding: findings,
    Policy: policies,
}.items():
    st.register_type_strategy(known, drawn)
# In this order a record comes after those that it holds.
tells = build(Notify)
for record in (Machines, WarmPool, Cluster, FileCopy, CreateJob, StopJob, QuarantineCheckpoints, ReleaseWarmPool):
    build(record)
for record in (PostCommand, CopyCheckpoint, InPlaceRestart, HealthLabel, RungTaken, Proposal, PlannedStop, OpenPage):
    build(record)
build(Incident)
build(StateChange)
actions = st.from_type(Action | Notify)
ledgers = build(Ledger)
runs = build(Run, attempts=st.lists(build(Attempt), min_size=1, max_size=3).map(tuple))
plain = st.dictionaries(words, st.none() | st.integers() | words, max_size=3)
changes = st.lists(st.dictionaries(words, words, max_size=2), max_size=2).map(tuple)
timeline_entries = build(TimelineEntry, signal=plain, inputs=plain, actions=changes)
