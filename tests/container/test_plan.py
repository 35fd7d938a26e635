"""The guidance on model parallelism as code: what is refused, what is warned of, and what the advice leads to."""

import argparse
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import plan
from choices import Choices, Parallel, Precision, Schedule, TrainingPlan, parse_bool
from job import TrainingCluster
from memory import GIB, count_parameters, estimate, fits, usable_gib
from model import GPT, SIZES, ModelSize
from plan import PlanFinding, PlanLevel
from rank_groups import compute_bubble, describe

P4D = "ml.p4d.24xlarge"
# GPT-2 of the guidance's reference configurations: 512 tokens, 50,000 words.
TEN_BILLION = ModelSize(layers=48, heads=32, width=4096, context=512)
THIRTY_BILLION = ModelSize(layers=48, heads=56, width=7168, context=512)


def asked(
    size: ModelSize = SIZES["gpt2"], *, hosts: int = 1, instance: str = P4D, batch: int = 64, **choices: Any
) -> TrainingPlan:
    machines = {"hosts": hosts, "instance_type": instance, "ranks_per_node": plan.INSTANCES[instance].gpus}
    return TrainingPlan(Choices(**choices), size=size, batch_size=batch, vocabulary=50_000, **machines)


def findings(of: TrainingPlan, level: PlanLevel) -> list[PlanFinding]:
    return [finding for finding in plan.check_plan(of) if finding.level is level]


@pytest.mark.parametrize(
    ("wrong", "what", "remedy"),
    [
        (asked(tensor_parallel=3), "tensor_parallel=3", "choose one of 1, 2, 4, 8"),
        (asked(hosts=2, tensor_parallel=16), "tensor_parallel=16", "choose one of 1, 2, 4, 8"),
        (asked(tensor_parallel=8), "tensor_parallel=8", "choose one of 1, 2, 4"),
        (asked(instance="ml.g5.12xlarge", tensor_parallel=8), "tensor_parallel=8", "choose one of 1, 2, 4"),
        (asked(parallel=Parallel.HYBRID, shard_size=3), "shard_size=3", "choose a divisor of 8"),
        (asked(shard_size=4), "shard_size=4", "leave it out, or choose parallel=hybrid"),
        (asked(batch=60), "batch_size=60", "choose 56 or 64"),
        (asked(batch=4), "batch_size=4", "choose 8"),
        (asked(pipeline_parallel=3), "pipeline_parallel=3", "choose one of 1, 2, 4, 8"),
        (asked(pipeline_parallel=2, microbatches=3), "batch_size=64", "choose 60 or 72"),
        (
            asked(pipeline_parallel=8, microbatches=8, pipeline_schedule=Schedule.ZBV),
            "pipeline_parallel=8",
            "choose at most 6",
        ),
        (asked(activation_offload=True), "activation_offload=true", "add activation_checkpointing=true"),
    ],
)
def test_an_impossible_plan_is_refused_before_it_starts(wrong: TrainingPlan, what: str, remedy: str) -> None:
    """Each error names the option and what it may be, and `insist` raises it."""
    (error,) = findings(wrong, PlanLevel.ERROR)
    assert (error.what, error.remedy) == (what, remedy)
    assert error.why
    with pytest.raises(ValueError, match=re.escape(f"{what}: ")):
        plan.raise_errors([error])


@pytest.mark.parametrize(
    "fine",
    [
        asked(),
        asked(tensor_parallel=4),
        asked(hosts=2, parallel=Parallel.HYBRID),
        asked(hosts=2, parallel=Parallel.HYBRID, shard_size=4, tensor_parallel=2),
        asked(parallel=Parallel.FSDP, activation_checkpointing=True, activation_offload=True),
    ],
)
def test_what_can_start_has_no_errors(fine: TrainingPlan) -> None:
    assert not findings(fine, PlanLevel.ERROR)


@pytest.mark.parametrize(
    ("size", "hosts", "degree", "samples"), [(TEN_BILLION, 16, 4, 40), (THIRTY_BILLION, 16, 8, 32)]
)
def test_the_reference_configurations_of_the_guidance_fit(
    size: ModelSize, hosts: int, degree: int, samples: int
) -> None:
    """10 and 30 billion parameters on 16 P4d: tensor parallel, sharded, checkpointed, the batch that of each group."""
    groups = hosts * 8 // degree
    reference = asked(
        size,
        hosts=hosts,
        batch=samples * groups,
        tensor_parallel=degree,
        parallel=Parallel.FSDP,
        activation_checkpointing=True,
        precision=Precision.BF16,
    )
    assert fits(reference), estimate(reference)
    assert not fits(replace(reference, choices=replace(reference.choices, activation_checkpointing=False)))
    assert not fits(replace(reference, choices=Choices(precision=Precision.BF16, activation_checkpointing=True)))


def test_advice_comes_in_the_order_of_the_guidance() -> None:
    """Shard the optimizer, checkpoint activations, a smaller batch, then tensor parallelism; never more than needed."""
    advice = plan.format_advice(asked(TEN_BILLION, hosts=4, batch=32 * 16))
    names = ("shard_optimizer=true", "parallel=fsdp", "activation_checkpointing=true")
    order = [advice.find(name) for name in names]
    assert -1 not in order
    assert order == sorted(order)
    assert advice.startswith("in this order: ")
    assert not any(name in advice for name in ("batch_size", "tensor_parallel", "activation_offload"))


def test_the_last_piece_of_advice_makes_it_fit() -> None:
    """The figure behind it is what the estimate says, and lies below what is usable."""
    too_large = asked(TEN_BILLION, hosts=4, batch=32 * 16)
    last = float(re.findall(r"\(([0-9.]+) GiB\)", plan.format_advice(too_large))[-1])
    assert last <= usable_gib(too_large) < estimate(too_large).total


def test_where_nothing_helps_a_larger_instance_is_named() -> None:
    """Or more machines."""
    assert "take ml.g6e.12xlarge" in plan.format_advice(asked(TEN_BILLION, instance="ml.g5.12xlarge", batch=8))
    assert "more machines" in plan.format_advice(
        asked(replace(TEN_BILLION, layers=5000), instance="ml.g5.12xlarge", batch=8)
    )


def test_what_is_far_too_large_is_an_error_and_what_is_close_a_warning() -> None:
    """The estimate is good to a fifth: only beyond that is the job refused."""
    (error,) = findings(asked(TEN_BILLION), PlanLevel.ERROR)
    assert error.what.startswith("memory=")
    assert error.why == "more than the usable 35.4 GiB of 40 (A100)"
    close = next(
        each
        for each in (asked(replace(SIZES["gpt2"], layers=layers)) for layers in range(12, 400))
        if estimate(each).total > usable_gib(each)
    )
    assert [finding.what[:7] for finding in findings(close, PlanLevel.WARNING)] == ["memory="]
    assert not findings(close, PlanLevel.ERROR)


def test_a_smaller_cluster_is_warned_of() -> None:
    """Optimizer state that is cut up over 16 GPUs need not fit on 8: a relaunch on fewer machines would fail."""
    sharded = {"parallel": Parallel.FSDP, "activation_checkpointing": True, "precision": Precision.BF16}
    sizes = (replace(TEN_BILLION, layers=layers) for layers in range(10, 200, 2))
    plans = (asked(size, hosts=2, batch=16 * 4, **sharded) for size in sizes)
    tight = next(each for each in plans if not fits(replace(each, hosts=1, batch_size=8 * 4)))
    assert fits(tight)
    assert "hosts=2" in [finding.what for finding in plan.check_plan(tight)]
    assert plan.count_fewest_hosts(tight) == 2


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        (replace(asked(), ranks_per_node=4), "ranks_per_node=4"),
        (asked(instance="ml.g4dn.12xlarge", batch=4, precision=Precision.BF16), "precision=bf16"),
        (asked(instance="ml.g5.12xlarge", hosts=2, batch=8, parallel=Parallel.FSDP), "parallel=fsdp"),
        (asked(hosts=2, parallel=Parallel.HYBRID, shard_size=16), "shard_size=16"),
    ],
)
def test_waste_is_warned_of(odd: TrainingPlan, what: str) -> None:
    """Idle GPUs, a format the GPU lacks, layers over a slow network that one machine could hold."""
    assert what in [finding.what for finding in findings(odd, PlanLevel.WARNING)]


@pytest.mark.parametrize("schedule", list(Schedule))
def test_a_pipeline_with_few_microbatches_is_noted(schedule: Schedule) -> None:
    """Four for each stage are enough, whatever the schedule; two are not, unless it hides the wait."""
    pipeline = {"pipeline_parallel": 4, "pipeline_schedule": schedule}
    few, enough = asked(batch=64, microbatches=4, **pipeline), asked(batch=64, microbatches=16, **pipeline)
    noted = [note for note in findings(few, PlanLevel.NOTE) if note.what == "microbatches=4"]
    assert [note.remedy[:9] for note in noted] == (["choose 16"] if compute_bubble(few.choices) > 0.2 else [])
    assert not any("microbatches" in finding.what for finding in plan.check_plan(enough))


@pytest.mark.parametrize("name", ["tensor_parallel=2", "activation_checkpointing=true"])
def test_what_a_model_does_not_need_is_noted(name: str) -> None:
    """If it fits with fewer features, more make it slower."""
    choices: dict[str, Any] = {"tensor_parallel": 2} if "tensor" in name else {"activation_checkpointing": True}
    notes = findings(asked(**choices), PlanLevel.NOTE)
    assert [note.what for note in notes] == [name]
    assert notes[0].remedy == "leave it out"


def test_an_unknown_machine_is_noted_and_a_missing_one_is_not() -> None:
    strange = replace(asked(), instance_type="ml.p9.metal")
    assert [finding.what for finding in plan.check_plan(strange)] == ["ml.p9.metal"]
    assert plan.check_plan(replace(asked(), instance_type="", ranks_per_node=2)) == []


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_estimate_of_activations_is_what_torch_keeps(precision: Precision, dropout: float) -> None:
    """Within a fifth, for the tensors that a forward pass saves for its backward pass."""
    size = replace(SIZES["small"], layers=3, context=64, dropout=dropout)
    model = GPT(size)
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.zeros(4, size.context, dtype=torch.long)
    bf16 = precision is Precision.BF16
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), torch.autocast("cpu", torch.bfloat16, bf16):
        loss = model(tokens, tokens)
    assert loss.dtype is torch.float32
    # Autocast's copies of weights are not activations.
    linear = [w for name, w in model.named_parameters() if name.startswith(("blocks", "head")) and w.ndim > 1]
    copies = sum(2 * weight.numel() for weight in linear) if bf16 else 0
    saved = sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) - copies
    needed = estimate(TrainingPlan(Choices(precision=precision), 1, "", 1, size, 4))
    assert (needed.activations + needed.loss) * GIB == pytest.approx(saved, rel=0.2)


@pytest.mark.parametrize("name", SIZES)
def test_parameters_are_counted_as_the_model_has_them(name: str) -> None:
    block, others = count_parameters(SIZES[name])
    assert SIZES[name].layers * block + others == sum(parameter.numel() for parameter in GPT(SIZES[name]).parameters())


def test_sharding_over_more_ranks_takes_less_of_each() -> None:
    """Fully sharded state is divided by all ranks, hybrid by those of a machine, layers by the degree."""
    state = {
        name: estimate(each).optimizer
        for name, each in {
            "ddp": asked(hosts=2),
            "shard_optimizer": asked(hosts=2, shard_optimizer=True),
            "fsdp": asked(hosts=2, parallel=Parallel.FSDP),
            "hybrid": asked(hosts=2, parallel=Parallel.HYBRID),
        }.items()
    }
    assert state["fsdp"] == pytest.approx(state["ddp"] / 16)
    assert state["shard_optimizer"] == pytest.approx(state["ddp"] / 16)
    assert state["hybrid"] == pytest.approx(state["ddp"] / 8)
    block, _ = count_parameters(TEN_BILLION)
    halved = estimate(asked(TEN_BILLION)).parameters - estimate(asked(TEN_BILLION, tensor_parallel=2)).parameters
    assert halved * GIB == pytest.approx(4 * TEN_BILLION.layers * block / 2, rel=0.01)


def test_options_are_read_from_the_jobs_hyperparameters(tmp_path: Path) -> None:
    cluster = TrainingCluster(
        hosts=("algo-1", "algo-2"), current_host="algo-1", instance_type=P4D, network_interface=""
    )
    options = argparse.Namespace(batch_size=17, parallel="fsdp")
    (error,) = plan.check(options, cluster, SIZES["gpt2"])
    assert (error.what, error.remedy) == ("batch_size=17", "choose 16 or 32")
    assert plan.check(argparse.Namespace(batch_size=16), cluster, SIZES["gpt2"]) == []


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("1", True), ("False", False), ("no", False)])
def test_a_truth_is_read_from_a_string(text: str, expected: bool) -> None:
    assert parse_bool(text) is expected


def test_anything_else_is_no_truth() -> None:
    with pytest.raises(ValueError, match="'maybe' is not a boolean: use true or false"):
        parse_bool("maybe")


@pytest.mark.slow
def test_by_hand_it_prints_a_table() -> None:
    """A figure for each kind of memory, then what is wrong, why and what to do; 1 if the job cannot start."""
    command = [sys.executable, plan.__file__, "--instance", "ml.g5.12xlarge", "--count", "2", "--model-size", "gpt2"]
    done = subprocess.run([*command, "--batch-size", "1024"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "2 x ml.g5.12xlarge (A10G, 24 GiB), 8 ranks, a batch over 8 of them" in done.stdout
    assert "usable: does not fit\n" in done.stdout
    assert re.search(r"^optimizer +0\.64 GiB$", done.stdout, re.MULTILINE)
    assert re.search(r"^ERROR +memory=[0-9.]+ GiB\n  why .*\n  do +in this order: ", done.stdout, re.MULTILINE)


def test_a_plan_that_fits_has_a_short_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["--instance", P4D, "--count", "2"]) == 0
    out = capsys.readouterr().out
    assert "\nlayout: ddp, replicas 16 across machines\n" in out
    assert re.search(r"usable: fits\n\nnothing to object to\n$", out)


@pytest.mark.parametrize(
    ("schedule", "ranks", "parts", "expected"),
    [("gpipe", 4, 8, 3 / 11), ("1f1b", 4, 8, 3 / 11), ("interleaved", 4, 8, 3 / 19), ("1f1b", 1, 1, 0.0)],
)
def test_the_bubble_is_that_of_the_formula(schedule: str, ranks: int, parts: int, expected: float) -> None:
    """(p-1)/(m+p-1), its fill time halved by two stages on each rank; bench.bubbles measures it."""
    choices = Choices(pipeline_parallel=ranks, microbatches=parts, pipeline_schedule=Schedule(schedule))
    assert compute_bubble(choices) == pytest.approx(expected)
    assert compute_bubble(replace(choices, pipeline_schedule=Schedule.ZERO_BUBBLE)) <= compute_bubble(choices)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        (
            {"tensor_parallel": 8, "pipeline_parallel": 2, "microbatches": 8},
            "ddp, tensor 8 within a machine, replicas 2 across machines, pipeline 2 across machines"
            " (1f1b, 8 microbatches, bubble 11%)",
        ),
        ({"parallel": Parallel.HYBRID}, "hybrid, shards 8 within a machine, replicas 4 across machines"),
        (
            {"parallel": Parallel.FSDP, "tensor_parallel": 2},
            "fsdp, tensor 2 within a machine, shards 16 across machines",
        ),
    ],
)
def test_the_topology_is_described(choices: dict[str, Any], expected: str) -> None:
    """Tensor parallelism stays within machines, which are those of resourceconfig.json; the rest goes across."""
    assert describe(asked(hosts=4, **choices), "nccl") == f"4 x {P4D}, 32 rank(s), nccl: {expected}"


def test_the_sixty_billion_reference_fits_with_half_of_its_batch() -> None:
    """32 P4d, two stages, tensors over eight; torch keeps a stage's gradients whole until the last microbatch."""
    reference = asked(
        ModelSize(layers=60, heads=72, width=9216, context=512),
        hosts=32,
        batch=28 * 16,
        tensor_parallel=8,
        pipeline_parallel=2,
        microbatches=4,
        parallel=Parallel.FSDP,
        activation_checkpointing=True,
        precision=Precision.BF16,
    )
    assert not plan.find_errors(reference)
    assert fits(reference), estimate(reference)
    assert not fits(replace(reference, batch_size=56 * 16))
    assert not fits(replace(reference, choices=replace(reference.choices, activation_checkpointing=False)))


@pytest.mark.slow
def test_rules_need_no_torch() -> None:
    """So that anything may ask them, not only a training image."""
    folder = str(Path(plan.__file__).parent)
    code = "import sys; import plan; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder)
