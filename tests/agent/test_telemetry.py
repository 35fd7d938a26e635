"""The metric line, as CloudWatch's regular expressions read it."""

import math
import re

import numpy as np
import pytest

from rerail.model.metrics import make_definitions
from rerail_agent.telemetry import TokenMeter, format_line


def read(text: str) -> dict[str, str]:
    """What the job's MetricDefinitions find in a line."""
    found = {definition["Name"]: re.search(definition["Regex"], text) for definition in make_definitions()}
    return {name: match[1] for name, match in found.items() if match}


def test_every_standard_field_is_found_by_its_expression():
    text = format_line(
        step=60, loss=2.5, grad_norm=1.25, lr=3e-4, tokens_per_s=12345.6, extra={"mfu": 0.41, "loss z": 1, "step": 7}
    )
    assert text == ("rerail step=60 loss=2.5 grad_norm=1.25 lr=0.0003 tokens_per_s=12346 nonfinite=0 mfu=0.41 loss_z=1")
    assert read(text) == {
        "step": "60", "loss": "2.5", "grad_norm": "1.25", "tokens_per_s": "12346", "nonfinite": "0"
    }  # fmt: skip


@pytest.mark.parametrize("loss", [2.3456789, 1e-30, 3.4e38, 0.1])
def test_a_float32_loss_comes_back_bit_for_bit(loss):
    """Nine digits are enough for every float32."""
    exact = float(np.float32(loss))
    text = format_line(step=1, loss=exact, grad_norm=None, lr=None, tokens_per_s=None, extra={})
    assert np.float32(read(text)["loss"]) == np.float32(exact)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.inf), (2.0, math.nan)])
def test_what_is_not_finite_raises_the_flag_and_gives_no_number(loss, norm):
    found = read(format_line(step=1, loss=loss, grad_norm=norm, lr=None, tokens_per_s=5, extra={}))
    assert found["nonfinite"] == "1"
    assert ("loss" in found) is math.isfinite(loss)


def test_tokens_a_second_are_those_since_the_last_line():
    """All tokens of the steps in between, over the time in steps."""
    lines: list[str] = []
    meter = TokenMeter(lines.append)
    for trained_s, is_logged in ((1.0, False), (2.0, True), (2.5, True)):
        meter.add_tokens(100)
        if is_logged:
            meter.report(step=1, loss=1.0, grad_norm=None, lr=None, trained_s=trained_s, extra=None)
    assert [read(text)["tokens_per_s"] for text in lines] == ["100", "200"]


def test_without_tokens_no_speed_is_printed():
    lines: list[str] = []
    TokenMeter(lines.append).report(step=1, loss=1.0, grad_norm=None, lr=None, trained_s=1.0, extra={"odd": "a b"})
    assert lines == ["rerail step=1 loss=1 nonfinite=0 odd=a_b"]
