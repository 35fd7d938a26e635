"""What an expression makes of numbers and names, known before a job runs."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.training_logs.expressions import _make_example, compile_expression, find_flaw, read
from rerail.model.metrics import make_definitions

ROOT = Path(__file__).resolve().parents[3]
# An expression that people are shown, as an option or as the value of a name.
SHOWN = re.compile(r"""\bloss(?:: str)? = r?(['"])(?P<value>.*?)\1|['"](?:loss|grad_norm)=(?P<option>[^'"\n]+)['"]""")


@pytest.mark.parametrize(
    "expression, number, found",
    [
        ("loss: ([0-9.]+)", "9.1e-05", "9.1"),
        (r"loss=([-+0-9.e]+)(?:\s|$)", "9.1e-05", "9.1e-05"),
        (r"'loss': ([0-9.e-]+),", "9.1e-05", "9.1e-05"),
        (r"loss\((?:train)\)=(?P<x>\S+)", "nan", "nan"),
        (r"[(]loss=([]0-9.]+)", "2.5", "2.5"),
        (r"loss=(\d+\.\d{4})", "9.1e-05", None),
        (r"iter \d+[^|]*\| *loss: (-?[0-9.]+)", "-0.31", "-0.31"),
        (r"loss:.*?([0-9.]+)", "-0.31", "0.31"),
        ("no group", "1", None),
    ],
)
def test_what_an_expression_captures(expression, number, found):
    """Tried on a shortest line that it matches, with what usually stands behind a number."""
    assert read(expression, number) == found


@pytest.mark.parametrize(
    "expression, text, is_certain",
    [
        (r"loss: ([0-9.]+)", "reads 9.1e-05 as '9.1'", True),
        (r"loss: ([0-9.e+-]+|nan)", "reads 9.1E-05, as Megatron-LM prints it, as '9.1'", False),
        (r"loss: ([0-9.naife+-]+)", "reads 9.1E-05, as Megatron-LM prints it, as '9.1'", False),
        (r"loss: (\d\.\d{4})", "does not find 9.1e-05: small values would be lost", True),
        (r"iter \d+: loss ([-+.0-9eE]+)", "", None),
        (r"\bloss:[ -]*([0-9.eE]+-?[0-9]+)", "reads -0.31 as '0.31'", True),
        (r"loss: ([-+.0-9eE]+)", "also reads 'val_loss': begin it with (?:^|[^A-Za-z0-9_])", False),
        (r"(?:^|[^A-Za-z0-9_])loss: ([-+.0-9eE]+)", "", None),
        (r"\| lm loss: ([-+.0-9eE]+)", "", None),
        ("loss: (", "", None),
        ("loss", "", None),
    ],
)
def test_a_flaw_is_named(expression, text, is_certain):
    """An expression that does not compile or captures nothing is refused elsewhere."""
    flaw = find_flaw(expression)
    assert (flaw.text if flaw else "") == text and (flaw.is_certain if flaw else None) is is_certain


@given(st.text(alphabet=r"()[]\?:P<x>=.*+|^-ab01 ", max_size=30))
def test_any_expression_is_read_without_an_accident(expression):
    """Whatever people write, there is an answer."""
    find_flaw(expression)


@pytest.mark.parametrize("expression", ["(" * 200_000 + ")" * 200_000, "(a{99999999999999})", "(a"])
def test_what_cannot_be_compiled_is_one_kind_of_error(expression):
    """Projects and jobs of others choose them."""
    with pytest.raises(re.error):
        compile_expression(expression)
    assert find_flaw(expression) is None


def test_an_example_is_short_whatever_repeats_in_repetitions():
    assert len(_make_example("(loss)" + "(?:" * 3 + "a" + "{99})" * 3, "1") or "") in range(9, 100_000)


def test_no_expression_that_is_shown_or_shipped_misreads_a_number():
    """In documentation, hints, demos and trials, and what `rerail metrics` prints."""
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "cli").rglob("*.py"),
        *ROOT.glob("*/README.md"),
        *(ROOT / "local" / "examples").rglob("*.toml"),
    ]
    matches = [(page.name, match) for page in pages for match in SHOWN.finditer(page.read_text(encoding="utf-8"))]
    shown = [(name, found) for name, match in matches if "(" in (found := match["value"] or match["option"] or "")]
    assert {"submit.md", "detection.md", "text.py", "scripts.py"} <= {name for name, _ in shown}
    ours = [("rerail metrics", each["Regex"]) for each in make_definitions() if each["Name"] in ("loss", "grad_norm")]
    assert {
        where: flaw.text
        for where, expression in (*shown, *ours)
        if "<" not in expression and (flaw := find_flaw(expression))
    } == {}
