"""Policies: what is read, what is refused, and that the refusal says how to mend the file."""

from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.model.causes import Cause
from rerail.model.errors import PolicyError
from rerail.model.policy import Mode, Policy, Retries, parse_policy, to_toml
from rerail.model.thresholds import PlannedChange, Thresholds
from tests.core.strategies import policies

SHIPPED = sorted((Path(__file__).parents[2] / "policies").glob("*.toml"))


def refusal(text: str, name: str = "night") -> str:
    with pytest.raises(PolicyError) as error:
        parse_policy(text, name=name)
    return str(error.value)


def test_an_empty_file_is_the_default_policy():
    assert parse_policy("", name="default") == Policy()


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("0s", timedelta(0)),
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("0.5h", timedelta(minutes=30)),
        (" 7d ", timedelta(days=7)),
    ],
)
def test_durations_are_written_with_their_unit(text, duration):
    assert parse_policy(f'[save]\ndeadline = "{text}"', name="night").save.deadline == duration


@pytest.mark.parametrize(
    "value", ['""', '"15"', '"15 minutes"', '"-5m"', '"1h30m"', '"fast"', '"1e3s"', "900", "true", "[]"]
)
def test_a_duration_without_a_unit_is_refused(value):
    assert "field 'save.deadline'" in (message := refusal(f"[save]\ndeadline = {value}"))
    assert "policy 'night'" in message
    assert 'it must be a duration such as "90s", "15m" or "12h"' in message


@pytest.mark.parametrize(
    ("section", "most", "complaint"),
    [
        (lambda n: f'[save]\ndeadline = "{n}d"', 366, "must be at most a year"),
        (lambda n: f"[retries]\nhang = {n}", 1_000_000, "must be a whole number from 0 to 1,000,000"),
        (lambda n: f'[prices]\n"ml.p5.48xlarge" = {n}', 1_000_000, "must be a number from 0 to 1,000,000"),
        (lambda n: "[prices]\n" + "".join(f'"ml.g{k}.x" = 1\n' for k in range(n)), 20, "of at most 20 prices"),
        (lambda n: "[causes]\n" + "".join(f'"text {k}" = "data"\n' for k in range(n)), 20, "of at most 20 texts"),
        (lambda n: f'[causes]\n"{"x" * n}" = "data"', 100, "a text of 4 to 100 characters"),
        (lambda n: f"[capacity]\nfallbacks = {['ml.g5.xlarge'] * n}", 10, "a list of at most 10 texts"),
        (lambda n: f"alarms = {['slow'] * n}", 10, "a list of at most 10 names of alarms"),
        (lambda n: f"alarms = {['x' * n]}", 255, "a list of at most 10 names of alarms"),
        (lambda n: f"[copies]\nkeep = {n}", 20, "must be a whole number from 0 to 20"),
        (lambda n: f"[interval]\nmost_share = {n}", 1, "must be a number above 0, at most 1"),
    ],
)
def test_a_limit_is_allowed_and_more_is_refused(section, most, complaint):
    """Longer or more is a slip of the pen."""
    assert parse_policy(section(most), name="night").name == "night"
    assert complaint in refusal(section(most + 1))


@pytest.mark.parametrize("value", ["-1", "1.5", '"3"', "true", "[3]", "{}"])
def test_a_count_is_a_whole_number(value):
    message = refusal(f"[retries]\nhang = {value}")
    assert "policy 'night': field 'retries.hang' is" in message
    assert "must be a whole number from 0 to 1,000,000" in message


def test_a_choice_lists_what_it_may_be():
    modes = "act, approve, observe, pause"
    assert refusal('mode = "dry-run"') == f"policy 'night': field 'mode' is 'dry-run'; it must be one of {modes}"
    assert "field 'on_max_runtime' is 1; it must be one of stop, relaunch" in refusal("on_max_runtime = 1")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("mod = 'act'", "unknown field 'mod'; did you mean 'mode'?"),
        ("[retrys]\noom = 1", "unknown field 'retrys'; did you mean 'retries'?"),
        ("[retries]\nuser-code = 1", "unknown field 'retries.user-code'; did you mean 'user_code'?"),
        ("[limits]\nstart_window = '5m'", "unknown field 'limits.start_window'; did you mean 'starts_window'?"),
        ("[backoff]\nzzz = 1", "unknown field 'backoff.zzz'; the fields here are base, cap"),
    ],
)
def test_an_unknown_field_is_answered_with_a_known_one(text, hint):
    assert refusal(text) == f"policy 'night': {hint}"


def test_planned_changes_are_read_and_written_back():
    text = '[detection]\nplanned = [{step = 2000000, what = "say \\"8k\\" 🚀\\u007fé"}, {step = 5}]'
    policy = parse_policy(text, name="p")
    assert policy.detection.planned == (PlannedChange(2_000_000, 'say "8k" 🚀\x7fé'), PlannedChange(5))
    assert parse_policy(to_toml(policy), name="p") == policy


PLANNED = ("step = 0", "step = 1_000_000_000_000", "step = true", 'step = 5, why = "x"', "step = 5, what = 3")


@pytest.mark.parametrize("value", ["5", "[5]", "[{}]", *(f"[{{{change}}}]" for change in PLANNED)])
def test_an_invalid_planned_change_is_refused(value):
    with pytest.raises(PolicyError, match=r"'detection\.planned' is .*; it must be a list of at most 20 changes"):
        parse_policy(f"[detection]\nplanned = {value}", name="p")


def test_a_section_is_a_table():
    assert refusal("retries = 3") == "policy 'night': field 'retries' must be a table, written [retries]"


@pytest.mark.parametrize("text", ["mode = ", f"priority = {'9' * 5000}", f"mode = 0x{'f' * 4000}"], ids=len)
def test_invalid_toml_is_refused_with_its_line(text):
    """A number that Python cannot write in decimal digits is as invalid."""
    assert refusal(text).startswith("policy 'night' is not valid TOML: ")


def test_the_name_comes_from_outside():
    """A policy's name is its file's: a second one inside could only disagree."""
    assert refusal('name = "day"') == "policy 'night': field 'name' is taken from the file's name; remove it"
    for name in ("", "-night", "night/shift", "n" * 64, "nächte"):
        assert "the name must be 1-63 letters, digits" in refusal("", name=name)


@given(policies)
def test_a_policy_survives_its_own_text(policy):
    assert parse_policy(to_toml(policy), name="any") == policy


def test_a_policy_on_a_faster_clock_differs_in_durations_alone():
    """`scaled` divides every duration and leaves every count."""
    fast = Policy().scaled(60)
    assert fast.save.deadline == timedelta(seconds=15)
    assert fast.limits.starts_window == timedelta(seconds=30)
    assert fast.capacity.wait == timedelta(minutes=12)
    assert (fast.backoff.base, fast.backoff.cap) == (timedelta(seconds=0.5), timedelta(seconds=15))
    retries = replace(Policy().retries, window=timedelta(minutes=24))
    assert (fast.retries, fast.limits.attempts, fast.mode) == (retries, Policy().limits.attempts, Mode.ACT)


@given(policies, st.floats(1, 10_000))
def test_a_scaled_policy_can_be_deployed(policy, factor):
    scaled = policy.scaled(factor)
    assert parse_policy(to_toml(scaled), name="any") == scaled


def test_a_threshold_of_zero_is_refused():
    """Every healthy run would exceed it at once; where 0 is the default it stays allowed."""
    assert "field 'detection.stall_floor' is 0; it must be above 0" in refusal('[detection]\nstall_floor = "0s"')
    assert parse_policy('[detection]\nthroughput_floor = "0s"', name="night").detection == Thresholds()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prices = 3", "field 'prices' must be a table, written [prices]"),
        ('[prices]\n"p5.48xlarge" = 3', "field 'prices' names 'p5.48xlarge'; it must be an instance type"),
        ("[interval]\nmost_share = 0", "field 'interval.most_share' is 0.0; it must be a number above 0"),
        (f'[save]\ndeadline = "{"9" * 400}d"', "it must be a duration"),
        ('[prices]\n"ml.p5.48xlarge" = true', "field 'prices.ml.p5.48xlarge' is True; it must be a number"),
        ('[prices]\n"ml.p5.48xlarge" = "dear"', "field 'prices.ml.p5.48xlarge' is 'dear'; it must be a number"),
        ("causes = 3", "field 'causes' must be a table, written [causes]"),
        ('[causes]\n"err " = "data"', "field 'causes' names 'err '; it must be a text of 4 to 100 characters"),
        ('[causes]\n"lost fabric" = "diverged"', "the cause 'diverged'; it must be one of infrastructure, hardware"),
        ('[causes]\n"lost fabric" = ["data"]', "the cause ['data']; it must be one of"),
    ],
)
def test_a_refusal_names_what_is_wrong(text, complaint):
    assert complaint in refusal(text)


def test_a_policy_may_set_prices_and_name_causes():
    text = """prices = {"ml.p5.48xlarge" = 40, "ml.p6-b200.48xlarge" = 99.5}
[causes]
"fabric 'A' \\"lost\\"" = "hardware"
"exit code: 42" = "infrastructure"
"""
    policy = parse_policy(text, name="night")
    assert policy.prices == {"ml.p5.48xlarge": 40.0, "ml.p6-b200.48xlarge": 99.5}
    assert policy.causes == {"fabric 'A' \"lost\"": Cause.HARDWARE, "exit code: 42": Cause.INFRASTRUCTURE}
    assert parse_policy(to_toml(policy), name="night") == policy


def test_each_cause_but_two_has_a_budget():
    """What cannot be named is bounded by progress, and capacity by time: neither has a count of its own."""
    assert {cause for cause in Cause if Policy().retries.of(cause) is None} == {Cause.UNKNOWN, Cause.CAPACITY}
    budgets = {cause: number for number, cause in enumerate(Cause) if cause not in (Cause.UNKNOWN, Cause.CAPACITY)}
    assert {cause: Retries(**budgets).of(cause) for cause in budgets} == budgets


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_policy_is_read(path):
    assert parse_policy(path.read_text(), name=path.stem).name == path.stem


def test_the_default_file_documents_the_truth():
    """default.toml says every field there is, and says of each what the code does without it."""
    text = next(path for path in SHIPPED if path.name == "default.toml").read_text()
    read, built_in = parse_policy(text, name="default"), Policy()
    for field in fields(Policy):
        assert getattr(read, field.name) == getattr(built_in, field.name), field.name
    said = {line.split("=")[0].strip() for line in text.splitlines() if "=" in line and not line.startswith("#")}
    said |= {line.split("]")[0].strip("[") for line in text.splitlines() if line.startswith("[")}
    missing = {name for name in leaves(Policy()) if name != "name"} - said
    assert not missing


def leaves(value) -> set[str]:
    names: set[str] = set()
    for field in fields(value):
        inner = getattr(value, field.name)
        names |= leaves(inner) if is_dataclass(inner) else {field.name}
    return names


def test_the_observing_policy_only_watches():
    """observe.toml differs from the default in its mode alone."""
    text = next(path for path in SHIPPED if path.name == "observe.toml").read_text()
    assert parse_policy(text, name="default") == replace(Policy(), mode=Mode.OBSERVE)
