"""A healthy job under hostile messages: what may stop it does, what may not does not, and nothing is lost."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bad_input.targets import healthy
from tests.bad_input.targets.healthy import FILED, Unwell, batch
from tests.core.strategies import json_values
from tests.examples import count_examples

MAIL = {"schema": 1, "type": "Report", "id": "r1", "run": "gpt", "attempt": 1, "job": "gpt"}
MAIL["at"] = "2026-01-31T00:52:00+00:00"
GRAVE = {"type": "Finding", "kind": "non_finite", "level": "intervene", "step": 501, "onset_step": 501}
GRAVE |= {"evidence": "NaN", "at": MAIL["at"], "onset_at": MAIL["at"]}


def operator(verb: str, **more: object) -> dict:
    detail = {"run": "gpt", "verb": verb, "who": "ada", "why": "so", **more}
    return {"messages": [{"source": "rerail.operator", "id": "c1", "detail": detail}]}


ALLOWED = {
    "an operator's stop": operator("stop"),
    "an operator's rollback": operator("rollback", step=300),
    "the agent's finding": {"messages": [FILED], "report": {**MAIL, "kind": "findings", "findings": [GRAVE]}},
    "the sweep's finding": {
        "messages": [{"source": "rerail.sweep", "detail": {"run": "gpt", "job": "gpt", "findings": [GRAVE]}}]
    },
}
FOREIGN = {
    "of another run": {**MAIL, "run": "bert"},
    "of another job": {**MAIL, "job": "bert"},
    "of an older attempt": {**MAIL, "attempt": 0},
    "of another name": {**MAIL, "id": "r2"},
    "of a later schema": {**MAIL, "schema": 2},
    "of another type": {**MAIL, "type": "Command"},
}


@pytest.mark.parametrize("given_", ALLOWED.values(), ids=ALLOWED)
def test_the_measure_can_fail(given_, monkeypatch):
    """What an operator, the sweep or the job's own agent says does stop it: were that forbidden, it would be seen."""
    batch(json.dumps(given_).encode())
    monkeypatch.setattr(healthy, "_is_authorised", lambda body, world: False)
    with pytest.raises(Unwell, match="the healthy"):
        batch(json.dumps(given_).encode())


@pytest.mark.parametrize("report", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("kind", ["findings", "crashed"])
def test_a_grave_report_of_anybody_else_stops_nothing(report, kind, monkeypatch):
    """It is refused, or passed over; the word of a stranger is no authority here."""
    monkeypatch.setattr(healthy, "_is_authorised", lambda body, world: False)
    grave = {**report, "kind": kind, "findings": [GRAVE], "evidence": "RuntimeError: CUDA error"}
    batch(json.dumps({"messages": [FILED], "report": grave}).encode())


@given(st.lists(st.one_of(json_values, st.text(max_size=40)), max_size=5), json_values, json_values)
@settings(max_examples=count_examples(60), deadline=None, derandomize=True, database=None)
def test_unreadable_input_stops_nothing(messages, report, heartbeat):
    """Any JSON and any text, on the queue and in the mailbox: each message is handled or goes back with a line in the
    log, and the good one behind them is handled."""
    batch(json.dumps({"messages": [*messages, FILED], "report": report, "heartbeat": heartbeat}).encode())


def test_what_goes_back_leaves_its_line_in_the_log():
    """Three bad messages, three lines that say why."""
    bad = ["{", {"source": "nobody", "detail": {}}, {"source": "aws.sagemaker", "detail": {"TrainingJobName": 7}}]
    world = healthy.deepcopy(healthy._world())
    failed, lines = healthy._supervised(world, [body if isinstance(body, str) else json.dumps(body) for body in bad])
    assert failed == {"0", "1", "2"} and lines == 3
