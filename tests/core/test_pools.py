"""Warm pools: whether a successor gets the machines of the job before, why not, and when they are given back."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from rerail.decisions import warm_pools
from rerail.messages.messages import FindingsReceived, JobStateChanged, RunDue
from rerail.model.actions import CreateJob, Machines, ReleaseWarmPool
from rerail.model.errors import CallFailed, StateUnknown, Throttled
from rerail.model.finding import Finding, Kind, Level
from rerail.model.machines import Cluster, WarmPool
from rerail.model.policy import Mode, Policy
from rerail.model.run import Attempt, JobStatus, Run, RunState
from rerail.model.signals import OperatorVerb
from tests.core.failures import ECC, KILLED, NODE_LOST, OOM
from tests.fakes import World
from tests.raising import raising

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
KEEP = timedelta(minutes=30)
CLUSTER = Cluster(role="r", instance_types=("ml.p4d.24xlarge",), count=2, volume_gb=30, subnets=("subnet-1",))
WARM = {
    "request": {
        "RoleArn": "arn:aws:iam::111122223333:role/R",
        "ResourceConfig": {
            "InstanceType": "ml.p4d.24xlarge",
            "InstanceCount": 2,
            "VolumeSizeInGB": 30,
            "KeepAlivePeriodInSeconds": 1800,
        },
    }
}
BUG = 'AlgorithmError: {"rerail":1,"cause":"user_code","error":"ValueError: x","step":60,"rank":0}, exit code: 1'
HANG = 'AlgorithmError: {"rerail":1,"cause":"hang","error":"Watchdog","rank":0}, exit code: 1'
AVAILABLE = WarmPool("Available")


def before(**facts) -> Attempt:
    known = {"status": JobStatus.FAILED, "ended_at": NOON, "keep_alive_seconds": int(KEEP.total_seconds())}
    return Attempt(1, "gpt", **{**known, "training_started_at": NOON - KEEP, "pool": AVAILABLE, **facts})


def a_run(attempt: Attempt, **facts) -> Run:
    following = Attempt(2, "gpt-a002", machines=facts.pop("machines", None))
    return Run("gpt", "default", RunState.WAITING, NOON, (attempt, following), cluster=CLUSTER, **facts)


def forecast(attempt: Attempt, *, at: datetime = NOON, **facts) -> str:
    return warm_pools.format_forecast(a_run(attempt, **facts), at)


def test_an_unchanged_successor_goes_into_the_pool():
    for known in ({}, {"training_started_at": None}):
        assert forecast(before(**known)) == "attempt 2 goes into the warm pool of gpt"
    assert forecast(before(pool=None)) == "attempt 2 goes into the warm pool of gpt, if one is kept"


def test_a_job_that_never_had_machines_left_none():
    attempt = before(pool=None, training_started_at=None)
    assert forecast(attempt) == ""
    assert warm_pools.make_release(a_run(attempt)) == ()
    for unknown in (before(keep_alive_seconds=0), before(ended_at=None)):
        assert warm_pools.find_pool_end(unknown) is None
        assert not warm_pools.has_ended(a_run(unknown), ReleaseWarmPool("gpt"), NOON + KEEP)


@pytest.mark.parametrize(
    ("attempt", "facts", "why"),
    [
        (before(), {"machines": Machines(("ml.p4de.24xlarge",))}, "another instance type"),
        (before(), {"machines": Machines(subnets=("subnet-2",))}, "other subnets"),
        (before(pool=WarmPool("Reused", 12, "other-job")), {}, "other-job has taken it"),
        (before(pool=WarmPool("Terminated", 12)), {}, "it is gone"),
        (before(pool=WarmPool("given back", 12)), {}, "it was given back"),
        (before(pool=WarmPool("InUse")), {}, "gpt has not left it yet"),
        (before(), {"at": NOON + KEEP}, "its keep-alive period ended at 12:30:00"),
        (before(), {"pending": (ReleaseWarmPool("gpt"),)}, "it is given back first"),
        (
            before(pool=WarmPool("Terminated")),
            {"machines": Machines(("ml.p4de.24xlarge",), ("subnet-2",))},
            "it is gone; another instance type; other subnets",
        ),
    ],
)
def test_the_forecast_names_why_a_successor_misses_the_pool(attempt, facts, why):
    assert forecast(attempt, **facts) == f"attempt 2 will not get the warm pool: {why}"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"role": "other"}, "another role"),
        ({"instance_types": ("ml.p4de.24xlarge",)}, "another instance type"),
        ({"count": 3}, "another number of instances"),
        ({"volume_gb": 31}, "another volume size"),
        ({"volume_key": "key"}, "another key for the volume"),
        ({"security_groups": ("sg-2",)}, "other security groups"),
        ({"subnets": ("subnet-2",)}, "other subnets"),
        ({"encrypted": True}, "another choice of encryption between its machines"),
        ({"isolated": True}, "another choice of network isolation"),
        ({"spot": True}, "spot jobs use no pool"),
        ({"grouped": True}, "mixed clusters use no pool"),
        ({"plan": "arn:plan"}, None),
    ],
)
def test_every_rule_of_the_match_is_asked(change, why):
    """Those of SageMaker's guide; what it does not match by makes no difference."""
    assert warm_pools.find_differences(CLUSTER, replace(CLUSTER, **change)) == ((why,) if why else ())


def test_the_forecast_agrees_with_the_release():
    """A pool that is gone, or whose job goes on, is not given back; none is promised that the next job cannot match."""
    gone = ("Reused", "Terminated", "given back")
    for status, minutes, is_moved in product(["", "Available", "InUse", "New", *gone], (0, 29, 30), (False, True)):
        attempt = before(pool=WarmPool(status) if status else None)
        run = a_run(attempt, machines=Machines(subnets=("subnet-2",)) if is_moved else None)
        text = warm_pools.format_forecast(run, NOON + timedelta(minutes=minutes))
        assert (warm_pools.make_release(run) == ()) is (status in gone)
        assert warm_pools.is_unmatched(run) is (is_moved and status not in gone)
        assert ("goes into" in text) is (not is_moved and status not in (*gone, "InUse") and minutes < 30)
        assert warm_pools.make_release(a_run(replace(attempt, status=JobStatus.STOPPING))) == ()
        assert not warm_pools.is_unmatched(replace(run, attempts=(attempt,), cluster=replace(CLUSTER, spot=True)))


# On the whole loop


@pytest.fixture
def world() -> World:
    return World().adopt(**WARM)


def test_a_crash_of_the_script_keeps_the_machines_warm(world):
    """The successor is created for the pool, and the pool is not given back."""
    world.sagemaker.fail("gpt", KILLED, pool=AVAILABLE)
    world.minutes(3)
    assert world.run().current.number == 2
    assert world.sagemaker.released == []
    assert "creating gpt-a002 from wherever its script resumes; attempt 2 goes into the warm pool of gpt" in " ".join(
        world.reasons()
    )


def test_what_became_of_the_pool_is_asked_when_the_successor_is_due(world):
    world.sagemaker.fail("gpt", NODE_LOST, pool=AVAILABLE)
    world.supervisor().handle(JobStateChanged("gpt"))
    job = world.sagemaker.jobs["gpt"]
    world.sagemaker.jobs["gpt"] = replace(job, pool=WarmPool("Reused", 20, "another"))
    world.minutes(3)
    assert world.run().current.number == 2
    assert "attempt 2 will not get the warm pool: another has taken it" in " ".join(world.reasons())
    assert world.run().attempts[0].pool == WarmPool("Reused", 20, "another")


def test_a_description_that_fails_does_not_keep_the_successor_waiting(world, monkeypatch):
    """What the pool is like is worth a sentence, not a delay."""
    world.sagemaker.fail("gpt", NODE_LOST, pool=AVAILABLE)
    world.supervisor().handle(JobStateChanged("gpt"))
    world.clock.pass_by(timedelta(minutes=2))
    describe = world.sagemaker.describe

    def unseen(name: str):
        if name == "gpt":
            raise StateUnknown("timed out")
        return describe(name)

    monkeypatch.setattr(world.sagemaker, "describe", unseen)
    world.supervisor().handle(RunDue("gpt"))
    assert "gpt-a002" in world.sagemaker.jobs


@pytest.mark.parametrize("error", [Throttled("Rate exceeded"), CallFailed("timed out")])
def test_no_job_is_created_while_the_bad_machines_are_still_kept(world, monkeypatch, error):
    """The release fails for five minutes, and so long nothing is launched, though its time has come."""
    world.sagemaker.fail("gpt", ECC, pool=AVAILABLE)
    release, refused = world.sagemaker.release_warm_pool, []

    def refuse(name: str) -> None:
        refused.append(name)
        raise error

    monkeypatch.setattr(world.sagemaker, "release_warm_pool", refuse)
    for _ in range(5):
        try:
            world.minutes(1)
        except CallFailed:
            world.queue.waiting.clear()
    assert list(world.sagemaker.jobs) == ["gpt"]
    assert refused
    kinds = {type(action) for action in world.run().pending}
    assert kinds >= {ReleaseWarmPool, CreateJob}
    monkeypatch.setattr(world.sagemaker, "release_warm_pool", release)
    world.minutes(2)
    assert world.sagemaker.released == ["gpt"]
    assert "gpt-a002" in world.sagemaker.jobs
    assert world.run().attempts[0].pool == WarmPool("given back")


def test_a_release_that_never_succeeds_ends_with_the_pools_own_time(world, monkeypatch):
    """After half an hour the machines are gone by themselves: the run goes on."""
    world.sagemaker.fail("gpt", ECC, pool=AVAILABLE)

    monkeypatch.setattr(world.sagemaker, "release_warm_pool", raising(Throttled("Rate exceeded")))
    world.minutes(29)
    assert list(world.sagemaker.jobs) == ["gpt"]
    world.minutes(3)
    assert "gpt-a002" in world.sagemaker.jobs


@pytest.mark.parametrize("reason", [OOM, BUG])
def test_a_hold_gives_the_machines_back_at_once(world, reason):
    """Nobody pays for machines that wait for a human."""
    for _ in range(2):
        if world.run().current.may_be_live:
            world.sagemaker.fail(world.run().current.job_name, reason, pool=AVAILABLE)
            world.minutes(5)
    assert world.run().state is RunState.HELD
    assert world.sagemaker.released == [world.run().current.job_name]
    assert not world.run().is_open


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        (lambda world: world.sagemaker.end("gpt", JobStatus.STOPPED, pool=AVAILABLE), RunState.STOPPED),
        (lambda world: world.sagemaker.end("gpt", JobStatus.COMPLETED, pool=AVAILABLE), RunState.COMPLETED),
        (
            lambda world: world.sagemaker.end("gpt", JobStatus.STOPPED, secondary="MaxRuntimeExceeded", pool=AVAILABLE),
            RunState.STOPPED,
        ),
        (lambda world: world.send_command(OperatorVerb.STOP), RunState.STOPPED),
        (lambda world: world.send_command(OperatorVerb.HOLD), RunState.HELD),
    ],
    ids=["stopped by its owner", "completed", "out of time", "stopped by command", "held by command"],
)
def test_what_ends_as_its_owner_wants_leaves_the_machines_to_the_owner(world, ends, state):
    """They asked for the pool, and may well come back in a minute."""
    ends(world)
    world.minutes(25)
    assert world.run().state is state
    assert world.sagemaker.released == []


def test_an_end_for_want_of_time_is_ours_and_gives_the_machines_back():
    """The run's own MaxRuntime is spent over its attempts: no other follows, and nobody comes for the pool."""
    world = World().adopt(**WARM, max_runtime_s=600)
    world.minutes(11)
    world.lose_node(minutes=5, pool=AVAILABLE)
    assert world.run().state is RunState.STOPPED
    assert world.sagemaker.released == ["gpt"]


def test_who_only_observes_gives_nothing_back():
    """A run that may not be relaunched is held for people to see; its machines are not ours."""
    world = World()
    world.policies.by_name["default"] = Policy(mode=Mode.OBSERVE)
    world.adopt(**WARM)
    world.sagemaker.fail("gpt", OOM, pool=AVAILABLE)
    world.minutes(5)
    assert world.run().state is RunState.HELD
    assert world.sagemaker.released == []


def test_a_second_hang_in_a_row_is_moved_to_other_machines(world):
    """Once may be the network; twice, the machines are suspect."""
    for number, job in enumerate(("gpt", "gpt-a002"), start=1):
        world.sagemaker.fail(job, HANG, pool=AVAILABLE)
        world.minutes(5)
        assert world.sagemaker.released == ([] if number == 1 else ["gpt-a002"])
    assert world.run().current.number == 3
    assert "the warm pool is given back first" in " ".join(world.reasons())


def test_a_job_that_became_slow_is_moved_off_its_machines(world):
    """A lasting slowness is the machines': they go before the successor comes."""
    slow = Finding(Kind.THROUGHPUT_DROP, Level.INTERVENE, 110, 105, "slow")
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (slow,)))
    world.minutes(20)
    assert world.sagemaker.released == ["gpt"]
    assert world.run().current.number == 2
    assert "attempt 2 will not get the warm pool: it is given back first" in " ".join(world.reasons())
