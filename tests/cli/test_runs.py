"""`rerail status` and `rerail show`: what a run waits for, what it has cost, and how often it would best save."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from moto import mock_aws
from typer.testing import CliRunner

from cli import place
from cli.main import app
from cli.place import Place
from rerail.aws.clients import client
from rerail.model.causes import Cause
from rerail.model.run import Attempt, Incident, JobStatus, LaunchCheck, Proposal, ProposedAction, Run, RunState
from tests.aws.places import TABLE, make_bucket, make_table

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
OUTPUTS = {"TableName": TABLE, "PolicyPrefix": "/rerail/policies"}
HOURS = timedelta(hours=1)
MACHINES = {"instance_type": "ml.p5.48xlarge", "instance_count": 2}
TRAINED = Attempt(1, "gpt", JobStatus.FAILED, training_started_at=NOW - 10 * HOURS, ended_at=NOW, **MACHINES)
ATTEMPTS = (TRAINED, Attempt(2, "gpt-a002"))
RUN = Run("gpt", "default", RunState.WAITING, NOW, ATTEMPTS, checkpoint_uri="s3://bucket/gpt/", max_runtime_s=86400)
ASKED = Proposal(
    "p7", ProposedAction.LAUNCH, 2, "create gpt-a002 from step 500", "it died", NOW, NOW + HOURS, dollars=10.55
)
PRICED = replace(ASKED, dollars_source="a start of 5 min, assumed")


@pytest.fixture
def deployed(monkeypatch):
    """A deployment with a policy that caps the run's cost, and a bucket."""
    with mock_aws():
        make_table(client("dynamodb"))
        text = "[limits]\nrun_dollars = 2000"
        client("ssm").put_parameter(Name="/rerail/policies/default", Value=text, Type="String")
        make_bucket("bucket")
        monkeypatch.setattr(place, "find", lambda *, local: Place("stack Rerail", OUTPUTS))
        yield


def shown(run: Run, *words: str) -> str:
    Place("", OUTPUTS).runs.save(replace(run, version=run.version + 1), None, {})
    answer = CliRunner().invoke(app, list(words) or ["show", run.id], env={"COLUMNS": "200"})
    assert answer.exit_code == 0, answer.output
    return " ".join(answer.output.split())


def test_a_proposal_is_shown_with_its_price_and_both_answers(deployed):
    """Whoever is paged reads here what is asked."""
    said = shown(replace(RUN, proposal=ASKED, blocked_by=LaunchCheck.APPROVAL))
    assert "p7 waits for approval: create gpt-a002 from step 500, for about $10.55, until 2026-01-31 13:00:00" in said
    priced = shown(replace(RUN, proposal=PRICED, blocked_by=LaunchCheck.APPROVAL, version=1))
    assert "for about $10.55 (a start of 5 min, assumed), until" in priced
    assert "answer with: `rerail approve gpt --proposal p7` or `rerail deny gpt --proposal p7`" in said


def test_what_it_has_cost_and_may_still_cost_is_shown(deployed):
    """Ten hours on two machines at $63.296 an hour; ten of the 24 hours that the job was given."""
    said = shown(RUN)
    assert "step: - (attempt 2 has reported none yet)" in said
    assert "step: - (its jobs define no metric named step)" in shown(replace(RUN, defined_metrics=("loss",), version=1))
    assert "cost so far: $1,266 of at most $2,000" in said
    assert "left of its MaxRuntimeInSeconds: 14.0 h" in said


def test_a_release_forgives_no_cost_that_is_shown(deployed):
    """The whole cost, as in `rerail status`; the cap counts since the release."""
    said = shown(replace(RUN, ledger=replace(RUN.ledger, forgiven=1)))
    assert "cost so far: $1,266, $0.00 since its release of at most $2,000" in said


def test_machines_without_a_price_are_named(deployed):
    said = shown(replace(RUN, attempts=(replace(TRAINED, instance_type="ml.x9.huge"), RUN.attempts[1])))
    assert "cost so far: not known, the policy has no price for ml.x9.huge" in said


def test_the_best_interval_is_shown_where_saves_are_measured(deployed):
    """From the manifests as they lie in S3."""
    for step in (100, 200, 300):
        at = NOW - 9 * HOURS + step * timedelta(seconds=1)
        manifest = {
            "schema": 1,
            "step": step,
            "attempt": 1,
            "saved_at": f"{at:%Y-%m-%dT%H:%M:%SZ}",
            "reason": "periodic",
            "stall_s": 5.0,
            "files": [{"name": "a", "bytes": 1}],
        }
        for name, body in (("a", b"1"), ("manifest.json", json.dumps(manifest).encode())):
            client("s3").put_object(Bucket="bucket", Key=f"gpt/step-{step:09d}/{name}", Body=body)
    assert "saving: the run saves every 2 min; every " in (said := shown(RUN))
    assert "a checkpoint costs 5 s, a failure occurs every" in said
    assert "saving:" not in shown(replace(RUN, version=1), "status")
    assert "gpt: saving: the run saves every 2 min; every " in shown(replace(RUN, version=2), "status", "--advice")


def test_status_shows_what_each_run_waits_for(deployed):
    """At a glance: for whose word, or for which check."""
    assert "waiting for approval" in shown(replace(RUN, proposal=ASKED, blocked_by=LaunchCheck.APPROVAL), "status")
    other = replace(RUN, id="bert", attempts=(replace(TRAINED, job_name="bert"),), blocked_by=LaunchCheck.PAUSE)
    assert "waiting (paused)" in shown(other, "status")


DECIDED, ENDED, DONE = NOW + timedelta(seconds=40), NOW + timedelta(minutes=11), ("release_warm_pool", "relaunch")
FAILED = Incident(1, "job_failed", 1, Cause.HARDWARE, "attempt 1 failed: hardware", "Xid 79", NOW, DECIDED, 1200, 1000)
RECOVERED = replace(FAILED, actions=DONE, closed_at=ENDED, recovered=True, resolution="recovered")


def test_an_incident_is_shown_with_its_times_and_cost(deployed):
    """With the date, since it was not today; and the time by what it was spent on."""
    said = shown(replace(RUN, incidents=(RECOVERED,)))
    assert "1 2026-01-31 12:00:00 job_failed: hardware, recovered decided after 40 s, recovered after 11 min" in said
    assert "200 lost steps" in said and "release_warm_pool, relaunch" in said and "all times are UTC" in said
    assert "where the time went" in said and "goodput" in said and "backoff" in said


def test_who_is_held_reads_what_to_do_and_what_to_type_first(deployed):
    """Words from a job are text, and no markup."""
    reason = "attempt 1 failed: oom ([bold]CUDA[/bold]). To do: use a smaller batch, then release the run"
    said = shown(replace(RUN, state=RunState.HELD, hold_reason=reason, attempts=(TRAINED,)))
    assert "Held: waiting for an operator" in said and "rerail release gpt" in said
    assert "([bold]CUDA[/bold])" in said


def test_80_columns_show_the_exception_of_each_attempt(deployed, monkeypatch):
    """One line of evidence instead of SageMaker's reason with its metric lines; nothing is wider than the terminal."""
    metrics = "\n".join(f"iter {step}: loss 2.{step}" for step in range(15))
    text = f'AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage "{metrics}\nKeyError: 40"'
    first = replace(TRAINED, failure_reason=text, cause=Cause.USER_CODE, last_step=40)
    second = replace(first, number=2, job_name="gpt-a002", resumed_from_step=30)
    shown(replace(RUN, state=RunState.HELD, attempts=(first, second)))
    printed = CliRunner().invoke(app, ["show", "gpt"], env={"COLUMNS": "80"}).output
    assert max(map(len, printed.splitlines())) <= 80
    lines = [line.strip() for line in printed.splitlines()]
    number = lines.index("2  gpt-a002  Failed (user_code), from step 30 to step 40")
    assert lines.count("KeyError: 40") == 2 and lines[number + 1] == "KeyError: 40"
    assert "iter" not in printed


def test_local_commands_can_be_pasted(deployed, monkeypatch):
    """They name the local AWS, and none stands twice."""
    monkeypatch.setattr(place, "find", lambda *, local: Place("here", OUTPUTS, is_local=True))
    advice = "use a smaller batch, then release the run"
    said = shown(replace(RUN, state=RunState.HELD, hold_advice=advice, attempts=(TRAINED,)))
    assert said.count("rerail release gpt") == said.count("rerail release gpt --local") == 1
    assert "rerail release bert --local" in shown(
        replace(RUN, id="bert", state=RunState.HELD, hold_advice=advice, attempts=(TRAINED,)), "status"
    )
    advice = "fix it, and `rerail submit SCRIPT --continue gpt`"
    for version, words in enumerate((("show", "gpt"), ("status",)), start=1):
        held = replace(RUN, state=RunState.HELD, hold_advice=advice, attempts=(TRAINED,), version=version)
        said = shown(held, *words, "--json")
        assert said.count("rerail submit") == said.count("--continue gpt --local`") > 0


def test_a_runbook_is_printed_without_a_deployment():
    """In the terminal, at its width; a wrong name lists the right ones."""
    printed = CliRunner().invoke(app, ["runbook", "same-error"], env={"COLUMNS": "80"}).output
    assert "Mitigation" in printed and max(map(len, printed.splitlines())) <= 80
    wrong = CliRunner().invoke(app, ["runbook", "../index"])
    assert wrong.exit_code == 2 and "give one of out-of-memory" in " ".join(wrong.stderr.split())


def test_a_drill_is_marked_as_one(deployed):
    second = replace(RUN.attempts[1], resumed_from_step=500, drill=True)
    assert "from step 500 (drill)" in shown(replace(RUN, attempts=(TRAINED, second)))


def test_json_has_all_of_it(deployed):
    """The record and the timeline as they are, and what they come to in seconds and dollars."""
    Place("", OUTPUTS).runs.save(replace(RUN, incidents=(RECOVERED,), version=1), None, {})
    printed = json.loads(CliRunner().invoke(app, ["show", "gpt", "--json"]).stdout)
    (incident,) = printed["incidents"]
    assert (incident["mttd_s"], incident["mttr_s"], incident["lost_steps"]) == (40.0, 660.0, 200)
    assert printed["account"]["mttr_s"] == 660.0 and printed["account"]["badput_s"]["backoff"] > 0
    assert printed["account"]["dollars"] == pytest.approx(1265.92)
    assert printed["run"]["id"] == "gpt" and printed["budgets"]["hardware"] == 10
    assert printed["headline"] == "Waiting to launch attempt 2"
