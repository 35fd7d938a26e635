"""Layouts: the same training however the model is spread over the ranks, and ranks that find each other."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import instances
import parallel
import pipeline
from choices import Choices, Schedule
from model import GPT, ModelStage
from tests.container import layouts
from tests.container.hosts import IMPORT_PATH

# Sums in another order: the last bits of numbers around 5.5. In bfloat16 a layer has three digits.
FP32, BF16 = 1e-5, 5e-3
Results = dict[tuple[int | str, str], dict[str, Any]]

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.time_limit(600, reason="every layout is trained before the first test, and every pair in the matrix"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Every run of layouts.py, by number of ranks and name."""
    return run_layouts(tmp_path_factory.mktemp("layouts"), "ring")


def run_layouts(folder: Path, pairs: str) -> Results:
    scrubbed = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [sys.executable, layouts.__file__, folder, pairs],
        env={**scrubbed, "PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return {(result.pop("ranks"), result.pop("run")): result for result in results}


def names(*, dropout: bool) -> list[tuple[int, str]]:
    every = [(ranks, run) for ranks in (4, 2, 1) for run in layouts.runs(ranks) if run.can_run]
    return [(ranks, run.name) for ranks, run in every if ("dropout" in run.name) == dropout]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "name"), names(dropout=False))
def test_a_layout_trains_as_one_process_does(trained: Results, ranks: int, name: str) -> None:
    """Losses, norms of gradients and final weights."""
    one, other = trained[1, "one pipeline" if "pipeline" in name else "one"], trained[ranks, name]
    tolerance = BF16 if "bf16" in name else FP32
    assert len(other["losses"]) == layouts.STEPS
    assert other["losses"] == pytest.approx(one["losses"], abs=tolerance)
    assert other["norms"] == pytest.approx(one["norms"], rel=tolerance)
    assert other["weights"] == pytest.approx(one["weights"], rel=tolerance)


NEEDS_FSDP = pytest.mark.skipif(not layouts.FSDP_ON_CPU, reason="until torch 2.5 models are cut up on GPUs alone")


@pytest.mark.slow
@NEEDS_FSDP
def test_what_one_layout_has_saved_the_next_resumes(trained: Results) -> None:
    """With another number of ranks too: losses, norms and weights are those of one process, before and after."""
    check_resumes(trained, layouts.list_resumes(all_pairs=False))
    check_rollbacks(trained, layouts.ROLLED_BACK)


@pytest.mark.slow
@NEEDS_FSDP
@pytest.mark.rehearsal
def test_what_one_layout_has_saved_every_other_resumes(tmp_path: Path) -> None:
    results = run_layouts(tmp_path, "matrix")
    check_resumes(results, layouts.list_resumes(all_pairs=True))
    check_rollbacks(results, layouts.RESUMED)


def check_resumes(results: Results, pairs: Sequence[tuple[str, str]]) -> None:
    one = results[1, "one pipeline"]
    for name in layouts.RESUMED:
        saved = results["saved", name]
        assert saved["losses"] == pytest.approx(one["losses"][: layouts.HALF], abs=FP32), name
    for source, target in pairs:
        resumed, pair = results[f"{source} to", target], f"{source} to {target}"
        assert resumed["losses"] == pytest.approx(one["losses"][layouts.HALF :], abs=FP32), pair
        assert resumed["norms"] == pytest.approx(one["norms"][layouts.HALF :], rel=FP32), pair
        assert resumed["weights"] == pytest.approx(one["weights"], rel=FP32), pair


def check_rollbacks(results: Results, names: Iterable[str]) -> None:
    """Behind an emergency checkpoint of damaged weights each layout goes on as one process that never had them."""
    one = results[1, "one pipeline"]
    for name in names:
        rolled_back = results["rolled back", name]
        assert (rolled_back["found"], rolled_back["quarantined"]) == (1, [f"a1-step-{layouts.HALF:09d}"]), name
        assert rolled_back["losses"] == pytest.approx(one["losses"][1:], abs=FP32), name
        assert rolled_back["norms"] == pytest.approx(one["norms"][1:], rel=FP32), name
        assert rolled_back["weights"] == pytest.approx(one["weights"], rel=FP32), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for _, name in names(dropout=True) if "resumed" not in name])
def test_a_layout_resumes_bit_for_bit(trained: Results, name: str) -> None:
    """With dropout: from its checkpoint on, each rank has the losses of the run that went on; the weights are equal."""
    whole, resumed = trained[4, name], trained[4, f"{name} resumed"]
    assert [losses[layouts.HALF :] for losses in whole["losses_of_ranks"]] == resumed["losses_of_ranks"]
    assert whole["weights"] == resumed["weights"]


@pytest.mark.slow
@NEEDS_FSDP
def test_ranks_that_share_layers_draw_the_same_dropout(trained: Results) -> None:
    """Two ranks of a tensor-parallel pair are one replica: same samples, same masks, the same loss to the last bit."""
    first, second, third, fourth = trained[4, "fsdp x tensor dropout"]["losses_of_ranks"]
    assert first == second
    assert third == fourth
    assert first != third


@pytest.mark.slow
def test_names_in_a_checkpoint_do_not_depend_on_the_layout(trained: Results) -> None:
    """Those of the bare model, as plain tensors: no wrapper's prefix, no DTensor in the finished model."""
    names_by_depth = {depth: sorted(GPT(replace(layouts.SIZE, layers=depth)).state_dict()) for depth in (2, 4)}
    for ranks, name in names(dropout=False) + names(dropout=True):
        assert trained[ranks, name]["names"] == names_by_depth[4 if "pipeline" in name else 2], (ranks, name)
        assert trained[ranks, name]["kinds"] == ["Tensor"], (ranks, name)


ALONE = parallel.DistributedWorld(rank=0, size=1, device=torch.device("cpu"), backend="gloo")


def layout(world: parallel.DistributedWorld = ALONE, **options: Any) -> parallel.ParallelLayout:
    return parallel.ParallelLayout.of(argparse.Namespace(**options), world)


@pytest.mark.parametrize(
    ("options", "ranks", "per_node", "complaint"),
    [
        ({"tensor_parallel": 3}, 6, 6, "tensor_parallel=3: must be a power of two.*choose one of 1, 2"),
        ({"tensor_parallel": 16}, 16, 8, "tensor_parallel=16: a machine has 8 rank.*choose one of 1, 2, 4, 8"),
        ({"tensor_parallel": 4}, 12, 6, "tensor_parallel=4: does not divide the 6 ranks of a machine"),
        ({"tensor_parallel": 0}, 4, 4, "tensor_parallel=0: must be a power of two"),
        ({"pipeline_parallel": 3}, 8, 8, "pipeline_parallel=3: does not divide the 8.*choose one of 1, 2, 4, 8"),
        ({"microbatches": 4}, 8, 8, "microbatches=4: is for a pipeline.*leave it out"),
        ({"pipeline_parallel": 4, "microbatches": 2}, 8, 8, "microbatches=2: 1f1b keeps 4 ranks busy.*at least 4"),
        (
            {"pipeline_parallel": 2, "microbatches": 5, "pipeline_schedule": "interleaved"},
            8,
            8,
            "microbatches=5: interleaved takes them in 2 equal rounds.*choose 4",
        ),
        ({"pipeline_schedule": "2f2b"}, 8, 8, "pipeline_schedule=2f2b: must be one of gpipe, 1f1b"),
        ({"shard_size": 2}, 4, 4, "shard_size=2: is for parallel=hybrid, and this is ddp"),
        ({"parallel": "hybrid", "shard_size": 3}, 8, 8, "shard_size=3: does not divide the 8.*choose a divisor of 8"),
        ({"activation_offload": True}, 2, 2, "activation_offload=true.*add activation_checkpointing=true"),
        ({"parallel": "zero"}, 2, 2, "parallel=zero: must be one of ddp, fsdp, hybrid"),
        ({"precision": "fp8"}, 2, 2, "precision=fp8: must be one of fp32, bf16"),
    ],
)
def test_a_layout_these_ranks_cannot_have_is_refused(
    options: dict[str, Any], ranks: int, per_node: int, complaint: str
) -> None:
    """Before any process group is made: the option is named, and what it may be."""
    with pytest.raises(ValueError, match=complaint):
        layout(replace(ALONE, size=ranks, local_size=per_node), **options)


def test_smddp_has_no_groups_of_ranks() -> None:
    """Tensor parallelism and hybrid sharding take NCCL on a P4d too; forced on SMDDP they are refused."""
    with pytest.raises(ValueError, match="SMDDP has no groups of ranks"):
        layout(replace(ALONE, size=8, local_size=8, backend="smddp"), tensor_parallel=2)


def test_a_torch_release_that_cannot_shard_on_a_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    with pytest.raises(ValueError, match=r"torch 2\.5\.1\+cu124 cuts up models on GPUs alone.*use parallel=ddp"):
        layout(replace(ALONE, size=2, local_size=2), parallel="fsdp")


def test_a_schedule_that_this_torch_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero-bubble schedules came one after the other; the message names those that are there."""
    monkeypatch.delattr(pipeline.schedules, "ScheduleZBVZeroBubble", raising=False)
    with pytest.raises(ValueError, match=r"pipeline_schedule=zbv: torch .* does not have it; use gpipe, 1f1b"):
        pipeline.find_schedule(Schedule.ZBV)


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize(("layers", "ranks"), [(4, 2), (9, 2), (11, 4)])
def test_each_layer_is_in_one_stage(schedule: Schedule, layers: int, ranks: int) -> None:
    """Whatever divides them; the first has the embeddings, the last the head."""
    choices = Choices(pipeline_parallel=ranks, pipeline_schedule=schedule)
    parts: dict[int, ModelStage] = {}
    for rank in range(ranks):
        model = GPT(replace(layouts.SIZE, layers=layers))
        stages = pipeline.cut(model, choices, rank)
        held = {name for index in stages for name in name_parameters(stages[index], index, layers, choices)}
        assert set(model.state_dict()) == held
        parts |= stages
    assert sorted(parts) == list(range(ranks * schedule.stages_per_rank))
    assert [index for index in parts if parts[index].is_first] == [0]
    assert [index for index in parts if parts[index].is_last] == [max(parts)]


def name_parameters(stage: ModelStage, index: int, layers: int, choices: Choices) -> set[str]:
    """Return the names that a stage's parameters have in the whole model."""
    count = choices.pipeline_parallel * choices.pipeline_schedule.stages_per_rank
    first = pipeline.assign_layers(layers, count)[index].start

    def rename(name: str) -> str:
        head, _, rest = name.partition(".")
        number, _, end = rest.partition(".")
        return f"{head}.{first + int(number)}.{end}" if head == "blocks" else name

    return {rename(name) for name in stage.state_dict()}


def test_smddp_gives_way_to_nccl_where_groups_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "is_smddp_installed", lambda: True)
    chosen = {
        name: parallel.choose_backend("cuda", "ml.p4d.24xlarge", needs_groups=Choices.of(options).needs_groups)
        for name, options in {
            "ddp": argparse.Namespace(),
            "fsdp": argparse.Namespace(parallel="fsdp"),
            "hybrid": argparse.Namespace(parallel="hybrid"),
            "tensor": argparse.Namespace(tensor_parallel=2),
            "pipeline": argparse.Namespace(pipeline_parallel=2),
        }.items()
    }
    assert chosen == {"ddp": "smddp", "fsdp": "smddp", "hybrid": "nccl", "tensor": "nccl", "pipeline": "nccl"}


def step_once(**options: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    model = GPT(layouts.SIZE)
    replica, optimizer = layout(**options).apply(model, layouts.adamw, example=layouts.batch(0, 0, layouts.BATCH))
    replica(*layouts.batch(0, 0, 1)).backward()
    optimizer.step()
    return model


def test_offload_takes_one_tensor_of_each_block_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its input; everything between is computed again, and the step is the same bit for bit."""
    taken = []

    def counted(pin_memory: bool) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(lambda saved: taken.append(saved.shape) or saved, lambda x: x)

    plain = step_once().state_dict()
    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", counted)
    other = step_once(activation_checkpointing=True, activation_offload=True).state_dict()
    entry = torch.Size([layouts.BATCH, layouts.SIZE.context, layouts.SIZE.width])
    assert [shape for shape in taken if shape.numel()] == [entry] * layouts.SIZE.layers
    assert all(torch.equal(plain[name], other[name]) for name in plain)


def test_the_optimizer_is_whole_before_its_first_step() -> None:
    """A checkpoint can be taken and loaded at step 0, and having looked at the state does not change the training."""
    torch.manual_seed(1)
    model = GPT(layouts.SIZE)
    here = layout()
    replica, optimizer = here.apply(model, layouts.adamw, example=layouts.batch(0, 0, layouts.BATCH))
    moments = here.state(model, optimizer)["optimizer"]["state"]
    assert moments.keys() == dict(model.named_parameters()).keys()
    assert not any(value.any() for moment in moments.values() for value in moment.values())
    assert optimizer.param_groups[0]["lr"] == 3e-3
    bare = step_bare()
    replica(*layouts.batch(0, 0, 1)).backward()
    optimizer.step()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(model.parameters(), bare.parameters(), strict=True))


def step_bare() -> torch.nn.Module:
    """One step of an unchanged optimizer."""
    torch.manual_seed(1)
    model = GPT(layouts.SIZE)
    optimizer = layouts.adamw(model.parameters())
    model(*layouts.batch(0, 0, 1)).backward()
    optimizer.step()
    return model


def test_a_state_is_live_and_can_be_taken_up_again() -> None:
    """Its tensors are those that train; put back, so are the learning rate and Adam's count."""
    model = GPT(layouts.SIZE)
    here = layout()
    _, optimizer = here.apply(model, layouts.adamw, example=layouts.batch(0, 0, layouts.BATCH))
    state = here.state(model, optimizer)
    assert state["model"]["head.weight"].data_ptr() == model.head.weight.data_ptr()
    state["optimizer"]["param_groups"][0]["lr"] = 7.0
    state["optimizer"]["state"]["head.weight"]["step"].fill_(41)
    here.restore(model, optimizer, state)
    assert optimizer.param_groups[0]["lr"] == 7.0
    assert optimizer.state[model.head.weight]["step"] == 41


TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "10",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
}


def find_position(environment: Mapping[str, str], base: Path) -> tuple[int, int, int, int, str]:
    found = parallel.find_rank_position(environment, base)
    return found.rank, found.size, found.local_rank, found.local_size, found.launcher


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (1, 2, 0, 1, "resourceconfig.json")),
        (TORCHRUN, (9, 16, 1, 8, "torchrun")),
        (MPIRUN, (10, 16, 2, 8, "mpirun")),
        (TORCHRUN | MPIRUN, (9, 16, 1, 8, "torchrun")),
        ({"RANK": "5", "WORLD_SIZE": "8"}, (5, 8, 1, 4, "torchrun")),
    ],
)
def test_a_rank_finds_its_position(environment: dict[str, str], expected: tuple[int, ...], tmp_path: Path) -> None:
    """Whoever launched it: torchrun, mpirun, or SageMaker alone on two hosts; the master is the first host."""
    config = tmp_path / "input" / "config"
    config.mkdir(parents=True)
    resources = {"hosts": ["algo-1", "algo-2"], "current_host": "algo-2", "current_instance_type": "ml.p4d.24xlarge"}
    (config / "resourceconfig.json").write_text(json.dumps(resources))
    assert find_position(environment, tmp_path) == expected
    found = parallel.find_rank_position(environment, tmp_path)
    assert (found.master, found.instance_type) == ("algo-1", "ml.p4d.24xlarge")


def test_without_a_launcher_a_rank_is_alone(tmp_path: Path) -> None:
    assert find_position({}, tmp_path) == (0, 1, 0, 1, "none")


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"RANK": "1"}, "WORLD_SIZE: not a number; set RANK and WORLD_SIZE, or neither"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK: not a number"),
        ({"RANK": "two", "WORLD_SIZE": "4"}, "RANK: not a number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4: must be less than WORLD_SIZE=4"),
    ],
)
def test_half_a_position_is_refused(environment: dict[str, str], complaint: str, tmp_path: Path) -> None:
    """It would wait for ever, or train alone beside the others."""
    with pytest.raises(ValueError, match=complaint):
        parallel.find_rank_position(environment, tmp_path)


@pytest.mark.parametrize(
    ("instance_type", "expected"),
    [
        ("ml.p4d.24xlarge", {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}),
        ("ml.p5.48xlarge", {"FI_PROVIDER": "efa"}),
        ("ml.p5en.48xlarge", {"FI_PROVIDER": "efa"}),
        ("ml.g5.48xlarge", {"FI_PROVIDER": "efa"}),
        ("ml.g5.xlarge", {}),
        ("ml.m5.large", {}),
        ("", {}),
    ],
)
def test_efa_is_asked_for_where_it_exists(instance_type: str, expected: dict[str, str]) -> None:
    assert instances.make_network_settings(instance_type) == expected
