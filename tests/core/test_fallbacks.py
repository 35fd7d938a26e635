"""No machines to be had: the wait, then other machines in the policy's order, each once, and back again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.decisions.fallback_machines import Quota, find_missing_quota, format_unsuitable, list_untried, with_machines
from rerail.decisions.remedies import Relaunch, choose_capacity_verdict
from rerail.messages.messages import CommandReceived
from rerail.model.actions import Machines, Severity
from rerail.model.causes import Cause
from rerail.model.errors import PolicyError
from rerail.model.machines import TYPES, Cluster, WarmPool, find_misfit, format_instance_types
from rerail.model.mailbox import ReportKind
from rerail.model.policy import Capacity, Mode, Policy, Retries, parse_policy, to_toml
from rerail.model.run import Attempt, JobStatus, Ledger, Run, RunState
from rerail.model.signals import OperatorVerb
from tests.examples import count_examples
from tests.fakes import Agent, World

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NO_MACHINES = "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different type."
FULL = "CapacityError: no capacity"
QUOTA = (
    "ResourceLimitExceeded: The account-level service limit '{} for training job usage' is {} Instances, with current "
    "utilization of 0 Instances and a request delta of 2 Instances. Please use AWS Service Quotas to request more."
)
P4D, P4DE, P5 = "ml.p4d.24xlarge", "ml.p4de.24xlarge", "ml.p5.48xlarge"
MACHINES = {
    "RoleArn": "arn:aws:iam::111122223333:role/R",
    "ResourceConfig": {"InstanceType": P4D, "InstanceCount": 2, "VolumeSizeInGB": 30},
    "VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]},
    "HyperParameters": {"sagemaker_instance_type": f'"{P4D}"'},
}


def policy(*fallbacks: str, **facts) -> Policy:
    return Policy(capacity=Capacity(fallbacks=fallbacks, **facts))


def a_run(*, machines: Machines | None = None, tried: tuple[str, ...] = (), waited: timedelta = timedelta(0)) -> Run:
    cluster = Cluster(instance_types=(P4D,), count=2, subnets=("subnet-1",))
    attempts = (Attempt(1, "gpt", JobStatus.FAILED), Attempt(2, "gpt-a002", machines=machines))
    ledger = Ledger(capacity_since=NOON - waited, fallbacks=tried)
    return Run("gpt", "default", RunState.STARTING, NOON, attempts, cluster=cluster, ledger=ledger)


# The policy


def test_a_policy_lists_its_fall_backs_and_keeps_their_order():
    listed = '["subnet-0a", "ml.p4de.24xlarge", "ml.p4de.24xlarge subnet-0a"]'
    read = parse_policy(f'[capacity]\nfallback_after = "45m"\nfallbacks = {listed}', name="night")
    assert read.capacity.fallbacks == ("subnet-0a", "ml.p4de.24xlarge", "ml.p4de.24xlarge subnet-0a")
    assert parse_policy(to_toml(read), name="night") == read
    assert read.scaled(60).capacity.fallbacks == read.capacity.fallbacks
    assert read.scaled(60).capacity.fallback_after == timedelta(seconds=45)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('"ml.p4de.24xlarge"', "must be a list of at most 10 texts"),
        ("[1]", "must be a list of at most 10 texts"),
        ('["p4de"]', "field 'capacity.fallbacks[0]' is 'p4de'"),
        ('["subnet-1", "ml.p99.large"]', "field 'capacity.fallbacks[1]' is 'ml.p99.large': the hardware of"),
    ],
)
def test_an_impossible_fallback_is_refused_when_the_policy_is_read(value, said):
    with pytest.raises(PolicyError) as error:
        parse_policy(f"[capacity]\nfallbacks = {value}", name="night")
    assert said in str(error.value)


# The rules


def test_a_quota_that_is_too_small_sends_the_run_to_its_fall_back_at_once():
    verdict = choose_capacity_verdict(a_run(), policy(P4DE), at=NOON, refusal=QUOTA.format(P4D, 0))
    assert isinstance(verdict, Relaunch)
    assert verdict.machines == Machines((P4DE,))
    assert f"the quota '{P4D} for training job usage' is 0, and the job needs 2: falling back to {P4DE}" in verdict.why


def test_a_fall_backs_own_quota_only_rules_out_the_fall_back():
    """The run's own machines may still come."""
    run = a_run(machines=Machines((P4DE,)), tried=(P4DE,), waited=40 * MINUTE)
    verdict = choose_capacity_verdict(run, policy(P4DE), at=NOON, refusal=QUOTA.format(P4DE, 0))
    assert isinstance(verdict, Relaunch)
    assert (verdict.changes_machines, verdict.machines) == (True, None)
    assert f"{P4DE} is given up" in verdict.why


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        (QUOTA.format(P4D, 0), Quota(f"{P4D} for training job usage", 0, 2)),
        (QUOTA.format(P4D, 1), Quota(f"{P4D} for training job usage", 1, 2)),
        (QUOTA.format(P4D, "0.0"), Quota(f"{P4D} for training job usage", 0, 2)),
        (
            QUOTA.format(P4D, 0).replace("job usage", "warm pool usage"),
            Quota(f"{P4D} for training warm pool usage", 0, 2),
        ),
        (QUOTA.format(P4D, 2), None),
        (QUOTA.format(P4D, 8), None),
        (NO_MACHINES, None),
        ("", None),
    ],
)
def test_a_quota_is_read_from_sagemakers_message(text, quota):
    """One that is large enough for the job alone is used by others now, and may be free later."""
    assert find_missing_quota(text) == quota


def test_unsuitable_fallbacks_are_passed_over_with_the_reason():
    rules = policy("ml.g5.12xlarge", P5)
    run = a_run(waited=40 * MINUTE)
    assert list_untried(run, rules) == ()
    assert "4 GPUs, not 8" in format_unsuitable(run, rules)
    verdict = choose_capacity_verdict(run, rules, at=NOON)
    assert isinstance(verdict, Relaunch)
    assert not verdict.changes_machines
    assert "fall-backs passed over: ml.g5.12xlarge has 4 GPUs, not 8: the world size would change; " in verdict.why


entries = st.lists(
    st.sampled_from([*TYPES, "subnet-7", "subnet-8", f"{P4DE} subnet-7", f"{P4D} {P4DE}"]), max_size=8, unique=True
)


@settings(max_examples=count_examples(60))
@given(entries, st.lists(st.integers(1, 90), max_size=25), st.sampled_from(sorted(TYPES)))
def test_whatever_is_refused_the_order_is_the_policys_and_each_is_tried_once(fallbacks, minutes, kind):
    """Never on machines that do not fit, never twice in one wait, never before their time, never out of order."""
    rules = policy(*fallbacks, wait=timedelta(days=300))
    run = replace(a_run(), cluster=Cluster(instance_types=(kind,), subnets=("subnet-1",)))
    in_order = [format_instance_types(plan) for plan in list_untried(run, rules)]
    at, gone_to = NOON, []
    for pause in minutes:
        verdict = choose_capacity_verdict(run, rules, at=at)
        assert isinstance(verdict, Relaunch)
        if verdict.changes_machines:
            run = with_machines(run, verdict.machines)
        if verdict.changes_machines and verdict.machines:
            assert at - NOON >= rules.capacity.fallback_after
            assert find_misfit(run.cluster, verdict.machines) == ""
            gone_to.append(format_instance_types(verdict.machines))
        at += pause * MINUTE
    assert gone_to == in_order[: len(gone_to)]
    assert len(gone_to) == len(set(gone_to))


# On the whole loop


@pytest.fixture
def world() -> World:
    return World()


def adopt_run(world: World, *fallbacks: str, **facts) -> World:
    world.policies.by_name["default"] = policy(*fallbacks)
    world.adopt(request=MACHINES | facts.pop("request", {}), **facts)
    world.checkpoints.save(step=100)
    return world


def test_after_half_an_hour_without_machines_the_run_goes_to_the_next_best_ones(world):
    """00:00 the node is lost, and there are no others of its kind. 00:32 the run trains on its fall-back."""
    adopt_run(world, P4DE)
    world.sagemaker.lacking = {P4D: FULL}
    world.lose_node(minutes=28)
    assert list(world.sagemaker.jobs) == ["gpt"]
    world.minutes(10)
    run = world.run()
    assert (run.state, run.current.job_name) == (RunState.WATCHING, "gpt-a002")
    assert run.current.machines == Machines((P4DE,))
    request = world.sagemaker.requests["gpt-a002"]
    assert request["ResourceConfig"] == {"InstanceType": P4DE, "InstanceCount": 2, "VolumeSizeInGB": 30}
    assert request["HyperParameters"]["sagemaker_instance_type"] == f'"{P4DE}"'
    assert request["VpcConfig"] == MACHINES["VpcConfig"]
    assert f"no capacity: going to {P4DE}" in " ".join(world.notice_titles(Severity.INFORM))
    assert run.ledger.fallbacks == (), "the wait is over"
    assert run.ledger.charges.keys() <= {"infrastructure"}


def test_later_attempts_stay_where_there_was_room_until_that_is_refused_too(world):
    """A second lost node: the fall-back is used again. Refused, it is given up for the run's own machines."""
    adopt_run(world, P4DE)
    world.sagemaker.lacking = {P4D: FULL}
    world.lose_node(minutes=40)
    world.checkpoints.save(step=200, attempt=2)
    world.minutes(2)
    world.lose_node("gpt-a002", minutes=3)
    assert world.sagemaker.requests["gpt-a003"]["ResourceConfig"]["InstanceType"] == P4DE
    world.checkpoints.save(step=300, attempt=3)
    world.minutes(2)
    world.sagemaker.lacking = {P4DE: FULL}
    world.lose_node("gpt-a003", minutes=8)
    assert world.sagemaker.requests["gpt-a004"]["ResourceConfig"]["InstanceType"] == P4D
    assert f"{P4DE} is given up" in " ".join(world.reasons())
    assert "gpt: no capacity: going to its own machines" in world.notice_titles(Severity.INFORM)


GPU_FULL = "AlgorithmError: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB, exit code: 1"
GPU_REPORT = '{"rerail": 1, "cause": "oom", "error": "CUDA out of memory", "step": 60}'
HOST_FULL = "AlgorithmError: RuntimeError: DefaultCPUAllocator: can't allocate memory, exit code: 1"


def run_out_of_memory(world, attempts: int, *able: str, end=GPU_FULL, minutes=8) -> list[tuple[str, str | None]]:
    """Let each attempt run out of memory; return the machines and the split of each one that follows."""
    went = []
    for number in range(1, attempts + 1):
        name = world.run().current.job_name
        agent = Agent(world, attempt=number, job=name)
        agent.deliver(agent.files(ReportKind.HELLO, abilities=able))
        world.sagemaker.fail(name, end)
        world.minutes(minutes)
        if (run := world.run()).state is RunState.WATCHING:
            request = world.sagemaker.requests[run.current.job_name]
            split = request["Environment"].get("RERAIL_MICROBATCHES")
            went.append((request["ResourceConfig"]["InstanceType"], split))
    return went


@pytest.mark.parametrize("end", [GPU_FULL, f"AlgorithmError: {GPU_REPORT}"])
def test_a_run_out_of_gpu_memory_goes_to_the_listed_machines_with_more_of_it(world, end):
    """Hold the run once memory has run out on the largest of them too."""
    adopt_run(world, "subnet-9", P4DE)
    assert run_out_of_memory(world, 2, end=end) == [(P4DE, None)]
    assert f"{P4DE} has more memory than {P4D}" in " ".join(world.reasons())
    assert f"held: oom is not retried; tried: moved to {P4DE}. To do" in world.reasons()[-1]
    assert world.sagemaker.live() == []


def test_a_run_out_of_gpu_memory_completes_once_its_batch_is_split_far_enough(world):
    """The policy has larger machines, and needs none. Later attempts keep the split, whatever ends the one before."""
    adopt_run(world, P4DE)
    assert run_out_of_memory(world, 2, "microbatch") == [(P4D, "2"), (P4D, "4")]
    assert world.run().ledger.charges == {}
    world.checkpoints.save(step=100, attempt=3)
    world.lose_node("gpt-a003", minutes=3)
    assert world.sagemaker.requests["gpt-a004"]["Environment"]["RERAIL_MICROBATCHES"] == "4"
    world.sagemaker.end("gpt-a004", JobStatus.COMPLETED)
    world.minutes(2)
    assert (world.run().state, world.run().current.microbatches) == (RunState.COMPLETED, 4)
    assert "relaunching from the start in" in (said := " ".join(world.reasons())) and "in 2 microbatches" in said


@pytest.mark.parametrize("end", [GPU_FULL, f"AlgorithmError: {GPU_REPORT}"])
def test_a_hold_for_memory_names_all_that_was_tried(world, end):
    """Three splits of the batch are not charged, and a larger machine keeps the split."""
    adopt_run(world, P4DE)
    went = run_out_of_memory(world, 5, "microbatch", end=end, minutes=3)
    assert went == [(P4D, "2"), (P4D, "4"), (P4D, "8"), (P4DE, "8")]
    tried = f"tried: relaunched with 2, then 4, then 8 microbatches; moved to {P4DE}"
    assert (world.run().state, world.run().ledger.charges) == (RunState.HELD, {Cause.OOM: 2})
    assert f"held: oom is not retried; {tried}. To do: " in world.reasons()[-1]


@pytest.mark.parametrize(
    ("reason", "own", "fallback", "is_larger"),
    [
        (GPU_FULL, P4D, P4DE, True),
        (HOST_FULL, P4D, P4DE, False),  # it has 1,152 GiB as well
        (GPU_FULL, "ml.g5.2xlarge", "ml.g5.4xlarge", False),  # the same GPU
        (HOST_FULL, "ml.g5.2xlarge", "ml.g5.4xlarge", True),
        (GPU_FULL, P4D, P5, False),  # another generation
        (HOST_FULL, "ml.m5.large", "ml.m5.large ml.m5.xlarge", False),  # SageMaker may choose the first
        (HOST_FULL, "ml.m5.large", "ml.m5.xlarge", True),
    ],
)
def test_only_more_of_the_memory_that_ran_out_is_worth_a_relaunch(world, reason, own, fallback, is_larger):
    resources = {"ResourceConfig": MACHINES["ResourceConfig"] | {"InstanceType": own}}
    adopt_run(world, fallback, request=resources)
    world.sagemaker.fail("gpt", reason)
    world.minutes(3)
    assert world.run().state is (RunState.WATCHING if is_larger else RunState.HELD)


@pytest.mark.parametrize(
    ("refusal", "minutes", "state"),
    [(FULL, 600, RunState.WAITING), (FULL, 800, RunState.HELD), (QUOTA.format(P4DE, 0), 3, RunState.HELD)],
)
def test_a_run_that_needs_larger_machines_waits_for_them_alone(world, refusal, minutes, state):
    """On its own ones, or in another subnet, its memory would run out again."""
    adopt_run(world, P4DE, f"{P4D} subnet-9")
    world.sagemaker.lacking = {P4DE: refusal}
    world.sagemaker.fail("gpt", GPU_FULL)
    world.minutes(minutes)
    assert world.run().state is state
    assert list(world.sagemaker.jobs) == ["gpt"]


def test_the_retries_of_the_policy_come_before_larger_machines(world):
    adopt_run(world, P4DE)
    world.policies.by_name["default"] = replace(policy(P4DE), retries=Retries(oom=1))
    assert run_out_of_memory(world, 2) == [(P4D, None), (P4DE, None)]


def test_a_job_that_fails_for_want_of_machines_goes_to_the_next_best_ones_too(world):
    adopt_run(world, f"{P4DE} subnet-9")
    world.sagemaker.fail("gpt", NO_MACHINES, training_started_at=None)
    world.sagemaker.full = {P4D}
    for _ in range(20):
        job = world.sagemaker.live()
        if job and world.sagemaker.jobs[job[0]].lacks_machines:
            world.sagemaker.fail(job[0], NO_MACHINES)
        world.minutes(3)
    run = world.run()
    assert run.state is RunState.WATCHING
    assert run.current.machines == Machines((P4DE,), ("subnet-9",))
    assert world.sagemaker.requests[run.current.job_name]["VpcConfig"] == {
        "SecurityGroupIds": ["sg-1"],
        "Subnets": ["subnet-9"],
    }


def test_a_job_that_waits_in_sagemakers_own_queue_is_called_back_for_a_fall_back(world):
    """It has never trained: nothing is lost but its place, and nothing is charged but time."""
    world.sagemaker.full = {P4D}
    adopt_run(world, P4DE)
    world.minutes(29)
    assert world.run().state is RunState.STARTING
    world.minutes(4)
    run = world.run()
    assert world.sagemaker.jobs["gpt"].status is JobStatus.STOPPED
    assert (run.state, run.current.machines) == (RunState.WATCHING, Machines((P4DE,)))
    assert run.ledger.charges == {}
    assert "gpt has waited 30 min for machines: calling it back, to go to" in " ".join(world.reasons())


@pytest.mark.parametrize(
    ("fallbacks", "request_"),
    [
        ((), {}),
        (("ml.g5.12xlarge",), {}),
        ((P4DE,), {"EnableManagedSpotTraining": True}),
        ((P4DE,), {"ResourceConfig": {**MACHINES["ResourceConfig"], "TrainingPlanArn": "arn:aws:sagemaker:plan"}}),
    ],
    ids=["no fall-back", "none that fits", "spot waits as its owner said", "a training plan"],
)
def test_without_a_place_to_go_a_job_keeps_its_place_in_the_queue(world, fallbacks, request_):
    world.sagemaker.full = {P4D}
    adopt_run(world, *fallbacks, request=request_)
    world.minutes(90)
    assert world.sagemaker.live() == ["gpt"]
    assert world.run().state is RunState.STARTING


def test_a_wait_that_sagemaker_ends_by_its_own_clock_is_a_want_of_machines(world):
    """MaxPendingTimeInSeconds is over: nobody has stopped the run, so it waits for machines, or goes elsewhere."""
    world.sagemaker.full = {P4D}
    adopt_run(world)
    world.minutes(20)
    world.sagemaker.end("gpt", JobStatus.STOPPED, pending_ran_out=True)
    world.minutes(1)
    run = world.run()
    assert run.state is RunState.WAITING
    assert (run.attempts[0].cause, dict(run.ledger.charges)) == (Cause.CAPACITY, {})


def test_the_runs_own_machines_are_no_fall_back():
    assert list_untried(a_run(), policy(P4D, "subnet-1", P4DE)) == (Machines((P4DE,)),)


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.APPROVE, Mode.PAUSE])
def test_where_a_human_decides_a_job_is_not_called_back(world, mode):
    world.sagemaker.full = {P4D}
    adopt_run(world, P4DE)
    world.policies.by_name["default"] = replace(policy(P4DE), mode=mode)
    world.minutes(60)
    assert world.sagemaker.live() == ["gpt"]


def test_a_job_that_has_trained_is_never_called_back(world):
    """Spot: it waits for its market, and SageMaker starts it again."""
    adopt_run(world, P4DE)
    world.minutes(2)
    job = world.sagemaker.jobs["gpt"]
    world.sagemaker.jobs["gpt"] = replace(job, secondary="Pending", lacks_machines=True)
    world.minutes(120)
    assert world.sagemaker.live() == ["gpt"]


def test_machines_that_sagemaker_refuses_outright_are_given_up_and_the_run_goes_on(world):
    """A subnet of another network, a type that a region has not: our choice was wrong, not the owner's request."""
    adopt_run(world, P4DE)
    world.sagemaker.lacking = {P4D: FULL, P4DE: "ValidationException: ml.p4de.24xlarge is not available in this region"}
    world.lose_node(minutes=45)
    assert world.run().state in (RunState.WAITING, RunState.STARTING)
    assert "not available in this region" in " ".join(world.reasons())
    world.sagemaker.lacking = {}
    world.minutes(30)
    assert world.sagemaker.requests["gpt-a002"]["ResourceConfig"]["InstanceType"] == P4D


def test_a_quota_of_nothing_is_a_matter_for_people_at_once(world):
    """Twelve hours of waiting would not raise it; the page names it."""
    adopt_run(world)
    world.sagemaker.lacking = {P4D: QUOTA.format(P4D, 0)}
    world.lose_node(minutes=5, keep_alive_seconds=600)
    assert world.run().state is RunState.HELD
    assert f"the quota '{P4D} for training job usage' is 0" in world.run().hold_reason
    assert world.sagemaker.released == ["gpt"]
    world.sagemaker.lacking = {}
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", "raised"))
    assert world.run().current.job_name == "gpt-a002"
    assert "gpt-a002" in world.sagemaker.jobs


def test_machines_that_are_kept_are_given_back_when_the_run_goes_elsewhere(world):
    """Nobody would use them: the successor does not match."""
    keep = {"ResourceConfig": {**MACHINES["ResourceConfig"], "KeepAlivePeriodInSeconds": 3600}}
    adopt_run(world, P4DE, request=keep)
    world.sagemaker.lacking = {P4D: QUOTA.format(P4D, 1)}
    world.lose_node(minutes=6, pool=WarmPool("Available"))
    assert world.run().current.machines == Machines((P4DE,))
    assert world.sagemaker.released == ["gpt"]
    assert "attempt 2 will not get the warm pool: it was given back; another instance type" in " ".join(world.reasons())
