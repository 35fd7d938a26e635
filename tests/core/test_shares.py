"""A large fleet is swept by several invocations: who does what, what is known without asking, and who goes first."""

import json
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.decisions.decide import decide
from rerail.messages.messages import JobStateChanged
from rerail.model.actions import CreateJob
from rerail.model.errors import BadMessage, CallFailed, StateUnknown
from rerail.model.partitions import PARTITIONS, find_partition
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import JobObserved
from rerail.sweep import sweep
from rerail.sweep.describe_schedule import EACH_MINUTE, choose_describe_period, is_known, make_unchanged_job
from rerail.sweep.launch_order import BY_TURNS, IN_ORDER, WaitingLaunch, choose_launches
from rerail.sweep.shards import ENOUGH, Shard, fan_out, format_event, hash_name, read_shard, select_newest
from rerail.sweep.sweep import Sweep, list_metrics
from tests.core.failures import NODE_LOST
from tests.fakes import BUCKET, MIDNIGHT, World
from tests.raising import raising


@dataclass
class FakeShares:
    """Other invocations, which sweep when they are told to; `deaf` is one that cannot be asked."""

    asked: list[Shard] = field(default_factory=list)
    kept: dict[tuple[int, ...], tuple] = field(default_factory=dict)
    deaf: int | None = None

    def hand_on(self, share, *, to):
        if self.deaf in share.parts:
            raise CallFailed("Invoke: throttled")
        self.asked.append(read_shard(json.loads(json.dumps(format_event(share)))))

    def keep(self, parts, report, *, at):
        self.kept[tuple(parts)] = (at, report)

    def reports(self):
        return self.kept


def fleet(monkeypatch, count: int = 24, *, enough: int = 4) -> tuple[World, FakeShares]:
    """So many runs that train, where a few are enough for one invocation, and too many to ask about each minute."""
    monkeypatch.setattr(sweep, "ENOUGH", enough)
    monkeypatch.setattr("rerail.sweep.shards.ENOUGH", enough)
    monkeypatch.setattr(sweep, "EACH_MINUTE", 5)
    world = World()
    for number in range(count):
        world.adopt(f"run-{number}", uri=f"{BUCKET}run-{number}/")
    world.clock.pass_by(timedelta(hours=1))
    return world, FakeShares()


def the_round(world: World, shares: FakeShares) -> Sweep:
    return replace(world.round(), shards=shares)


def whole(world: World, shares: FakeShares):
    """A minute: the scheduled invocation, then all those that it asks."""
    report = the_round(world, shares).run(name="sweep")
    asked, shares.asked = shares.asked, []
    for share in asked:
        the_round(world, shares).run_shard(share, name="sweep")
    return report


def listed(world: World, monkeypatch, *names: str) -> list[str]:
    """SageMaker lists these as changed; which jobs are described is noted."""
    see, described = world.sagemaker.describe, []

    def describe(name):
        described.append(name)
        return see(name)

    monkeypatch.setattr(world.sagemaker, "describe", describe)
    monkeypatch.setattr(
        world.sagemaker,
        "changed_since",
        lambda time: {name: (see(name)[0].status, see(name)[0].secondary) for name in names},
    )
    return described


def test_a_small_fleet_is_swept_by_one_invocation(monkeypatch):
    world, shares = fleet(monkeypatch, 3)
    report = the_round(world, shares).run(name="sweep")
    assert (report.open, report.unswept, shares.asked, shares.kept) == (3, (), [], {})


def test_every_part_of_a_large_fleet_is_swept(monkeypatch):
    world, shares = fleet(monkeypatch)
    the_round(world, shares).run(name="sweep")
    handed = [part for share in shares.asked for part in share.parts]
    assert handed == sorted(set(handed)) and handed[-1] == PARTITIONS - 1
    whole(world, shares)
    world.clock.pass_by(timedelta(minutes=1))
    report = whole(world, shares)
    assert (report.open, report.unswept) == (24, ())
    assert report.fleet.runs == {RunState.WATCHING: 24}
    assert {metric.name: metric.value for metric in list_metrics(report)}["SweepsCompleted"] == 1


def test_a_shard_without_a_sweep_raises_the_dead_man_alarm(monkeypatch):
    """One share keeps failing: the round does not count as completed, which pages after five minutes."""
    world, shares = fleet(monkeypatch)
    whole(world, shares)
    gone = next(parts for parts in shares.kept)
    for _ in range(4):
        world.clock.pass_by(timedelta(minutes=1))
        the_round(world, shares).run(name="sweep")
        asked, shares.asked = shares.asked, []
        for share in asked:
            if share.parts != gone:
                the_round(world, shares).run_shard(share, name="sweep")
    report = the_round(world, shares).run(name="sweep")
    assert report.unswept == gone
    assert {metric.name: metric.value for metric in list_metrics(report)}["SweepsCompleted"] == 0


def test_one_that_cannot_be_asked_keeps_none_of_the_others_waiting(monkeypatch):
    """Its error is raised last, when all the others were asked and the own part was swept."""
    world, shares = fleet(monkeypatch)
    shares.deaf = PARTITIONS - 1
    name = next(name for name in world.runs.records if find_partition(name) == 0)
    world.sagemaker.fail(name, NODE_LOST)
    with pytest.raises(CallFailed):
        the_round(world, shares).run(name="sweep")
    assert shares.asked and {"run": name} in world.queue.waiting


def test_a_share_that_comes_too_late_does_nothing(monkeypatch):
    """Lambda tries again after minutes: the next round's share is there already."""
    world, shares = fleet(monkeypatch)
    share = Shard((0,), world.clock(), 24)
    world.clock.pass_by(timedelta(minutes=2))
    report = the_round(world, shares).run_shard(share, name="sweep")
    assert (report.open, shares.kept) == (0, {})


def test_of_a_large_fleet_only_what_changed_is_described(monkeypatch):
    """A dead job is listed and its run woken, for the supervisor to describe it; the others are taken to be as they are
    recorded, but for those whose own minute it is."""
    world, shares = fleet(monkeypatch, 24, enough=1000)
    world.sagemaker.fail("run-7", NODE_LOST)
    described = listed(world, monkeypatch, "run-7")
    report = the_round(world, shares).run(name="sweep")
    assert (report.open, report.due) == (24, 1)
    assert world.queue.waiting == [{"run": "run-7"}]
    assert "run-7" not in described and len(described) < 10


def test_what_is_never_listed_is_found_all_the_same(monkeypatch):
    """SageMaker's list lies about a death: within ten minutes each job is described once."""
    world, shares = fleet(monkeypatch, 24, enough=1000)
    world.sagemaker.fail("run-7", NODE_LOST)
    listed(world, monkeypatch)
    for _ in range(10):
        world.clock.pass_by(timedelta(minutes=1))
        the_round(world, shares).run(name="sweep")
    assert {"run": "run-7"} in world.queue.waiting


def test_a_refused_list_is_raised_after_all_else(monkeypatch):
    world, shares = fleet(monkeypatch, 24, enough=1000)

    monkeypatch.setattr(world.sagemaker, "changed_since", raising(StateUnknown("ListTrainingJobs: throttled")))
    with pytest.raises(StateUnknown):
        the_round(world, shares).run(name="sweep")
    assert world.queue.waiting == []


def test_a_job_as_recorded_changes_nothing():
    world = World().with_saves()
    run = world.run()
    assert is_known(run, {}, fleet=10**6, at=MIDNIGHT)
    decision = decide(run, JobObserved(world.clock(), make_unchanged_job(run)), world.policies.get("default"))
    assert (decision.run, decision.actions, decision.reason) == (run, (), "")


@pytest.mark.parametrize(
    ("run_change", "attempt_change", "listed_as", "known"),
    [
        ({}, {}, ("InProgress", "Training"), True),
        ({}, {}, ("Failed", "Failed"), False),
        ({"state": RunState.SAVING}, {}, None, False),
        ({"pending": (CreateJob("gpt-a002", 2, None),)}, {}, None, False),
        ({"defined_metrics": None}, {}, None, False),
        ({}, {"secondary": "Restarting"}, None, False),
        ({}, {"status": JobStatus.STOPPING}, None, False),
        ({"state": RunState.STARTING}, {"secondary": "Starting"}, None, True),
        ({"state": RunState.STARTING}, {"secondary": "Starting"}, ("InProgress", "Starting"), True),
        ({"state": RunState.STARTING}, {"secondary": "Starting"}, ("InProgress", "Training"), False),
    ],
    ids=[
        "listed as recorded",
        "listed as failed",
        "saving",
        "pending action",
        "metrics unknown",
        "restarted by SageMaker",
        "stopping",
        "starting",
        "starting, listed as recorded",
        "starting, listed as training",
    ],
)
def test_only_a_run_at_rest_is_taken_as_recorded(run_change, attempt_change, listed_as, known):
    """Any other run is described; SageMaker's list may lag behind."""
    run = World().with_saves().run()
    run = replace(run, **run_change, attempts=(replace(run.current, **attempt_change),))
    changed = {hash_name("gpt"): hash_name("gpt", *listed_as)} if listed_as else {}
    assert is_known(run, changed, fleet=10**6, at=MIDNIGHT) is known


@given(st.integers(1, 200_000))
def test_jobs_are_described_at_a_bounded_rate(count):
    """Whatever the fleet, over time no more than so many a minute need be asked about for nothing."""
    assert count / choose_describe_period(count) <= EACH_MINUTE


@given(st.integers(0, 10**6), st.integers(1, PARTITIONS))
def test_no_part_is_lost_and_none_is_swept_twice(runs, read):
    """However many were found, and in however many parts."""
    left = tuple(range(read, PARTITIONS))
    groups = list(fan_out(runs=runs, read=read, left=left))
    assert tuple(part for group in groups for part in group) == left
    if runs >= read * ENOUGH:
        assert all(len(group) == 1 for group in groups)


def test_fresh_reports_count_once():
    at = MIDNIGHT
    early, late = at - timedelta(minutes=1), at - timedelta(minutes=4)
    reports = {(1, 2): (early, "both"), (2,): (at, "two"), (3,): (late, "old"), (4,): (at, "four")}
    assert select_newest(reports, (1, 2, 3), at=at) == (["two"], (1, 3))


@pytest.mark.parametrize(
    "share",
    [
        {},
        [],
        None,
        {"parts": [9], "asked_at": "2026-01-31T00:00:00+00:00", "fleet": 1, "changed": {}},
        {"parts": [1], "asked_at": "2026-01-31T00:00:00", "fleet": 1, "changed": {}},
        {"parts": [1], "asked_at": "today", "fleet": 1, "changed": {}},
        {"parts": [1], "asked_at": "2026-01-31T00:00:00+00:00", "fleet": 1, "changed": {"x": 1}},
    ],
)
def test_a_share_that_cannot_be_read_is_refused_by_name(share):
    """Whoever may invoke the function may send it anything."""
    with pytest.raises(BadMessage, match="field 'share'"):
        read_shard({"share": share})


def test_the_schedule_asks_for_no_share():
    """Its event is anything else."""
    assert read_shard({"source": "aws.scheduler", "detail": {}}) is None


def test_the_urgent_go_first_and_then_those_who_have_waited_longest():
    """Priority, then time; more than a minute can bring are left for the next ones."""
    queued = [WaitingLaunch(f"late-{n}", 50, MIDNIGHT + timedelta(seconds=n)) for n in range(IN_ORDER + BY_TURNS + 50)]
    queued += [WaitingLaunch("urgent", 90, MIDNIGHT + timedelta(hours=1)), WaitingLaunch("whenever", 10, MIDNIGHT)]
    order = choose_launches(queued, parts=PARTITIONS, at=MIDNIGHT)
    assert order[:3] == ["urgent", "late-0", "late-1"]
    assert len(order) == len(set(order)) == IN_ORDER + BY_TURNS


def test_launches_that_never_succeed_do_not_keep_the_last_from_theirs():
    """A hundred and fifty that are refused each minute go first each minute: the one behind them has its turn too."""
    launches = [WaitingLaunch(f"stuck-{n}", 90, MIDNIGHT) for n in range(IN_ORDER + BY_TURNS)] + [
        WaitingLaunch("last", 10, MIDNIGHT)
    ]
    minutes = (MIDNIGHT + timedelta(minutes=n) for n in range(30))
    assert any("last" in choose_launches(launches, parts=PARTITIONS, at=at) for at in minutes)


def test_many_deaths_wake_no_more_launches_than_a_minute_can_bring(monkeypatch):
    """Two hundred runs owe a launch: those of a higher priority are woken first, all of them in the end."""
    world = World()
    urgent = replace(world.policies.get("default"), name="urgent", priority=90)
    world.policies.by_name["urgent"] = urgent
    for number in range(200):
        name = f"run-{number}"
        world.adopt(name, uri=f"{BUCKET}{name}/", policy="urgent" if number >= 190 else "default")
        world.sagemaker.fail(name, NODE_LOST)
        world.supervisor().handle(JobStateChanged(name))
    world.clock.pass_by(timedelta(minutes=2))
    report = world.round().run()
    assert report.due == 200
    woken = [message["run"] for message in world.queue.waiting]
    assert len(woken) == IN_ORDER + BY_TURNS
    assert set(woken[:10]) == {f"run-{number}" for number in range(190, 200)}
