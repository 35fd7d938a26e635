"""Machines by instance type: what may take another's place, and what a job's cluster is read from."""

from dataclasses import replace

import botocore.session
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.model.actions import Machines
from rerail.model.machines import (
    TYPES,
    Cluster,
    WarmPool,
    find_misfit,
    format_instance_types,
    read_cluster,
    read_fallback,
    read_warm_pool,
)

SAGEMAKERS = set(
    botocore.session.get_session().get_service_model("sagemaker").shape_for("TrainingInstanceType").enum  # type: ignore[attr-defined]
)
NETWORK = ("subnet-1",)


def of(kind: str, **facts) -> Cluster:
    return Cluster(instance_types=(kind,), count=4, subnets=NETWORK, **facts)


def why_not(before: str, after: str, **facts) -> str:
    return find_misfit(of(before, **facts), Machines((after,)))


def test_every_type_in_the_table_is_one_that_trains():
    """Names are SageMaker's own; what it does not know could never be launched."""
    assert set(TYPES) <= SAGEMAKERS
    assert {kind.split(".")[1] for kind in TYPES} >= {"p4d", "p4de", "p5", "p5e", "p5en", "g5", "g6e", "m5"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ml.p4d.24xlarge", "ml.p4de.24xlarge"),
        ("ml.p5.48xlarge", "ml.p5e.48xlarge"),
        ("ml.p5.48xlarge", "ml.p5en.48xlarge"),
        ("ml.g5.12xlarge", "ml.g5.24xlarge"),
        ("ml.g6.48xlarge", "ml.g6e.48xlarge"),
        ("ml.p3.16xlarge", "ml.p3dn.24xlarge"),
        ("ml.m5.large", "ml.m6i.large"),
    ],
)
def test_more_memory_and_the_same_kind_of_gpu_is_a_place_to_go(before, after):
    """As many GPUs of the same generation, none of them smaller."""
    assert why_not(before, after) == ""


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("ml.p4d.24xlarge", "ml.g5.12xlarge", "ml.g5.12xlarge has 4 GPUs, not 8: the world size would change"),
        ("ml.p5.4xlarge", "ml.p5.48xlarge", "ml.p5.48xlarge has 8 GPUs, not 1: the world size would change"),
        ("ml.p4d.24xlarge", "ml.p5.48xlarge", "ml.p5.48xlarge has H100 GPUs, a different generation from A100"),
        ("ml.p4de.24xlarge", "ml.p4d.24xlarge", "ml.p4d.24xlarge has GPUs of 40 GiB, not 80"),
        ("ml.g5.2xlarge", "ml.g5.xlarge", "ml.g5.xlarge has 16 GiB of memory, not 32"),
        ("ml.r5.large", "ml.m5.large", "ml.m5.large has 8 GiB of memory, not 16"),
        ("ml.c5.2xlarge", "ml.m5.xlarge", "ml.m5.xlarge has 4 CPUs, not 8"),
        ("ml.trn2.48xlarge", "ml.p5.48xlarge", "the hardware of ml.trn2.48xlarge is unknown"),
    ],
)
def test_what_would_change_the_run_is_no_place_to_go(before, after, why):
    """The reason says which figure is in the way."""
    assert why_not(before, after) == why


@pytest.mark.parametrize(
    ("cluster", "machines", "why"),
    [
        (of("ml.p5.48xlarge", plan="arn:aws:sagemaker:…"), Machines(("ml.p5e.48xlarge",)), "a training plan"),
        (of("ml.p5.48xlarge", plan="arn:aws:sagemaker:…"), Machines(subnets=("subnet-2",)), "a training plan"),
        (of("ml.p5.48xlarge", prefers=True), Machines(("ml.p5e.48xlarge",)), "own request lists its instance types"),
        (of("ml.p5.48xlarge", grouped=True), Machines(("ml.p5e.48xlarge",)), "own request lists its instance types"),
        (replace(of("ml.p5.48xlarge"), subnets=()), Machines(subnets=("subnet-2",)), "no VPC configuration"),
        (of("ml.g5.xlarge", spot=True), Machines(("ml.g5.2xlarge", "ml.g5.4xlarge")), "a spot job takes one"),
        (Cluster(), Machines(("ml.p5e.48xlarge",)), "the hardware of the run is unknown"),
    ],
)
def test_what_ties_a_run_to_its_machines_is_respected(cluster, machines, why):
    """A training plan is never left silently, nor is the owner's own choice overruled."""
    assert why in find_misfit(cluster, machines)


def test_other_subnets_suit_any_job_that_has_a_network():
    """Even one that takes spot instances or names its own preferences."""
    assert find_misfit(of("ml.trn2.48xlarge", spot=True, grouped=True), Machines(subnets=("subnet-2",))) == ""


@given(st.sampled_from(sorted(TYPES)), st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=5))
def test_nothing_that_fits_is_less_in_any_way(before, kinds):
    if find_misfit(of(before), Machines(tuple(kinds))):
        return
    for kind in kinds:
        was, now = TYPES[before], TYPES[kind]
        assert (now.gpus, now.generation) == (was.gpus, was.generation)
        assert now.gpu_gib >= was.gpu_gib
        assert now.gib >= was.gib


@pytest.mark.parametrize(
    ("text", "machines", "spoken"),
    [
        ("ml.p4de.24xlarge", Machines(("ml.p4de.24xlarge",)), "ml.p4de.24xlarge"),
        ("subnet-0a1b", Machines(subnets=("subnet-0a1b",)), "subnet-0a1b"),
        (
            "ml.p5e.48xlarge ml.p5en.48xlarge  subnet-a subnet-b",
            Machines(("ml.p5e.48xlarge", "ml.p5en.48xlarge"), ("subnet-a", "subnet-b")),
            "ml.p5e.48xlarge or ml.p5en.48xlarge in subnet-a and subnet-b",
        ),
    ],
)
def test_a_fall_back_names_types_and_subnets(text, machines, spoken):
    """Apart by blanks, in any order."""
    assert read_fallback(text) == machines
    assert format_instance_types(machines) == spoken


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no instance type"),
        ("p4de.24xlarge", "'p4de.24xlarge' is neither an instance type such as"),
        ("ml.p9.48xlarge", "the hardware of ml.p9.48xlarge is unknown"),
        (" ".join(sorted(TYPES)[:6]), "names 6 instance types, at most 5"),
    ],
)
def test_what_is_no_fall_back_is_refused_with_what_is_wrong(text, why):
    with pytest.raises(ValueError, match=why):
        read_fallback(text)


DESCRIBED = {
    "RoleArn": "arn:aws:iam::111122223333:role/R",
    "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 4, "VolumeSizeInGB": 200},
    "VpcConfig": {"SecurityGroupIds": ["sg-2", "sg-1"], "Subnets": ["subnet-2", "subnet-1"]},
    "EnableInterContainerTrafficEncryption": True,
}


def test_a_cluster_is_read_from_a_description_or_a_request():
    """Order does not matter where SageMaker does not mind it."""
    cluster = read_cluster(DESCRIBED)
    assert cluster == Cluster(
        role="arn:aws:iam::111122223333:role/R",
        instance_types=("ml.p4d.24xlarge",),
        count=4,
        volume_gb=200,
        security_groups=("sg-1", "sg-2"),
        subnets=("subnet-1", "subnet-2"),
        encrypted=True,
    )
    assert cluster.on(None) == cluster
    assert cluster.on(Machines(("ml.p4de.24xlarge",))).instance_types == ("ml.p4de.24xlarge",)
    assert cluster.on(Machines(subnets=("subnet-9",))).subnets == ("subnet-9",)
    assert read_cluster({}) == Cluster()


def test_the_type_that_sagemaker_chose_is_the_type():
    """Of several preferences one is selected; until then all of them are wanted."""
    wanted = [{"InstanceType": "ml.p5e.48xlarge", "TrainingPlanArns": ["arn:plan"]}, {"InstanceType": "ml.p5.48xlarge"}]
    cluster = read_cluster({"ResourceConfig": {"InstancePreferences": wanted, "InstanceCount": 2}})
    assert (cluster.instance_types, cluster.prefers) == (("ml.p5e.48xlarge", "ml.p5.48xlarge"), True)
    assert cluster.plan == "arn:plan"
    chosen = {"InstancePreferences": wanted, "SelectedInstanceType": "ml.p5.48xlarge", "SelectedInstanceCount": 2}
    assert read_cluster({"ResourceConfig": chosen}).instance_types == ("ml.p5.48xlarge",)
    assert read_cluster({"ResourceConfig": {"TrainingPlanArn": "arn:p", "InstanceGroups": [{}]}}).grouped


def test_a_pools_status_is_read_from_the_description():
    pool = {"Status": "Reused", "ResourceRetainedBillableTimeInSeconds": 40, "ReusedByJob": "gpt-a002"}
    assert read_warm_pool({"WarmPoolStatus": pool}) == WarmPool("Reused", 40, "gpt-a002")
    assert read_warm_pool({"WarmPoolStatus": {"Status": "InUse"}}) == WarmPool("InUse")
    assert read_warm_pool({}) is None
