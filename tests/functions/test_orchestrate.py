"""The waits for runs: what the function does with each message of its queue."""

import json

import pytest

import orchestrate
from stacks.parts.orchestration import CHECK
from tests.core.test_orchestration import WAIT, Waiting
from tests.functions.account import Context


@pytest.mark.threat("T36")
def test_a_message_without_a_token_is_dropped_and_logged(logged, monkeypatch):
    """No answer is possible. As a dead letter it would page on-call, and all pipelines' roles can send one."""
    waiting = Waiting()
    waiting.waits.keep(WAIT)
    monkeypatch.setattr(orchestrate, "make_orchestrator", lambda: waiting.orchestrator)
    bodies = ["{", "[]", "{}", '{"token": 7}', '{"token": ""}', f'{{"token": "{"x" * 2049}"}}', CHECK]
    orchestrate.handler({"Records": [{"body": body} for body in bodies]}, Context("orchestrate"))
    dropped = [line["why"] for line in logged() if line.get("message") == "dropped"]
    assert len(dropped) == 7 and all("token" in why or "JSON" in why for why in dropped)
    assert waiting.callers.heartbeats == [], "a message in the queue starts no check"
    orchestrate.handler(json.loads(CHECK), Context("orchestrate"))
    assert waiting.callers.heartbeats == ["token"]
