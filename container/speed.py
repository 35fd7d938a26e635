"""Measure model FLOPs utilisation, where the device's peak is known."""

import re
import time
from dataclasses import dataclass, field

import torch
from torch import nn

from choices import Precision
from model import GPT, ModelSize
from parallel import ParallelLayout

# Dense bfloat16 TFLOP/s of NVIDIA's data sheets, by a word of the name that the driver gives; the first match counts.
PEAKS = (
    ("GB200", 2500.0),
    ("B200", 2250.0),
    ("H200", 989.0),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.0),
    ("A100", 312.0),
    ("L40S", 362.0),
    ("L4", 121.0),
    ("A10G", 70.0),
)


def find_peak_flops(device: torch.device) -> float | None:
    """Return the FLOP/s of one device in bfloat16; None if unknown, as on a CPU."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return find_peak(name)


def find_peak(name: str) -> float | None:
    return next((peak * 1e12 for word, peak in PEAKS if re.search(rf"\b{word}\b", name)), None)


def count_flops_per_token(model: nn.Module, size: ModelSize) -> float:
    """Count forward and backward: six for each weight that is multiplied, and attention over the whole context.

    As in the PaLM paper (appendix B): the two lookup tables do not count, recomputation does not either, and masked
    attention counts in full.
    """
    looked_up = sum(table.weight.numel() for table in model.modules() if isinstance(table, nn.Embedding))
    weights = sum(parameter.numel() for parameter in model.parameters()) - looked_up
    return float(6 * weights + 12 * size.layers * size.width * size.context)


@dataclass
class FlopsMeter:
    """The utilisation since the last measurement; empty if the peak is not known."""

    flops_per_step: float
    # Of all devices together.
    peak: float | None
    steps: int = 0
    since: float = field(default_factory=time.perf_counter)

    @classmethod
    def on(cls, layout: ParallelLayout, size: ModelSize, *, tokens: int) -> "FlopsMeter":
        """Make a meter for `tokens` a step over all ranks; only bfloat16 has known peaks."""
        peak = find_peak_flops(layout.world.device) if layout.choices.precision is Precision.BF16 else None
        with torch.device("meta"):  # the whole model, of which a rank may have a part
            model = GPT(size)
        return cls(count_flops_per_token(model, size) * tokens, None if peak is None else peak * layout.world.size)

    def measure(self) -> dict[str, float]:
        now = time.perf_counter()
        done, seconds = self.flops_per_step * self.steps, now - self.since
        self.steps, self.since = 0, now
        return {"mfu": done / seconds / self.peak} if self.peak else {}
