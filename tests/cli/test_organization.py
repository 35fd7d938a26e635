"""`rerail status --organization`: the newest event of each run, in any order, of the account that has sent it."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws
from typer.testing import CliRunner

from cli import organization, place
from cli.main import app
from cli.organization import MemberRun, find_newest, read_event
from rerail.aws.clients import client
from rerail.model.run import RunState
from rerail.model.run_event import RunEvent, format_run_event

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
GROUP = "/aws/events/rerail-organization"
EVENT = RunEvent(
    "i", "gpt", 3, NOON, "watching", "held", False, "the budget is spent", "default", 2, "gpt-a002", "gpt", 2, 120,
    42.5, "", "",
)  # fmt: skip


def make_text(event: RunEvent = EVENT, *, account: str = "111122223333", **more: Any) -> str:
    """Return the event as EventBridge logs it."""
    envelope = {"source": "rerail", "detail-type": "Rerail Run State Change", "account": account, "region": "eu-west-1"}
    return json.dumps(envelope | {"detail": format_run_event(event)} | more)


def test_a_logged_event_is_read():
    run = read_event(make_text())
    assert run is not None and run.key == ("111122223333", "eu-west-1", "gpt")
    assert (run.state, run.step, run.dollars, run.attempts) == ("held", 120, 42.5, 2)
    assert run.todo == "in 111122223333, eu-west-1: `rerail show gpt`, fix the cause, `rerail release gpt`"


def test_an_event_is_of_the_account_that_has_sent_it():
    """A detail that claims another account changes nothing."""
    detail = {**format_run_event(EVENT), "account": "999999999999", "region": "us-east-1"}
    run = read_event(make_text(detail=detail))
    assert run is not None and run.key[:2] == ("111122223333", "eu-west-1")


def test_an_event_of_an_earlier_version_has_no_step():
    detail = {name: value for name, value in format_run_event(EVENT).items() if name != "step"}
    assert (run := read_event(make_text(detail=detail))) is not None and run.step is None


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": "3"},
        {"sequence": True},
        {"dollars": float("nan")},
        {"attempts": -1},
        {"state": "lost"},
        {"at": "yesterday"},
        {"run": ""},
        {"run": "gpt; rm -rf /"},
        {"run": ["gpt"]},
    ],
)
def test_a_malformed_event_is_not_read(change):
    assert read_event(make_text(detail={**format_run_event(EVENT), **change})) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 5000, make_text(source="aws.sagemaker"), make_text(detail=3)])
def test_what_is_no_run_event_is_not_read(text):
    assert read_event(text) is None


def test_control_characters_of_a_member_do_not_reach_the_terminal():
    run = read_event(make_text(replace(EVENT, reason="fine\n\x1b]0;title\x07")))
    assert run is not None and run.reason.isprintable()


RUNS = st.builds(
    MemberRun,
    account=st.sampled_from(["1", "2"]),
    region=st.sampled_from(["eu-west-1", "us-east-1"]),
    run=st.sampled_from(["a", "b"]),
    sequence=st.integers(1, 5),
    at=st.just(NOON.isoformat()),
    state=st.just("watching"),
    reason=st.just(""),
    attempts=st.just(1),
)


@given(st.lists(RUNS, max_size=12), st.randoms())
def test_order_and_repetition_of_events_change_nothing(runs, random):
    """The newest of each run by its sequence is kept, and no run is lost or joined with another account's."""
    newest = find_newest(runs)
    assert {key: run.sequence for key, run in newest.items()} == {
        key: max(run.sequence for run in runs if run.key == key) for key in {run.key for run in runs}
    }
    shuffled = [*runs, *runs]
    random.shuffle(shuffled)
    assert find_newest(shuffled) == newest
    assert find_newest(newest.values()) == newest


@pytest.fixture
def hub(monkeypatch):
    """A hub whose rule logs what is put on its bus, and whose stack names the log group."""
    with mock_aws():
        place.forget_clients()
        resources = {"Group": {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": GROUP}}}
        template = {"Resources": resources, "Outputs": {"RunEventsLogGroup": {"Value": {"Ref": "Group"}}}}
        client("cloudformation").create_stack(StackName="RerailOrganization", TemplateBody=json.dumps(template))
        yield client("logs")
    place.forget_clients()


def log(logs: Any, *texts: str, at: datetime | None = None) -> None:
    name = f"s{len(logs.describe_log_streams(logGroupName=GROUP)['logStreams'])}"
    logs.create_log_stream(logGroupName=GROUP, logStreamName=name)
    moment = int((at or datetime.now(UTC)).timestamp() * 1000)
    events = [{"timestamp": moment, "message": text} for text in texts]
    logs.put_log_events(logGroupName=GROUP, logStreamName=name, logEvents=events)


def test_the_command_lists_the_runs_of_all_accounts(hub):
    """Those that wait for a person come first, with what to do and where."""
    watching = replace(EVENT, state="watching", sequence=4)
    log(hub, make_text(replace(EVENT, sequence=9), account="222233334444"), make_text(watching), make_text(EVENT), "{")
    log(hub, make_text(replace(EVENT, run="old")), at=datetime.now(UTC) - timedelta(days=40))
    done = CliRunner().invoke(app, ["status", "--organization"], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    head, first, second, *rest = done.output.splitlines()
    assert head.split() == ["account", "region", "run", "state", "step", "attempts", "cost", "since"]
    assert first.split()[:7] == ["222233334444", "eu-west-1", "gpt", "held", "120", "2", "$42.50"]
    assert second.split()[:4] == ["111122223333", "eu-west-1", "gpt", "watching"]
    assert "rerail release gpt" in " ".join(rest) and "1 events are not of this version" in done.output
    assert "old" not in done.output
    plain = json.loads(CliRunner().invoke(app, ["status", "--organization", "--json"]).output)
    assert [(run["account"], run["state"]) for run in plain["runs"]] == [
        ("222233334444", RunState.HELD),
        ("111122223333", RunState.WATCHING),
    ]


def test_a_new_run_of_an_old_name_is_shown(hub):
    log(hub, make_text(), make_text(replace(EVENT, sequence=1, state="watching", at=NOON + timedelta(days=1))))
    runs = json.loads(CliRunner().invoke(app, ["status", "--organization", "--json"]).output)["runs"]
    assert [run["state"] for run in runs] == ["watching"]


def test_the_newest_events_of_members_are_read_to_a_limit(hub, monkeypatch):
    monkeypatch.setattr(organization, "MOST_EVENTS", 3)
    old = [make_text(replace(EVENT, run=f"old-{number}")) for number in range(9)]
    log(hub, *old, at=datetime.now(UTC) - timedelta(days=8))
    log(hub, make_text())
    done = CliRunner().invoke(app, ["status", "--organization"])
    assert " gpt " in done.output and "old-1" in done.output and "old-3" not in done.output
    assert "more than 3 events" in done.output


def test_a_hub_without_the_view_is_one_clear_error(hub):
    client("cloudformation").delete_stack(StackName="RerailOrganization")
    done = CliRunner().invoke(app, ["status", "--organization"])
    assert done.exit_code == 2 and "use the credentials of the hub" in done.output
    template = {"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}}
    client("cloudformation").create_stack(StackName="RerailOrganization", TemplateBody=json.dumps(template))
    done = CliRunner().invoke(app, ["status", "--organization"])
    assert done.exit_code == 2 and '"organizationView": true' in done.output


def test_options_that_choose_among_one_accounts_runs_are_refused(hub):
    done = CliRunner().invoke(app, ["status", "--organization", "--watch"])
    assert done.exit_code == 2 and "takes --json alone" in done.output
