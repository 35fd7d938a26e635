"""The utilisation is printed where the peak is known, and only there."""

import pytest
import torch

import speed
from model import GPT, SIZES


def test_a_cpu_has_no_utilisation() -> None:
    """Nobody knows its peak, and none is made up."""
    assert speed.find_peak_flops(torch.device("cpu")) is None
    meter = speed.FlopsMeter(flops_per_step=1e9, peak=None)
    meter.steps += 1
    assert meter.measure() == {}


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA A10G", 70),
        ("Tesla T4", None),
        ("", None),
    ],
)
def test_devices_are_known_by_name(name: str, teraflops: float | None) -> None:
    """As the driver spells it; L4 is not L40S."""
    assert speed.find_peak(name) == (None if teraflops is None else teraflops * 1e12)


def test_gpt2_flops_are_those_of_the_formula() -> None:
    """85 million weights in the blocks and 256 x 768 in the head, six FLOP each; then the attention."""
    with torch.device("meta"):
        model = GPT(SIZES["gpt2"])
    blocks = 12 * (12 * 768**2 + 4 * 768) + 2 * 768  # with the weights and biases of the norms
    assert speed.count_flops_per_token(model, SIZES["gpt2"]) == 6 * (blocks + 256 * 768) + 12 * 12 * 768 * 1024


def test_the_meter_divides_work_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of 3 TFLOP within 4 s on devices of 6 TFLOP/s: a quarter."""
    now = [100.0]
    monkeypatch.setattr(speed.time, "perf_counter", lambda: now[0])
    meter = speed.FlopsMeter(flops_per_step=3e12, peak=6e12, since=100.0)
    meter.steps += 1
    meter.steps += 1
    now[0] = 104.0
    assert meter.measure() == {"mfu": 0.25}
