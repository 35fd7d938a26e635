"""Each published rule on a series so short that its answer can be told by hand."""

import math
from collections.abc import Iterable

import pytest

from bench.rules import RULES, axolotl, composer, hyperpod, llm_foundry, megatron, metaseq, ml_goodput, olmo, zclip
from bench.rules.series import Moments, Ordered
from cli.backtest.scoring import FAMILIES, INTERVENE, WARN
from rerail.model.sample import Sample


def losses(*values: float | None) -> list[Sample]:
    return [Sample(step=step, loss=value) for step, value in enumerate(values)]


def wobbling(level: float, count: int) -> list[float]:
    """A level with a little noise that is the same every time."""
    return [level * (1 + 0.01 * math.sin(2.3 * i)) for i in range(count)]


def rows(calls: Iterable) -> list[int]:
    return [call.row for call in calls]


def test_olmo_asks_for_six_deviations_after_64_values():
    """A jump at row 100 is seen once it is in no window yet; the same jump at row 50 is too early."""
    series = [*wobbling(2.0, 100), 2.5, *wobbling(2.0, 20)]
    assert rows(olmo.calls(losses(*series))) == [100]
    assert rows(olmo.calls(losses(*series[50:]))) == []


def test_olmo_reads_the_gradient_norm_when_it_is_asked_to():
    """The loss is calm, the gradient is not."""
    samples = [Sample(loss=2.0, grad_norm=norm) for norm in [*wobbling(1.0, 100), 9.0]]
    assert rows(olmo.calls(samples)) == []
    assert rows(olmo.calls_with_gradient(samples)) == [100]


def test_llm_foundry_speaks_at_the_fifth_doubled_loss():
    """Four are patience; one step back below starts the count again."""
    calm, high = [1.0] * 100, [3.0] * 4
    assert rows(llm_foundry.calls(losses(*calm, *high, 1.0, *high))) == []
    assert rows(llm_foundry.calls(losses(*calm, *high, 3.0))) == [104]


def test_hyperpod_knows_one_whole_number():
    """Half as much again as 2.0 is 3: five losses above it, after the first hundred, and 3.0 itself is not above."""
    assert rows(hyperpod.calls(losses(*[2.0] * 100, *[3.0] * 9))) == []
    assert rows(hyperpod.calls(losses(*[2.0] * 100, *[3.1] * 6))) == [104, 105]


def test_megatron_asks_for_ten_times_the_largest_so_far_seen():
    """The largest of the first hundred, not of all."""
    assert rows(megatron.calls(losses(*[2.0] * 100, 19.9, 20.0, 50.0))) == [101, 102]


def test_zclip_learns_the_clipped_value_only():
    """A lasting jump goes on being called for a while, because little of it is learnt."""
    found = rows(zclip.calls(losses(*wobbling(2.0, 100), *[4.0] * 3)))
    assert found[-3:] == [100, 101, 102]


def test_axolotl_compares_with_the_first_loss():
    """Three in a row above twice of it."""
    assert rows(axolotl.calls(losses(3.0, 7.0, 7.0, 2.0, 7.0, 7.0, 7.0))) == [6]


def test_metaseq_freezes_its_mean_while_it_spikes():
    """Without that, the third high loss would look normal."""
    assert rows(metaseq.calls(losses(*[1.0] * 5, *[1.4] * 4, 1.0))) == [5, 6, 7, 8]


def test_ml_goodput_sees_a_slow_tail_and_only_warns():
    """A fifth of the last hundred steps at double time, against a steady past."""
    seconds = [*wobbling(1.0, 300), *[2.0 if i % 5 == 0 else 1.0 for i in range(100)]]
    said = list(ml_goodput.calls(Sample(step_time_s=value) for value in seconds))
    assert 300 < said[0].row < 400
    assert {(call.kind, call.level) for call in said} == {("throughput_drop", WARN)}


def test_composer_looks_for_nan_and_lets_infinity_pass():
    """As its monitor does."""
    assert rows(composer.calls(losses(1.0, math.inf, math.nan, None))) == [2]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_survives_what_real_logs_hold(rule):
    """Missing values, NaN and infinity do not stop it, do not poison its windows, and what it says can be scored."""
    odd = [Sample(), Sample(loss=math.nan, grad_norm=math.inf, step_time_s=math.nan), Sample(loss=-math.inf)]
    series = [*losses(*wobbling(2.0, 120)), *odd, *losses(*wobbling(2.0, 120)), *losses(*[90.0] * 8)]
    said = list(rule.calls(series))
    assert all(call.kind in FAMILIES and call.level in (WARN, INTERVENE) for call in said)
    loss_rules = {"OLMo-core", "llm-foundry", "HyperPod", "Megatron", "ZClip on loss", "axolotl", "metaseq"}
    assert rule.name not in loss_rules or any(call.row >= 243 for call in said)


def test_moments_are_those_of_the_last_values():
    """The same as counted anew, however long it ran."""
    window, values = Moments(8), wobbling(1000.0, 100)
    for value in values:
        window.add(value)
    last = values[-8:]
    mean = sum(last) / 8
    assert window.mean == pytest.approx(mean)
    assert window.std == pytest.approx(math.sqrt(sum((value - mean) ** 2 for value in last) / 7), rel=1e-6)


def test_order_is_kept_as_values_leave():
    """Quantiles of the last five; the oldest falls out and is handed back."""
    window = Ordered(5)
    assert [window.add(value) for value in (5, 1, 4, 2, 3, 9, 8)] == [None] * 5 + [5, 1]
    assert (window.quantile(0.0), window.quantile(0.5), window.quantile(1.0)) == (2, 4, 9)
    assert window.share_within(2, of=4) == 0.4
