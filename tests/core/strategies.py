"""Any record of the core, for Hypothesis: runs with all that they may hold, policies, JSON of any shape."""

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from rerail.model.actions import (
    ClearedBy,
    CreateJob,
    Machines,
    Notify,
    PostCommand,
    QuarantineCheckpoints,
    ReleaseWarmPool,
    Severity,
    StopJob,
)
from rerail.model.causes import Cause
from rerail.model.checkpoints import Health
from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Phase
from rerail.model.machines import Cluster, WarmPool
from rerail.model.mailbox import Command, CommandKind, Durability, Heartbeat, Report, ReportKind
from rerail.model.policy import Backoff, Capacity, Limits, Mode, OnMaxRuntime, Policy, Retries, SaveTimeouts
from rerail.model.run import (
    AfterStop,
    Attempt,
    HealthLabel,
    Incident,
    InPlaceRestart,
    JobStatus,
    LaunchCheck,
    Ledger,
    OpenPage,
    PlannedStop,
    Proposal,
    ProposedAction,
    Run,
    RungTaken,
    RunState,
    TimelineEntry,
)
from rerail.model.runbooks import Runbook
from rerail.model.self_repairs import SelfRepair

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
machines = st.builds(Machines, st.lists(words, max_size=2).map(tuple), st.lists(words, max_size=2).map(tuple))
pools = st.builds(WarmPool, status=words, billed_s=counts, reused_by=words)
clusters = st.builds(Cluster, role=words, instance_types=st.lists(words, max_size=2).map(tuple), spot=st.booleans())
tells = st.builds(
    Notify,
    severity=st.sampled_from(Severity),
    title=words,
    body=words,
    key=words,
    runbook=st.sampled_from(Runbook),
    did=words,
    todo=words,
    since=st.none() | moments,
    by=st.none() | moments,
    clears=words,
    until=st.sampled_from(ClearedBy),
    about=words,
)
actions = st.one_of(
    st.builds(PostCommand, command=commands),
    st.builds(CreateJob, job_name=words, attempt=counts, resume_step=steps, machines=st.none() | machines),
    st.builds(StopJob, job_name=words),
    st.builds(
        QuarantineCheckpoints,
        run=words,
        attempt=counts,
        uri=words,
        resume_step=steps,
        saved_before=moments,
        strict=st.booleans(),
        is_vital=st.booleans(),
        saved_after=st.none() | moments,
    ),
    st.builds(ReleaseWarmPool, job_name=words),
    tells,
)
orders = st.builds(
    InPlaceRestart,
    number=counts,
    command_id=words,
    reason=words,
    asked_at=moments,
    deadline=moments,
    resume_step=steps,
    skip_samples=words,
    before_step=steps,
    last_step=steps,
    restarted_at=st.none() | moments,
    stepped_at=st.none() | moments,
    failed=words,
)
attempts = st.builds(
    Attempt,
    number=counts,
    job_name=words,
    status=st.none() | st.sampled_from(JobStatus),
    secondary=words,
    created_at=st.none() | moments,
    training_started_at=st.none() | moments,
    ended_at=st.none() | moments,
    failure_reason=words,
    cause=st.none() | st.sampled_from(Cause),
    fingerprint=words,
    resumed_from_step=steps,
    last_step=steps,
    self_repairs=counts,
    keep_alive_seconds=counts,
    machines=st.none() | machines,
    pool=st.none() | pools,
    repairs=st.dictionaries(st.sampled_from(SelfRepair), counts),
    agent=st.booleans(),
    in_place_restarts=st.lists(orders, max_size=2).map(tuple),
    drill=st.booleans(),
)
labels = st.builds(
    HealthLabel,
    step=counts,
    attempt=counts,
    health=st.sampled_from(Health),
    why=words,
    source=words,
    until=steps,
    restart=counts,
    before=st.none() | moments,
)
rungs_taken = st.builds(
    RungTaken,
    rung=words,
    attempt=counts,
    onset_step=counts,
    resume_step=steps,
    skip_samples=words,
    rate=st.floats(0.1, 1.0),
    at=moments,
)
proposals = st.builds(
    Proposal,
    id=words,
    plan=st.sampled_from(ProposedAction),
    attempt=counts,
    what=words,
    why=words,
    asked_at=moments,
    expires_at=moments,
    awaits=st.sampled_from(LaunchCheck),
    dollars=numbers,
    finding=st.none() | findings,
)
incidents = st.builds(
    Incident,
    number=counts,
    kind=words,
    attempt=counts,
    cause=st.sampled_from(Cause),
    reason=words,
    evidence=words,
    happened_at=moments,
    decided_at=moments,
    step=steps,
    resume_step=steps,
    actions=st.lists(words, max_size=3).map(tuple),
    closed_at=st.none() | moments,
    resolution=words,
)
ledgers = st.builds(
    Ledger,
    charges=st.dictionaries(st.sampled_from(Cause), counts),
    without_progress=counts,
    progress_step=steps,
    starts=st.lists(moments, max_size=3).map(tuple),
    capacity_since=st.none() | moments,
    charged_at=st.dictionaries(st.sampled_from(Cause), st.lists(moments, max_size=2).map(tuple)),
    forgiven=counts,
    fallbacks=st.lists(words, max_size=2).map(tuple),
    entries=st.lists(words, max_size=3).map(tuple),
)
stops = st.builds(
    PlannedStop,
    then=st.sampled_from(AfterStop),
    reason=words,
    asked_at=moments,
    deadline=moments,
    before_step=steps,
    fresh_machines=st.booleans(),
    command_id=words,
    answer_by=st.none() | moments,
    acknowledged_at=st.none() | moments,
    committed_step=steps,
    approved_by=words,
    is_deferred=st.booleans(),
    changes_machines=st.booleans(),
    machines=st.none() | machines,
    to_step=steps,
    drill=st.booleans(),
)
runs = st.builds(
    Run,
    id=words,
    policy=words,
    state=st.sampled_from(RunState),
    created_at=moments,
    attempts=st.lists(attempts, min_size=1, max_size=3).map(tuple),
    checkpoint_uri=words,
    cluster=clusters,
    ledger=ledgers,
    incidents=st.lists(incidents, max_size=2).map(tuple),
    pending=st.lists(actions, max_size=4).map(tuple),
    stop=st.none() | stops,
    wake_at=st.none() | moments,
    hold_reason=words,
    observe_only=st.booleans(),
    commands=st.lists(words, max_size=3).map(tuple),
    defects=st.lists(words, max_size=3).map(tuple),
    proposal=st.none() | proposals,
    blocked_by=st.none() | st.sampled_from(LaunchCheck),
    max_runtime_s=st.none() | counts,
    labels=st.lists(labels, max_size=3).map(tuple),
    rungs_taken=st.lists(rungs_taken, max_size=3).map(tuple),
    pages=st.lists(st.builds(OpenPage, tells, attempt=counts, notified_at=moments), max_size=2).map(tuple),
    version=counts,
)
timeline_entries = st.builds(
    TimelineEntry,
    run=words,
    version=counts,
    at=moments,
    before=st.sampled_from(RunState),
    after=st.sampled_from(RunState),
    reason=words,
    finding=words,
    signal=st.dictionaries(words, st.none() | st.integers() | words, max_size=3),
    inputs=st.dictionaries(words, st.none() | st.integers() | words, max_size=3),
    actions=st.lists(st.dictionaries(words, words, max_size=2), max_size=2).map(tuple),
)
policies = st.builds(
    Policy,
    name=st.just("any"),
    mode=st.sampled_from(Mode),
    on_max_runtime=st.sampled_from(OnMaxRuntime),
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
