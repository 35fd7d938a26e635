"""Whoever may write into the mailbox, and does not know a run's key, cannot speak for the run."""

import hmac
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.decisions.checkpoint_health import with_health
from rerail.decisions.decide import decide
from rerail.decisions.on_report import redact_report
from rerail.messages.messages import ReportFiled
from rerail.model.actions import Notify, Severity
from rerail.model.errors import BadMailboxObject
from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness
from rerail.model.mailbox import (
    CommandKind,
    Report,
    ReportKind,
    make_command_key,
    make_heartbeat_key,
    make_report_key,
    read_command,
    read_report,
    serialize,
)
from rerail.model.policy import MailboxPolicy
from rerail.model.run import Run, RunState
from rerail.model.signals import AgentReported
from rerail.model.signatures import VARIABLE, is_signed, sign
from tests.core.strategies import reports
from tests.fakes import BUCKET, DEFAULT, KEY, MIDNIGHT, Agent, World
from tests.threats.conftest import ANOTHER

MINUTE = timedelta(minutes=1)
RUINED = Finding(Kind.NON_FINITE, Level.INTERVENE, 60, 50, "the loss is not finite")


def beating(world: World, agent: Agent, minutes: int) -> None:
    """The job trains, ten steps a minute, and says so."""
    for _ in range(minutes):
        agent.beats(10 * (1 + int((world.clock() - world.run().created_at) / MINUTE)), loss=2.0)
        world.minutes(1)


def liveness_of(world: World) -> Liveness:
    """When the run was last heard, as the sweep remembers it."""
    return world.memories.recall(["gpt"])["gpt"].detectors.liveness


@pytest.mark.threat("T1")
@pytest.mark.parametrize("key", ["", ANOTHER], ids=["no seal", "a seal of another run"])
def test_a_forged_report_steers_no_other_run(world, agent, stranger, key):
    """A finding that would roll the run back is passed over, told once, and answered with nothing."""
    world.checkpoints.save(step=40)
    stranger.signing_key = key
    for _ in range(3):
        stranger.finds(RUINED)
    for text in (b"no JSON", b"{}", b'{"schema":1}', b'{"schema":1,"type":"Report","step":-1}', b"0" * 100_000):
        world.mailbox.put(make_report_key("gpt", "r9"), text)
        world.supervisor().on_report(ReportFiled("gpt", "r9", make_report_key("gpt", "r9")))
    run = world.run()
    assert (run.state, run.stop, run.incidents, run.pending) == (RunState.WATCHING, None, (), ())
    assert [notice.title for notice in world.bus.notices] == ["gpt: a report cannot be read"]
    assert "does not show that this run's job has written it" in world.bus.notices[0].body


@pytest.mark.threat("T26")
@pytest.mark.parametrize("facts", [{"idle": "yes"}, {"idle": 5}, {"doubt": MIDNIGHT.replace(tzinfo=None)}, {"at": "x"}])
@pytest.mark.parametrize("level", Level)
def test_a_report_makes_no_record_unreadable(world, agent, level, facts):
    """A run whose record cannot be read is not watched, and until it ends no other run may move its checkpoints."""
    world.checkpoints.save(step=40)
    agent.finds(replace(RUINED, level=level, at=MIDNIGHT), replace(RUINED, level=level, **facts))
    world.minutes(2)
    assert (world.run().state, world.notice_titles()) == (RunState.WATCHING, ["gpt: a report cannot be read"])


@pytest.mark.threat("T1")
def test_reports_of_the_runs_own_agent_are_handled(world, agent):
    """The same finding with the run's seal ends in an intervention: it is the seal that makes the difference."""
    world.checkpoints.save(step=40)
    agent.finds(RUINED)
    assert world.run().state in (RunState.SAVING, RunState.STOPPING)


@pytest.mark.threat("T1")
@pytest.mark.parametrize(
    "facts",
    [
        ReportKind.DAMAGED,
        ReportKind.UNLOADED,
        ReportKind.CRASHED,
        ReportKind.HELLO,
        ReportKind.REFUSED,
        ReportKind.CHECKPOINT,
    ],
)
def test_a_forged_report_does_not_change_the_run(world, agent, stranger, facts):
    """No checkpoint is called damaged, no crash is answered, nothing is believed to be saved."""
    before = world.run()
    stranger.deliver(stranger.files(facts, step=40, saved_by=1, reason="because", evidence="boom", command="c1"))
    after = world.run()
    assert replace(after, defects=(), pending=(), version=before.version) == before


@pytest.mark.threat("T1")
@given(reports, st.binary(max_size=40))
def test_a_signature_covers_every_byte_and_the_name(report, more):
    """A sealed report that is changed, cut, given another name or another key is refused, or has no seal any more."""
    name = make_report_key(report.run, report.id)
    text = sign(serialize(report), name=name, key=KEY)
    assert is_signed(text, name=name, key=KEY)
    with pytest.raises(BadMailboxObject):
        is_signed(text, name=make_report_key(report.run, report.id + "x"), key=KEY)
    with pytest.raises(BadMailboxObject):
        is_signed(text, name=name, key=ANOTHER)
    middle = len(text) // 3
    changed = text[:middle] + more + text[middle:]
    try:
        assert changed == text or not is_signed(changed, name=name, key=KEY)
    except BadMailboxObject as error:
        assert error.defect == "seal"


@pytest.mark.threat("T1")
def test_a_signature_is_that_of_earlier_versions():
    """An agent in an image may be older than the supervisor: both compute the same HMAC of the name and the bytes."""
    signed = sign(b'{"a":1}', name="runs/gpt/x.json", key=KEY)
    text = b"runs/gpt/x.json\n" + b'{"a":1}'
    assert signed == b'{"a":1,"seal":"%b"}' % hmac.new(KEY.encode(), text, "sha256").hexdigest().encode()
    assert not is_signed(signed, name="runs/gpt/x.json", key="")


@pytest.mark.threat("T1")
def test_a_report_cannot_claim_to_be_signed(world):
    """What the object says of itself counts for nothing."""
    agent = Agent(world)
    name = agent.files(ReportKind.HELLO)
    text = json.dumps({**json.loads(world.mailbox.objects[name][0]), "sealed": True}).encode()
    run, id = "gpt", name.rpartition("/")[2].removesuffix(".json")
    assert not read_report(text, run=run, id=id, signing_key=KEY).is_signed


@pytest.mark.threat("T2")
def test_a_forged_heartbeat_hides_no_hang(world, agent, stranger):
    """The job stands still, and somebody has its heart beat: that is not heard, and the hang is mended."""
    beating(world, agent, 10)
    for _ in range(40):
        stranger.beats(5_000, loss=1.0)
        world.minutes(1)
    assert "gpt: stall: relaunching" in world.notice_titles()


@pytest.mark.threat("T2")
def test_an_old_heartbeat_written_again_hides_no_hang(world, agent):
    """Seal and all: the newest and an older one, each minute. What was heard before is no sign of life."""
    beating(world, agent, 9)
    older = world.mailbox.objects[make_heartbeat_key("gpt")][0]
    beating(world, agent, 1)
    newest = world.mailbox.objects[make_heartbeat_key("gpt")][0]
    for minute in range(40):
        world.mailbox.put(make_heartbeat_key("gpt"), (older, newest)[minute % 2])
        world.minutes(1)
    assert "gpt: stall: relaunching" in world.notice_titles()


@pytest.mark.threat("T2")
def test_a_clock_that_is_set_back_silences_no_job_that_moves(world, agent):
    """The job's clock jumps back by an hour; its steps go on, so it is heard."""
    beating(world, agent, 10)
    for minute in range(20):
        agent.beats(200 + 10 * minute, loss=2.0, at=world.clock() - timedelta(hours=1))
        world.minutes(1)
    assert liveness_of(world).received_at >= world.clock() - 2 * MINUTE
    assert not world.bus.notices


@pytest.mark.threat("T3")
def test_unsigned_reports_of_a_job_without_a_key_are_shown_and_change_nothing(world):
    """A first job that somebody started without one: people hear of its agent and its findings once, with the remedy.
    Its successor has a key, and its reports count."""
    world.adopt("old")
    first = Agent(world, run="old", job="old", signing_key="")
    for _ in range(2):
        first.hello()
        first.finds(RUINED)
    assert not world.run("old").current.agent
    assert world.notice_titles() == ["old: an unsigned report"] * 2
    assert "non_finite: the loss is not finite" in world.bus.notices[1].body
    assert VARIABLE in world.bus.notices[1].todo
    world.lose_node("old", minutes=30)
    launched = world.sagemaker.requests["old-a002"]["Environment"]
    assert launched[VARIABLE] == KEY == world.run("old").signing_key
    late = Agent(world, run="old", job="old-a002", attempt=2, reports=50, signing_key="")
    late.finds(RUINED)
    assert world.run("old").state is RunState.WATCHING
    assert world.notice_titles()[-1] == "old: a report cannot be read"
    second = Agent(world, run="old", job="old-a002", attempt=2)
    second.hello()
    assert world.run("old").requires_signature and world.run("old").current.agent


@pytest.mark.threat("T3")
def test_a_policy_can_ask_for_silence_about_unsigned_reports(world):
    """`mailbox.signed_only`: such a report is not even shown, but its first arrival is."""
    world.policies.by_name["default"] = replace(DEFAULT, mailbox=MailboxPolicy(signed_only=True))
    world.adopt("old")
    Agent(world, run="old", job="old", signing_key="").finds(RUINED)
    assert world.notice_titles() == ["old: a report cannot be read"]


@pytest.mark.threat("T3")
def test_an_unsigned_heartbeat_hides_no_hang(world):
    """A run without a key, whose metrics in CloudWatch end: the heartbeat of a stranger counts for nothing."""
    world.adopt("old")
    stranger = Agent(world, run="old", job="old", signing_key="")
    stranger.hello()
    for minute in range(60):
        if minute < 15:
            world.series.print("old", world.clock(), step=10.0 * minute + 10, loss=2.0, count=10.0)
        stranger.beats(10 * minute + 10, loss=2.0)
        world.minutes(1)
    assert any(title.startswith("old: stall") for title in world.notice_titles())


def runs_under_attack() -> list[Run]:
    """A run in each state in which reports count, with checkpoints: without an agent and with one."""
    world = World().with_saves()
    alone = world.run()
    agent = Agent(world)
    agent.deliver(agent.files(ReportKind.HELLO, abilities=("restart",)))
    watching = world.run()
    agent.finds(Finding(Kind.THROUGHPUT_DROP, Level.INTERVENE, 520, 510, "half as fast"))
    saving = world.run()
    world = World().with_saves()
    agent = Agent(world)
    agent.deliver(agent.files(ReportKind.HELLO, abilities=("restart",)))
    agent.deliver(agent.files(ReportKind.CRASHED, evidence="RuntimeError: boom"))
    restarting = world.run()
    assert [run.state for run in (alone, watching, saving, restarting)] == [
        RunState.WATCHING,
        RunState.WATCHING,
        RunState.SAVING,
        RunState.RESTARTING,
    ]
    return [alone, watching, saving, restarting]


RUNS = runs_under_attack()


@pytest.mark.threat("T3")
@given(st.sampled_from(RUNS), st.lists(reports, max_size=6), st.data())
def test_unsigned_reports_only_inform(run, forged, data):
    """Any of them, in any order, in any state, with the right names and commands: notices, and the same run."""
    world = World().with_saves()
    saved = world.checkpoints.list_checkpoints(BUCKET)
    commands = ["", "c1", *filter(None, [run.stop and run.stop.command_id])]
    commands += [order.command_id for order in run.current.in_place_restarts]
    after = run
    for report in forged:
        report = replace(
            report,
            run="gpt",
            job=run.current.job_name,
            attempt=run.current.number,
            command=data.draw(st.sampled_from(commands)),
            is_signed=False,
        )
        decision = decide(after, AgentReported(world.clock(), report, saved), DEFAULT)
        assert all(isinstance(n, Notify) and n.severity is Severity.INFORM for n in decision.actions)
        after = decision.run
    assert replace(after, defects=run.defects, pending=run.pending) == run
    assert with_health(after, saved) == with_health(run, saved)


@pytest.mark.threat("T8")
def test_commands_are_signed_with_the_runs_key(world, agent):
    """Its own agents, and only they, take the command for genuine."""
    world.checkpoints.save(step=40)
    agent.finds(RUINED)
    text, _ = world.mailbox.objects[make_command_key("gpt")]
    assert read_command(text, run="gpt", signing_key=KEY).kind is CommandKind.CHECKPOINT
    with pytest.raises(BadMailboxObject, match="seal"):
        read_command(text, run="gpt", signing_key=ANOTHER)


@pytest.mark.threat("T8")
def test_a_finding_that_is_reported_again_is_acted_on_once(world, agent):
    """The first report is lost or torn; the next one counts, and those after it change nothing."""
    world.checkpoints.save(step=40)
    world.mailbox.put(key := agent.files(ReportKind.FINDINGS, findings=(RUINED,)), b"{}")
    agent.deliver(key)
    assert world.run().state is RunState.WATCHING
    agent.finds(RUINED)
    stopped = world.run()
    assert stopped.state in (RunState.SAVING, RunState.STOPPING)
    agent.finds(RUINED)
    assert world.run() == stopped


def make_reported(world: World, *, key: str = KEY, **facts: Any) -> AgentReported:
    """Return a report of the current job as the supervisor reads it."""
    report = Report("r1", "gpt", 1, "gpt", facts.pop("kind"), world.clock(), **facts)
    return AgentReported(world.clock(), replace(report, is_signed=bool(key)))


def test_an_unsigned_crash_is_shown_with_its_reason(world):
    decision = decide(world.run(), make_reported(world, key="", kind=ReportKind.CRASHED, reason="NaN at 7"), DEFAULT)
    (notice,) = [action for action in decision.actions if isinstance(action, Notify)]
    assert "an unsigned report of gpt says: crashed: NaN at 7" in notice.body
    assert notice.key == "gpt/unsigned-crashed" and decision.finding == "unsigned_report"
    again = decide(decision.run, make_reported(world, key="", kind=ReportKind.CRASHED, reason="other"), DEFAULT)
    assert not again.actions


@pytest.mark.threat("T17")
def test_an_agents_report_is_recorded_without_secrets():
    """A traceback in a report may quote the environment."""
    finding = Finding(Kind.NON_FINITE, Level.INTERVENE, 7, 7, "loss nan, token hunter22xyz")
    report = Report("r1", "gpt", 1, "gpt", ReportKind.FINDINGS, MIDNIGHT, findings=(finding,))
    report = replace(report, reason="wrote hunter22xyz", evidence="Traceback: hunter22xyz")
    redacted = redact_report(report, ["hunter22xyz"])
    assert "hunter22xyz" not in str(redacted)
    assert redacted.findings[0] == replace(finding, evidence="loss nan, token [hidden]")
    assert (redacted.reason, redacted.evidence) == ("wrote [hidden]", "Traceback: [hidden]")


@pytest.mark.parametrize("field", ["at", "onset_at"])
@pytest.mark.parametrize("hours", [-100, 100])
def test_the_times_of_findings_are_limited_to_the_attempt(world, hours, field):
    """The clock of a job may be wrong by days: an incident begins within its attempt."""
    began, wrong = world.run().current.training_started_at, world.clock() + timedelta(hours=hours)
    finding = replace(RUINED, **{field: wrong})
    decision = decide(world.run(), make_reported(world, kind=ReportKind.FINDINGS, findings=(finding,)), DEFAULT)
    incident = decision.run.open_incident
    assert incident and incident.happened_at == (began if hours < 0 else world.clock())
