"""Detection rules that others published, with their own constants, a file each, to be scored beside ours.

Each is a generator over samples that yields a `Call` for every row at which its condition holds, having seen that row
and nothing later. Rules that only clip or skip are taken at their word as detectors: where they act on a step, a
supervisor wired to them would stop the job. Values that are not finite are seen by rules that look for them, and kept
out of the windows of all others: one NaN in a mean would blind them, which they do not claim.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bench.rules import axolotl, composer, hyperpod, llm_foundry, megatron, metaseq, ml_goodput, olmo, zclip
from cli.backtest.scoring import Call
from rerail.model.sample import Sample


@dataclass(frozen=True, slots=True)
class Rule:
    """One published rule: its name in the table, what it says in a line, and the rule itself."""

    name: str
    says: str
    calls: Callable[[Iterable[Sample]], Iterator[Call]]


RULES = (
    Rule("OLMo-core", "loss > mean + 6 std of the last 128", olmo.calls),
    Rule("OLMo-core, gradient", "loss or gradient norm > mean + 6 std of the last 128", olmo.calls_with_gradient),
    Rule("llm-foundry", "loss >= 2 x mean of the last 100, 5 in a row", llm_foundry.calls),
    Rule("HyperPod", "loss > one whole number for the run, 5 in a row", hyperpod.calls),
    Rule("Megatron", "loss >= 10 x the largest of the first 100", megatron.calls),
    Rule("ZClip on loss", "z > 2.5 of a running mean that learns the clipped value", zclip.calls),
    Rule("axolotl", "loss > 2 x the first, 3 in a row", axolotl.calls),
    Rule("metaseq", "loss > 1.3 x a running mean that is frozen meanwhile", metaseq.calls),
    Rule("ml-goodput", "step time: p90 of the last 100 > median + 3 MAD of the 1,000 before", ml_goodput.calls),
    Rule("Composer", "the loss is NaN", composer.calls),
)
