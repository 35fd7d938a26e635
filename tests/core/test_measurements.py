"""Test the times measured in an account: they are read with bounds and used in estimates only."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rerail.accounting.costs import estimate_relaunch_dollars, estimate_start_up
from rerail.accounting.save_interval import advise_interval, format_advice
from rerail.decisions.approvals import propose_launch
from rerail.model.checkpoints import Checkpoint
from rerail.model.measurements import BOUNDS, BadMeasurements, Measurements, parse_measurements, with_measurements
from rerail.model.policy import Advice, Mode, Policy
from rerail.model.run import Attempt, JobStatus, Run, RunState

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
GOOD: dict[str, Any] = {
    "schema": 1,
    "kind": "rerail acceptance",
    "region": "eu-west-1",
    "clock_scale": 1,
    "made_at": "2026-11-23T12:00:00+00:00",
    "measurements": {"startup_s": {"median": 400.0}, "upload_s": {"median": 45.0}, "stop_s": None},
}
MEASURED = Measurements("eu-west-1", NOON, {"startup_s": 400.0, "upload_s": 45.0})
SOURCE = "measured by `rerail acceptance` in eu-west-1 on 2026-11-23"


def a_run(**attempt: Any) -> Run:
    failed = Attempt(1, "gpt", JobStatus.FAILED, instance_type="ml.m5.large", **attempt)
    return Run("gpt", "default", RunState.WAITING, NOON, (failed, Attempt(2, "gpt-a002")))


def test_what_acceptance_writes_is_read():
    assert parse_measurements(json.dumps(GOOD)) == MEASURED


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "other"}, "kind"),
        ({"schema": 2}, "schema"),
        ({"clock_scale": 60}, "clock_scale"),
        ({"region": ""}, "region"),
        ({"region": "a\x1b"}, "region"),
        ({"made_at": "yesterday"}, "made_at"),
        ({"made_at": "2026-11-23T12:00:00"}, "made_at"),
        ({"measurements": []}, "measurements"),
        *[
            ({"measurements": {name: {"median": value}}}, f"measurements.{name}.median")
            for name, (least, most) in BOUNDS.items()
            for value in (least - 0.1, most + 1, float("nan"), float("inf"), "5", True, None)
        ],
    ],
)
def test_a_wrong_file_is_refused_and_the_field_is_named(change: dict[str, Any], named: str):
    with pytest.raises(BadMeasurements, match=f"field '{named}'.*acceptance.json"):
        parse_measurements(json.dumps(GOOD | change))


NO_JSON, NO_TABLE = "the text is not valid JSON", "field 'kind' is not "


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", NO_JSON), ("[" * 100_000, NO_JSON), ("null", NO_TABLE), ('"x"', NO_TABLE), ("{", NO_JSON)],
)
def test_a_text_that_is_no_acceptance_is_refused(text: str, problem: str):
    with pytest.raises(BadMeasurements, match=f"^{problem}"):
        parse_measurements(text)


def test_the_cost_of_a_relaunch_uses_the_run_then_the_measurement_then_the_assumption():
    """What is assumed, what was measured, and what the run itself has shown; each says so."""
    assumed, measured = Policy(), with_measurements(Policy(), MEASURED)
    own = a_run(created_at=NOON, training_started_at=NOON + timedelta(seconds=90))
    found = [
        estimate_start_up(run, policy) for run, policy in ((a_run(), assumed), (a_run(), measured), (own, measured))
    ]
    assert [(start.duration.total_seconds(), start.source) for start in found] == [
        (300, "assumed"),
        (400, SOURCE),
        (90, "measured in this run"),
    ]
    assert estimate_relaunch_dollars(a_run(), measured) == pytest.approx(400 / 3600 * 0.115)


def test_the_interval_is_no_shorter_than_a_measured_upload():
    stalls = [Checkpoint(f"s3://b/step-{n}/", n, 1, NOON, stall_s=0.00001) for n in range(3)]
    run = replace(a_run(), state=RunState.WATCHING)
    measured = with_measurements(Policy(), MEASURED)
    advice = advise_interval(run, stalls, measured, at=NOON)
    assert advice and advice.interval_s == 45 and f"45 s of it for the upload to S3 ({SOURCE})" in format_advice(advice)
    without = advise_interval(run, stalls, Policy(), at=NOON)
    assert without and not without.bound


def test_what_a_policy_assumes_itself_stays():
    own = replace(Policy(), advice=Advice(startup=timedelta(minutes=20)))
    assert with_measurements(own, MEASURED) == own
    assert with_measurements(Policy(), replace(MEASURED, seconds={"stop_s": 3.0})) == Policy()


@pytest.mark.parametrize("median", BOUNDS["startup_s"])
def test_a_measurement_changes_the_words_of_a_proposal_and_nothing_else(median: float):
    """The same action waits for the same approval, at whatever value within the bounds."""
    policy = replace(Policy(), mode=Mode.APPROVE)
    extreme = with_measurements(policy, replace(MEASURED, seconds={"startup_s": median, "upload_s": 3600.0}))
    plain, other = (propose_launch(a_run(), "it failed", "", at=NOON, policy=used) for used in (policy, extreme))
    assert plain.run.proposal and other.run.proposal
    assert plain.run.proposal.dollars != other.run.proposal.dollars
    words = {"dollars": None, "dollars_source": ""}
    without = [replace(d.run, proposal=replace(d.run.proposal, **words), pages=()) for d in (plain, other)]
    assert without[0] == without[1]
    assert [type(action) for action in plain.actions] == [type(action) for action in other.actions]
