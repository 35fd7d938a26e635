"""`rerail status`: who needs somebody comes first, every terminal has room for it, a thousand runs are no trouble."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from moto import mock_aws
from rich.console import Console
from typer.testing import CliRunner

from cli import fleet, place
from cli.fleet import FleetReader
from cli.main import app
from cli.place import Place
from cli.status import format_age, make_picture
from rerail.aws.clients import client
from rerail.aws.detector_states import DynamoDetections
from rerail.aws.dynamodb import _run_item
from rerail.detection.detectors import DetectorState
from rerail.detection.evaluate import RunDetection
from rerail.incident_report.fleet import FleetRow, FleetStatus, find_state_start
from rerail.model.causes import Cause
from rerail.model.checkpoints import Health
from rerail.model.errors import StateUnknown
from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness, Phase
from rerail.model.mailbox import Heartbeat, make_heartbeat_key, serialize
from rerail.model.metrics import Cursor
from rerail.model.policy import Mode, Policy
from rerail.model.run import (
    AfterStop,
    Attempt,
    HealthLabel,
    Incident,
    InPlaceRestart,
    JobStatus,
    LaunchCheck,
    PlannedStop,
    Proposal,
    ProposedAction,
    Run,
    RunState,
)
from rerail.model.signatures import sign
from tests.aws.places import TABLE, make_bucket, make_table
from tests.fakes import KEY
from tests.timing import cpu_seconds

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
OUTPUTS = {
    "TableName": TABLE,
    "PolicyPrefix": "/rerail/policies",
    "PauseParameter": "/rerail/switch",
    "MailboxBucket": "mailbox",
}
REASON = "attempt 2 failed: oom; held: oom is not retried"
ADVICE = "use a smaller batch, then release the run"


@pytest.fixture
def where(monkeypatch):
    """A deployment at noon."""
    with mock_aws():
        make_table(client("dynamodb"))
        client("ssm").put_parameter(Name="/rerail/switch", Value="on", Type="String")
        client("ssm").put_parameter(Name="/rerail/policies/default", Value="mode = 'act'", Type="String")
        make_bucket("mailbox")
        found = Place("stack Rerail in eu-west-1", OUTPUTS)
        monkeypatch.setattr(place, "find", lambda *, local: found)
        monkeypatch.setattr(place, "now", lambda: NOW)
        yield found


def a_run(name: str, state: RunState, *, began: datetime = NOW - 10 * HOUR, **facts) -> Run:
    """A run in its second attempt, which trains where the state says so."""
    trains = state in (RunState.WATCHING, RunState.SAVING, RunState.STOPPING)
    ended = NOW - HOUR if state.is_end else None
    status = JobStatus.IN_PROGRESS if trains else JobStatus.COMPLETED if state.is_end else None
    started, machine = began + HOUR if status else None, "ml.p5.48xlarge"
    first = Attempt(1, name, JobStatus.FAILED, "", began, began, ended_at=began + HOUR, instance_type=machine)
    second = Attempt(2, f"{name}-a002", status, "Training" if trains else "", started, started, resumed_from_step=900)
    second = replace(second, ended_at=ended, instance_type=machine)
    return Run(name, "default", state, began, (first, second), **facts)


def keep(where: Place, *runs: Run) -> None:
    for run in runs:
        where.runs.save(replace(run, version=1), None, {})


def held(name: str) -> Run:
    incident = Incident(
        1, "job_failed", 2, Cause.OOM, "x", "x", NOW - 2 * HOUR, NOW - HOUR, closed_at=NOW - HOUR, resolution="held"
    )
    return a_run(name, RunState.HELD, hold_reason=REASON, hold_advice=ADVICE, incidents=(incident,))


def print_status(*words: str, columns: int = 160) -> str:
    answer = CliRunner().invoke(app, ["status", *words], env={"COLUMNS": str(columns)})
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_runs_that_need_a_human_come_first_with_their_command(where):
    """A held run and a question before the runs that train, and ended ones last."""
    asked = Proposal("p7", ProposedAction.LAUNCH, 2, "create gpt-a002 from step 900", "it died", NOW, NOW + HOUR)
    keep(where, a_run("trains", RunState.WATCHING), held("stuck"), a_run("done", RunState.COMPLETED))
    keep(where, a_run("asks", RunState.WAITING, proposal=asked, blocked_by=LaunchCheck.APPROVAL))
    said = print_status()
    rows = [w for line in said.splitlines() for w in line.split()[:1] if w in ("trains", "stuck", "done", "asks")]
    assert sorted(rows[:2]) == ["asks", "stuck"] and rows[2:4] == ["trains", "done"]
    assert "use a smaller batch\n" in said and "rerail release stuck" in said
    assert "rerail approve asks --proposal p7" in said and "rerail deny asks --proposal p7" in said


def test_runs_open_as_a_page_in_the_browser(where, monkeypatch, tmp_path):
    """With the same rows and commands; the file is named, for machines without a browser."""
    opened: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    keep(where, a_run("trains", RunState.WATCHING), held("stuck"))
    said = print_status("--open")
    page = tmp_path / said.removeprefix("page: ").strip()
    assert opened == [page.as_uri()]
    assert "2 runs are open, 1 of them waiting" in page.read_text() and "rerail release stuck" in page.read_text()


def test_the_head_has_counts_pause_and_health(where):
    keep(where, a_run("a", RunState.WATCHING), a_run("b", RunState.WATCHING), held("c"))
    said = print_status()
    assert "2 watching  1 held" in said and "active   supervisor well" in said
    client("ssm").put_parameter(Name="/rerail/switch", Value="off", Overwrite=True, Type="String")
    alarm = {
        "AlarmName": "Rerail-NoSweep",
        "AlarmDescription": "Rerail: no sweep for 5 minutes.",
        "Namespace": "AWS/Lambda",
        "MetricName": "Invocations",
        "Statistic": "Sum",
        "Period": 300,
        "EvaluationPeriods": 1,
        "Threshold": 1.0,
        "ComparisonOperator": "LessThanThreshold",
    }
    client("cloudwatch").put_metric_alarm(**alarm)
    client("cloudwatch").set_alarm_state(AlarmName="Rerail-NoSweep", StateValue="ALARM", StateReason="none")
    said = print_status()
    assert "PAUSED: no job is stopped or launched   supervisor NOT WELL: 1 alarm" in said
    assert "no sweep for 5 minutes." in said


def test_an_error_that_several_runs_failed_with_is_named_once(where):
    """The current attempt of a held run has failed; of a run that waits it is the attempt before."""
    error, other = "ModuleNotFoundError: No module named 'flash_attn'", "KeyError: the column 'text'"
    for names, state, text in (("abcd", RunState.HELD, error), ("gh", RunState.WAITING, other)):
        for name in names:
            run, attempts = held(name), [*held(name).attempts]
            number = 2 if state is RunState.HELD else 1
            attempts[number - 1] = replace(attempts[number - 1], cause=Cause.USER_CODE, fingerprint=text)
            incident = replace(run.incidents[0], attempt=number, cause=Cause.USER_CODE, evidence=text)
            keep(where, replace(run, state=state, attempts=tuple(attempts), incidents=(incident,)))
    keep(where, held("e"), held("f"))
    assert f"error  {error}: a, b, c and 1 more\n" in print_status()
    assert json.loads(print_status("--json"))["shared_errors"] == {error: ["a", "b", "c", "d"], other: ["g", "h"]}


@pytest.mark.parametrize(
    ("text", "paused", "said"),
    [("on", False, "active "), ("off", True, "PAUSED: no job"), ("maybe", None, "pause unknown ")],
)
def test_a_pause_is_shown_where_it_can_be_read(where, text, paused, said):
    """An invalid parameter says nothing about the pause. `rerail resume` is not advised once it is lifted."""
    client("ssm").put_parameter(Name="/rerail/switch", Value=text, Overwrite=True, Type="String")
    keep(where, a_run("waits", RunState.WAITING, blocked_by=LaunchCheck.PAUSE))
    assert said in (printed := print_status())
    assert ("rerail resume" in printed) is (paused is not False)
    assert json.loads(print_status("--json"))["paused"] is paused
    client("ssm").put_parameter(Name="/rerail/policies/default", Value="mode = 'pause'", Overwrite=True, Type="String")
    assert "waits until its policy default has another mode than pause" in print_status(), "no resume lifts that"


def test_the_newest_step_comes_from_the_heartbeat_or_the_sweep(where):
    """Whichever there is; a new attempt without either has none, whatever the one before has reached."""
    beats, noted, silent, again, back = (
        a_run(name, RunState.WATCHING) for name in ["beats", "noted", "silent", "again", "back"]
    )
    order = InPlaceRestart(1, "c1", "x", NOW, NOW, stepped_at=NOW, first_step=201)
    back = replace(back, attempts=(back.attempts[0], replace(back.current, in_place_restarts=(order,))))
    beats = replace(beats, attempts=(beats.attempts[0], replace(beats.current, agent=True)), signing_key=KEY)
    keep(where, beats, noted, silent, again, back)
    heartbeat = Heartbeat("beats", 2, "beats-a002", NOW, Phase.STEP, 4321)
    name = make_heartbeat_key("beats")
    client("s3").put_object(Bucket="mailbox", Key=name, Body=sign(serialize(heartbeat), name=name, key=KEY))
    liveness = Liveness(Phase.STEP, NOW, moved_at=NOW - 90 * SECOND, step=1234)
    stale = RunDetection("silent", Cursor("silent"), DetectorState(liveness=liveness))  # of the attempt before
    fresh = RunDetection("again", Cursor("again-a002"), DetectorState(), rows=600, step=1)  # its row is of another job
    noted_memory = RunDetection("noted", Cursor("noted-a002"), DetectorState(liveness=liveness))
    DynamoDetections(TABLE).keep([noted_memory, stale, fresh])
    rows = {row["id"]: row for row in json.loads(print_status("--json"))["runs"]}
    assert rows["beats"]["step"] == 4321 and rows["beats"]["step_at"]
    assert (rows["noted"]["step"], rows["noted"]["step_at"]) == (1234, (NOW - 90 * SECOND).isoformat())
    assert rows["silent"]["step_at"] is None
    assert [rows[name]["step"] for name in ("silent", "again", "back")] == [None, None, 201]
    assert "4,321" in print_status() and "1,234   90s" not in print_status()


def test_an_open_warning_stands_beside_the_state(where):
    label = HealthLabel(116, 2, Health.SUSPECT, "saved after the loss had gone wrong at step 116 (non_finite: nan)", "")
    run = a_run("nan", RunState.WATCHING)
    keep(where, replace(run, labels=(label,)), a_run("fine", RunState.WATCHING))
    assert print_status().count("watching (warning)") == 1
    warnings = {row["id"]: row["warning"] for row in json.loads(print_status("--json"))["runs"]}
    assert warnings == {"nan": "warning: the loss had gone wrong at step 116 (non_finite: nan)", "fine": ""}


def test_a_job_that_only_an_operator_may_stop_is_shown_with_its_cost_and_the_command(where):
    """Held, or with a loss in trouble where Rerail may not act; where it may act, nothing is asked of anybody."""
    label = HealthLabel(60, 2, Health.SUSPECT, "saved after the loss had gone wrong at step 60")
    running, priceless = (replace(held(name), attempts=a_run(name, RunState.WATCHING).attempts) for name in ("a", "b"))
    attempts = tuple(replace(attempt, instance_type="ml.new") for attempt in priceless.attempts)
    keep(where, running, replace(priceless, attempts=attempts), held("c"))
    for name, mode in (("d", Mode.OBSERVE), ("e", Mode.ACT), ("f", Mode.APPROVE)):
        keep(where, a_run(name, RunState.WATCHING, labels=(label,), last_policy=Policy(mode=mode)))
    blind = replace(a_run("g", RunState.WATCHING), last_policy=Policy(mode=Mode.OBSERVE))
    finding = Finding(Kind.BLIND, Level.WARN, None, None, "no metrics", NOW)
    keep(where, replace(blind, warnings=(blind.make_warning_key(finding),)))
    said, cost = print_status(), ", which costs $63.30 an hour"
    asked = {"a": cost, "b": "", "d": cost, "f": cost}
    assert {name: f"{line}: rerail stop {name}\n" in said for name, line in asked.items()} == dict.fromkeys(asked, True)
    assert said.count("To end the run and its job") == len(asked)


def test_a_row_names_why_it_has_no_step_and_a_small_cost_as_the_page_does(where):
    first, blind = a_run("first", RunState.WATCHING), a_run("blind", RunState.WATCHING)
    began = NOW - 60 * SECOND
    cheap = Attempt(
        1, "first", JobStatus.IN_PROGRESS, "Training", began, training_started_at=began, instance_type="ml.m5.xlarge"
    )
    keep(where, replace(first, created_at=began, attempts=(cheap,)), replace(blind, defined_metrics=("loss",)))
    said = print_status()
    assert "none yet" in said and "no metric" in said and "under $0.01" in said


def test_an_ended_run_has_the_step_of_its_newest_checkpoint_or_its_last_metric(where):
    """The last metrics of a job arrive late: what it has saved counts where that is farther, with its age."""
    make_bucket("bucket")
    for name in ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json"):
        client("s3").put_object(Bucket="bucket", Key=f"saved/checkpoint-2000/{name}", Body=b"x")
    saved, printed = (a_run(name, RunState.COMPLETED) for name in ("saved", "printed"))
    saved = replace(saved, checkpoint_uri="s3://bucket/saved/")
    namesake = replace(a_run("saved-a002", RunState.COMPLETED), checkpoint_uri="s3://bucket/other/")
    keep(where, replace(namesake, attempts=(replace(namesake.current, number=1, job_name="saved-a002"),)))
    keep(where, *(replace(r, attempts=(r.attempts[0], replace(r.current, last_step=1065))) for r in (saved, printed)))
    rows = {row["id"]: row for row in json.loads(print_status("--json"))["runs"]}
    assert rows["saved"]["step"] == 2000 and rows["saved"]["step_at"]
    assert rows["saved-a002"]["step"] != 2000, "that is another run's, which has a job of that name"
    assert (rows["printed"]["step"], rows["printed"]["step_at"]) == (1065, (NOW - HOUR).isoformat())


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_it_fits_the_terminal_and_loses_no_number(where, columns):
    keep(where, a_run("a-run-with-a-very-long-name-that-nobody-wants-to-type-twice", RunState.WATCHING), held("c"))
    said = print_status(columns=columns)
    assert max(len(line) for line in said.splitlines()) <= columns
    assert "twice" in said and "900" in said and "…" not in said.partition("watching")[2].partition("\n")[0]


def test_only_what_was_asked_for(where):
    """By state and by policy; of the ended ones only the newest, unless all are wanted."""
    keep(where, a_run("trains", RunState.WATCHING), held("stuck"))
    keep(where, *(a_run(f"done-{n:02d}", RunState.COMPLETED) for n in range(12)))
    assert [row["id"] for row in json.loads(print_status("--state", "held", "--json"))["runs"]] == ["stuck"]
    assert json.loads(print_status("--policy", "other", "--json"))["runs"] == []
    assert len(json.loads(print_status("--json"))["runs"]) == 12 and "and 2 more runs" in print_status()
    assert len(json.loads(print_status("--all", "--json"))["runs"]) == 14


def test_invalid_options_are_one_clear_error(where):
    answer = CliRunner().invoke(app, ["status", "--watch", "--json"])
    assert answer.exit_code == 2 and "--watch, --json and --open exclude each other" in answer.stderr
    answer = CliRunner().invoke(app, ["status", "--watch"])
    assert answer.exit_code == 2 and "needs a terminal" in answer.stderr
    assert CliRunner().invoke(app, ["status", "--state", "helt"]).exit_code == 2


def test_a_policy_that_cannot_be_read_hides_no_run(where):
    keep(where, replace(a_run("odd", RunState.WATCHING), policy="odd"))
    client("ssm").put_parameter(Name="/rerail/policies/odd", Value="mode = 'sideways'", Type="String")
    assert "odd" in print_status()


def test_a_log_line_or_a_reason_cannot_paint_the_terminal(where):
    """What comes from names and reasons is text, not markup."""
    keep(where, replace(held("c"), hold_advice="[bold]look[/bold] at [/red] it"))
    assert "[bold]look[/bold] at [/red] it" in print_status()


def test_each_state_has_its_start_time():
    """From what the record holds, without reading a timeline."""
    began = NOW - 10 * HOUR
    stop = PlannedStop(AfterStop.RELAUNCH, "slow", NOW - 40 * SECOND, NOW)
    watched = a_run("a", RunState.WATCHING)
    assert find_state_start(watched) == began + HOUR
    orders = tuple(InPlaceRestart(n, "c", "nan", NOW, NOW, restarted_at=NOW - n * SECOND) for n in (3, 2))
    current = replace(watched.current, in_place_restarts=orders)
    assert find_state_start(replace(watched, attempts=(watched.attempts[0], current))) == NOW - 2 * SECOND
    assert find_state_start(a_run("a", RunState.SAVING, stop=stop)) == NOW - 40 * SECOND
    assert find_state_start(a_run("a", RunState.WAITING)) == began + HOUR
    assert find_state_start(held("a")) == NOW - HOUR
    assert find_state_start(replace(held("a"), held_by="ada", commanded_at=NOW - SECOND)) == NOW - SECOND
    assert find_state_start(a_run("a", RunState.COMPLETED)) == NOW - HOUR


@pytest.mark.parametrize(
    ("ago", "words"),
    [(4, "4s"), (59.6, "60s"), (90, "2m"), (5400, "90m"), (3600 * 3, "3.0h"), (3600 * 30, "30h"), (86400 * 5, "5d")],
)
def test_ages_take_a_few_characters(ago, words):
    assert format_age(NOW - ago * SECOND, NOW) == words
    assert format_age(None, NOW) == ""


def test_a_record_of_another_version_hides_no_other(where, monkeypatch):
    """After a roll-back of the deployment: what can be read is shown, what cannot is named."""
    keep(where, a_run("trains", RunState.WATCHING), a_run("newer", RunState.WATCHING))
    monkeypatch.setattr("rerail.model.codec.SCHEMA", 3)
    where.runs.save(replace(a_run("newer", RunState.WATCHING), version=2), None)
    monkeypatch.undo()
    seen = FleetReader(where).read()
    assert [row.run.id for row in seen.rows] == ["trains"] and seen.unread == ("newer",)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(make_picture(seen, seen.rows, width=160))
    assert "written by another version than this: newer" in console.export_text()


def test_what_is_over_is_read_once_a_minute(where, monkeypatch):
    """Each look reads the open runs; the whole table only now and then."""
    keep(where, a_run("trains", RunState.WATCHING), a_run("done", RunState.COMPLETED))
    look, scans, at = FleetReader(where), [], [NOW]
    scan = type(where.runs).all_runs
    monkeypatch.setattr(type(where.runs), "all_runs", lambda self: scans.append(1) or scan(self))
    monkeypatch.setattr(fleet.place, "now", lambda: at[0])
    for seconds, scanned in ((0, 1), (5, 1), (55, 1), (61, 2)):
        at[0] = NOW + seconds * SECOND
        assert {row.run.id for row in look.read().rows} == {"trains", "done"}
        assert len(scans) == scanned
    ended = replace(a_run("trains", RunState.COMPLETED), version=2)
    where.runs.save(ended, None)
    assert {row.run.id: row.run.state.value for row in look.read().rows} == {"trains": "completed", "done": "completed"}


def test_ten_times_the_runs_cost_about_ten_times_as_much(where):
    """To look up, to account for and to draw, the pretended AWS included; a square would cost 100 times as much."""

    def put(numbers):
        puts = [{"PutRequest": {"Item": _run_item(a_run(f"run-{n:04d}", RunState.WATCHING))}} for n in numbers]
        for start in range(0, len(puts), 25):
            client("dynamodb").batch_write_item(RequestItems={TABLE: puts[start : start + 25]})

    def show():
        found = FleetReader(where).read()
        Console(width=200, quiet=True).print(make_picture(found, found.rows, width=200))
        return found

    put(range(100))
    hundred = cpu_seconds(show)
    put(range(100, 1000))
    shown = []
    thousand = cpu_seconds(lambda: shown.append(show()), repeats=1)
    assert len(shown[0].rows) == 1000
    assert thousand / hundred < 40


def test_watching_redraws_goes_on_through_trouble_and_ends_with_ctrl_c(where, monkeypatch):
    """The last picture stays on the terminal."""
    keep(where, a_run("trains", RunState.WATCHING))
    written, looks = io.StringIO(), []
    terminal = Console(file=written, force_terminal=True, width=100, height=30, color_system=None)
    monkeypatch.setattr("cli.status.Console", lambda: terminal)
    see = FleetReader.read

    def look(self):
        looks.append(1)
        if len(looks) == 2:
            raise StateUnknown("CloudWatch is not there")
        return see(self)

    def sleep(seconds):
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(FleetReader, "read", look)
    monkeypatch.setattr("cli.status.time.sleep", sleep)
    answer = CliRunner().invoke(app, ["status", "-w"])
    assert (answer.exit_code, len(looks)) == (0, 3)
    assert "cannot look now: CloudWatch is not there" in written.getvalue()
    assert written.getvalue().rstrip().splitlines()[-1].startswith("trains  watching")


def test_a_picture_with_a_height_fits_into_it():
    """For a terminal that is redrawn in place."""
    rows = tuple(FleetRow(held(f"c{n}"), NOW, 1, NOW, 0.5, 1.0, "look", f"rerail release c{n}") for n in range(40))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(make_picture(FleetStatus(NOW, "here", rows, False, ("no sweep",)), rows, width=100, height=40))
    assert len(console.export_text().splitlines()) <= 40
