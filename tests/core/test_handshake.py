"""The emergency checkpoint, told as timetables: the agent is asked, heard and believed, or done without in time."""

from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.messages.messages import CommandReceived, FindingsReceived, QueueMessage, ReportFiled, RunDue
from rerail.model.actions import PostCommand, Severity
from rerail.model.checkpoints import EMERGENCY, Health
from rerail.model.errors import CommandNotStored, StateUnknown
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import CommandKind, Durability, ReportKind, make_report_key, run_of_report
from rerail.model.policy import Policy, SaveTimeouts
from rerail.model.run import JobStatus, Run, RunState
from rerail.model.signals import OperatorVerb
from tests.core.failures import NODE_LOST
from tests.fakes import Agent, World

DIVERGED = (Kind.DIVERGENCE, Kind.NON_FINITE, Kind.FROZEN_LOSS, Kind.LOSS_SPIKE)


def report_finding(world: World, kind: Kind = Kind.THROUGHPUT_DROP, *, onset: int = 450, step: int = 510) -> None:
    finding = Finding(kind, Level.INTERVENE, step, onset, f"{kind} since step {onset}")
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))


def relaunched(world: World) -> Run:
    """The run after some minutes, in which it must have been relaunched once."""
    world.minutes(3)
    run = world.run()
    assert (run.state, run.current.job_name) == (RunState.WATCHING, "gpt-a002")
    assert world.sagemaker.most_live_at_once == 1
    return run


# The agent is there


def test_a_hello_is_a_fact_and_no_news(world):
    before = len(world.runs.timeline)
    agent = Agent(world)
    for _ in range(3):
        agent.hello()
    assert world.run().current.agent
    assert len(world.runs.timeline) == before
    assert world.bus.notices == []


def test_any_report_proves_that_there_is_an_agent(world):
    agent = Agent(world)
    agent.deliver(agent.files(ReportKind.CHECKPOINT, step=510, durability=Durability.REMOTE))
    assert world.run().current.agent


def test_a_slow_job_is_moved_without_losing_a_step(world, agent):
    """62:00 asked, 62:05 heard, 62:20 committed at step 520: stopped then, and resumed from there."""
    report_finding(world)
    run = world.run()
    assert (run.state, world.sagemaker.live()) == (RunState.SAVING, ["gpt"])
    asked = agent.asked
    assert (asked.id, asked.deadline, asked.reason) == (run.stop.command_id, run.stop.deadline, "throughput_drop")
    world.clock.pass_by(timedelta(seconds=5))
    agent.acknowledges()
    assert world.run().stop.acknowledged_at == world.clock()
    world.clock.pass_by(timedelta(seconds=15))
    world.checkpoints.commit(step=520, reason=EMERGENCY)
    agent.commits(520)
    assert world.reasons()[-1] == "the emergency checkpoint of step 520 is committed: stopping the job"
    run = relaunched(world)
    assert run.current.resumed_from_step == 520
    assert run.incidents[0].lost_steps == 0
    assert "the agent has received the request for a checkpoint: all ranks save at one step" in world.reasons()


@pytest.mark.parametrize(
    ("verb", "ends"), [(OperatorVerb.STOP, RunState.STOPPED), (OperatorVerb.RESTART, RunState.WATCHING)]
)
def test_an_operator_gets_a_checkpoint_first(world, agent, verb, ends):
    world.supervisor().handle(CommandReceived("c1", "gpt", verb, "ada", "moving house"))
    world.checkpoints.commit(step=515, reason=EMERGENCY)
    agent.commits(515)
    world.minutes(3)
    assert world.run().state is ends
    assert world.sagemaker.jobs["gpt"].status is JobStatus.STOPPED
    if ends is RunState.WATCHING:
        assert world.run().current.resumed_from_step == 515


def test_a_command_during_a_stop_changes_what_follows(world, agent):
    """The end of the job is still our doing: it is no human's stop."""
    report_finding(world, Kind.DIVERGENCE, onset=350)
    end, world.sagemaker.stop = world.sagemaker.stop, lambda job: None  # it takes its time
    agent.commits(520)
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RESTART, "ada", ""))
    assert (world.run().state, world.run().stop.reason) == (RunState.STOPPING, "ada said restart")
    world.sagemaker.stop = end
    assert relaunched(world).current.resumed_from_step == 300


def test_a_checkpoint_of_the_scripts_own_does_not_cut_the_agent_short(world, agent):
    """Periodic saves go on while the ranks agree: the emergency checkpoint is some steps newer."""
    report_finding(world)
    world.clock.pass_by(timedelta(seconds=5))
    world.checkpoints.commit(step=511, reason="periodic")
    world.supervisor().handle(RunDue("gpt"))
    assert world.run().state is RunState.SAVING, "it has two minutes to hear of it"
    agent.acknowledges()
    world.checkpoints.commit(step=512, reason="periodic")
    world.minutes(5)
    assert world.run().state is RunState.SAVING, "and the whole time to save"
    world.checkpoints.commit(step=520, reason=EMERGENCY)
    agent.commits(520)
    assert relaunched(world).current.resumed_from_step == 520


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.CLEAN], ids=["suspect", "called clean"])
@pytest.mark.parametrize("kind", DIVERGED)
def test_a_state_that_went_wrong_is_kept_as_evidence_and_never_resumed_from(world, agent, kind, health):
    report_finding(world, kind, onset=350)
    assert world.run().state is RunState.SAVING
    world.checkpoints.commit(step=520, reason=EMERGENCY, health=health)
    agent.commits(520)
    run = relaunched(world)
    assert run.current.resumed_from_step == 300
    assert run.incidents[0].lost_steps == 210


@pytest.mark.parametrize("kind", [Kind.STALL, Kind.STARTUP_STALL])
def test_a_job_that_hangs_is_not_asked(world, agent, kind):
    report_finding(world, kind)
    assert world.run().state is RunState.STOPPING
    assert world.mailbox.commands == []
    assert relaunched(world).current.resumed_from_step == 500


# What SageMaker has to copy to S3


def test_a_checkpoint_on_the_machine_counts_when_it_is_whole_in_s3(world, agent):
    """62:00 asked, committed on the machine; 63:00 half of it is there; 64:00 all of it: now the job is stopped."""
    report_finding(world)
    agent.acknowledges()
    agent.commits(520, Durability.LOCAL)
    assert (world.run().state, world.run().stop.committed_step) == (RunState.SAVING, 520)
    assert "stopping the job once all of it is in S3" in world.reasons()[-1]
    world.checkpoints.commit(step=520, reason="periodic", missing=("__1_0.distcp",))
    world.minutes(2)
    assert world.run().state is RunState.SAVING
    world.checkpoints.saved["s3://bucket/checkpoints/"].pop(0)
    world.checkpoints.commit(step=520, reason="periodic")
    assert relaunched(world).current.resumed_from_step == 520


def test_a_checkpoint_that_is_in_s3_already_when_it_is_reported(world, agent):
    """The upload was faster than the report."""
    report_finding(world)
    world.checkpoints.commit(step=520, reason="periodic")
    agent.commits(520, Durability.LOCAL)
    assert world.run().state is RunState.STOPPING


def test_a_tainted_state_is_worth_no_upload(world, agent):
    report_finding(world, Kind.DIVERGENCE, onset=350)
    agent.commits(520, Durability.LOCAL)
    assert world.run().state is RunState.STOPPING


@pytest.mark.parametrize(("durability", "step"), [(Durability.REMOTE, 520), (Durability.LOCAL, None)])
def test_the_agents_report_counts_where_rerail_cannot_list_checkpoints(durability, step):
    """There is nothing to list. What was local is gone with the machine."""
    world = World().adopt(uri="")
    agent = Agent(world)
    agent.hello()
    world.sagemaker.request_members = lambda: {"TrainingJobName", "Tags"}
    report_finding(world)
    assert world.run().state is RunState.SAVING
    agent.commits(520, durability)
    assert world.run().state is RunState.STOPPING
    world.supervisor().handle(RunDue("gpt"))
    assert world.run().current.resumed_from_step == step


# Words that are late, lost, repeated, out of order, or somebody else's


def test_a_listing_replaces_lost_reports(world, agent):
    report_finding(world)
    world.clock.pass_by(timedelta(seconds=20))
    world.checkpoints.commit(step=520, reason=EMERGENCY)
    world.minutes(1)
    assert "the emergency checkpoint of step 520 is committed: stopping the job" in world.reasons()
    assert relaunched(world).current.resumed_from_step == 520


def test_a_report_that_comes_again_changes_nothing(world, agent):
    report_finding(world)
    acknowledgement = agent.files(ReportKind.ACKNOWLEDGED, command=agent.asked.id)
    agent.deliver(acknowledgement)
    before = world.run()
    world.clock.pass_by(timedelta(seconds=5))
    agent.deliver(acknowledgement)
    assert world.run() == before
    committed = agent.files(ReportKind.CHECKPOINT, command=agent.asked.id, step=520, durability=Durability.REMOTE)
    world.checkpoints.commit(step=520, reason=EMERGENCY)
    for _ in range(3):
        agent.deliver(committed)
    relaunched(world)
    for key in (acknowledgement, committed):
        before = world.run()
        agent.deliver(key)
        assert world.run() == before
    assert world.sagemaker.live() == ["gpt-a002"]


def test_a_late_answer_is_an_answer(world, agent):
    report_finding(world)
    world.minutes(5)
    assert world.run().state is RunState.SAVING
    agent.acknowledges()
    world.checkpoints.commit(step=530, reason=EMERGENCY)
    agent.commits(530)
    assert relaunched(world).current.resumed_from_step == 530


@pytest.mark.parametrize("facts", [{"attempt": 2}, {"job": "another"}, {"attempt": 7, "job": "gpt-a007"}])
def test_a_report_of_another_attempt_changes_nothing(world, agent, facts):
    report_finding(world)
    before = world.run()
    stranger = replace(agent, **facts)
    stranger.deliver(
        stranger.files(ReportKind.CHECKPOINT, command=agent.asked.id, step=520, durability=Durability.REMOTE)
    )
    stranger.deliver(stranger.files(ReportKind.REFUSED, command=agent.asked.id, reason="x"))
    stranger.deliver(stranger.files(ReportKind.DAMAGED, step=500, saved_by=1))
    stranger.deliver(stranger.files(ReportKind.FINDINGS, findings=(Finding(Kind.STALL, Level.INTERVENE, 5, 5, "x"),)))
    assert world.run() == before


@pytest.mark.parametrize("command", ["", "checkpoint-a001-20260131T000000.000000", "c1"])
def test_an_answer_to_another_command_changes_nothing(world, agent, command):
    report_finding(world)
    before = world.run()
    agent.deliver(agent.files(ReportKind.CHECKPOINT, command=command, step=520, durability=Durability.REMOTE))
    agent.deliver(agent.files(ReportKind.REFUSED, command=command, reason="x"))
    assert world.run() == before


def test_a_checkpoint_of_the_agents_own_is_only_a_fact(world, agent):
    """It saves at a SIGTERM or a warning without being asked."""
    before = world.run()
    agent.deliver(agent.files(ReportKind.CHECKPOINT, step=520, durability=Durability.REMOTE))
    assert world.run() == before


def test_a_report_about_an_unknown_run_is_ignored(world):
    Agent(world, run="mine", job="mine").hello()
    assert world.runs.load("mine") is None
    assert world.bus.notices == []


@pytest.mark.parametrize(("minutes", "asked_again"), [(0, True), (12, True), (18, False)])
def test_a_report_that_is_not_there_is_asked_for_again_until_it_is_gone(world, agent, minutes, asked_again):
    """The queue brings word of it three times; the fourth time it is nobody's business any more, and no dead letter."""
    before, sent = world.run(), world.clock() - timedelta(minutes=minutes)
    filed = ReportFiled("gpt", "r9", make_report_key("gpt", "r9"))
    with pytest.raises(StateUnknown, match="r9") if asked_again else nullcontext():
        world.supervisor().handle(filed, QueueMessage(sent, sent))
    assert world.run() == before


def test_a_report_that_becomes_readable_is_handled(world):
    agent = Agent(world)
    key = agent.files(ReportKind.HELLO)
    hidden = world.mailbox.objects.pop(key)
    filed, post = ReportFiled(*run_of_report(key), key), QueueMessage(world.clock(), world.clock())
    with pytest.raises(StateUnknown):
        world.supervisor().handle(filed, post)
    world.mailbox.objects[key] = hidden
    world.supervisor().handle(filed, post)
    assert world.run().current.agent


def test_a_report_reaches_only_the_run_of_its_folder(world, agent):
    """A successor's name is no folder; what lies there steers nobody."""
    world.sagemaker.fail("gpt", NODE_LOST)
    relaunched(world)
    stranger = Agent(world, run="gpt-a002", attempt=2, job="gpt-a002")
    stranger.hello()
    assert not world.run().current.agent
    Agent(world, attempt=2, job="gpt-a002").hello()
    assert world.run().current.agent


def test_a_human_who_stops_the_job_while_it_saves_has_stopped_it(world, agent):
    """Its agent still reports the checkpoint: that must not make the stop ours, and relaunch against them."""
    report_finding(world)
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], status=JobStatus.STOPPING, secondary="Stopping")
    world.checkpoints.commit(step=520, reason=EMERGENCY)
    agent.commits(520)
    world.minutes(16)
    assert world.run().state is RunState.SAVING
    world.sagemaker.end("gpt", JobStatus.STOPPED)
    world.minutes(5)
    assert (world.run().state, list(world.sagemaker.jobs)) == (RunState.STOPPED, ["gpt"])


# Answers that are no checkpoint


def test_an_agent_that_cannot_save_is_not_waited_for(world, agent):
    report_finding(world)
    agent.refuses("disk full")
    reason = (
        "the agent cannot save a checkpoint (disk full): stopping the job, to resume from its newest clean checkpoint"
    )
    assert world.reasons()[-1] == reason
    assert relaunched(world).current.resumed_from_step == 500


def test_an_agent_that_does_not_answer_leaves_it_to_the_script(world, agent):
    """62:00 asked, 64:00 nobody has heard of it, said once; 70:00 the script saves of its own accord."""
    report_finding(world)
    world.minutes(6)
    silent = [reason for reason in world.reasons() if "the agent has not answered within 2 min" in reason]
    assert len(silent) == 1
    assert "waiting up to 13 min more (until 01:07 UTC) for a checkpoint of the script's own" in silent[0]
    assert world.sagemaker.live() == ["gpt"]
    world.checkpoints.commit(step=600, reason="periodic")
    assert relaunched(world).current.resumed_from_step == 600


def test_a_tainted_state_waits_for_the_agents_answer_alone(world, agent):
    report_finding(world, Kind.DIVERGENCE, onset=350)
    world.minutes(1)
    assert world.run().state is RunState.SAVING
    world.minutes(1)
    assert world.run().state is not RunState.SAVING
    assert relaunched(world).current.resumed_from_step == 300


def test_an_agent_that_never_saves_is_waited_for_until_the_deadline(world, agent):
    report_finding(world)
    agent.acknowledges()
    world.minutes(14)
    assert world.sagemaker.live() == ["gpt"]
    world.minutes(1)
    assert "no newer checkpoint came before the deadline: stopping the job all the same" in world.reasons()
    relaunched(world)


def test_the_policy_sets_the_save_timeouts(world, agent):
    save = SaveTimeouts(answer=timedelta(minutes=4), deadline=timedelta(minutes=8))
    world.policies.by_name["default"] = Policy(save=save)
    report_finding(world)
    world.minutes(3)
    assert world.run().stop.answer_by is not None
    world.minutes(1)
    assert world.run().stop.answer_by is None
    world.minutes(4)
    assert world.run().state is not RunState.SAVING


# A mailbox that takes nothing


def test_a_mailbox_that_is_closed_for_a_minute_gets_the_command_later(world, agent):
    world.mailbox.closed = True
    with pytest.raises(CommandNotStored):
        report_finding(world)
    assert world.run().state is RunState.SAVING
    assert any(isinstance(action, PostCommand) for action in world.run().pending)
    assert "gpt: throughput_drop: relaunching" in world.notice_titles(Severity.INFORM), "people are told nevertheless"
    world.mailbox.closed = False
    world.minutes(1)
    assert world.run().pending == ()
    agent.commits(520)
    assert world.run().state is RunState.STOPPING


@pytest.mark.parametrize(("kind", "step"), [(Kind.THROUGHPUT_DROP, 600), (Kind.DIVERGENCE, 400)])
def test_a_mailbox_that_stays_closed_is_an_agent_that_does_not_answer(world, agent, kind, step):
    """The same end of the first leg; each message fails in the end, and so says why."""
    world.mailbox.closed = True
    with pytest.raises(CommandNotStored):
        report_finding(world, kind)
    for minute in range(12):
        world.clock.pass_by(timedelta(minutes=1))
        if minute == 5:
            world.checkpoints.commit(step=600)
        with suppress(CommandNotStored):
            world.supervisor().handle(RunDue("gpt"))
    run = world.run()
    assert (run.current.number, run.current.resumed_from_step) == (2, step)
    assert world.sagemaker.live() == ["gpt-a002"]


def test_an_operators_command_is_handled_while_the_mailbox_is_closed(world, agent):
    world.mailbox.closed = True
    with pytest.raises(CommandNotStored):
        report_finding(world)
    with pytest.raises(CommandNotStored):
        world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.STOP, "ada", ""))
    assert world.run().stop.reason == "ada said stop"
    with pytest.raises(CommandNotStored):
        world.supervisor().handle(CommandReceived("c2", "gpt", OperatorVerb.HOLD, "ada", ""))
    assert (world.run().state, world.run().pending) == (RunState.HELD, ())


# Who owns the run


def test_a_successor_is_created_when_the_mailbox_is_closed(world, agent):
    world.sagemaker.fail("gpt", NODE_LOST)
    world.mailbox.closed = True
    world.supervisor().handle(RunDue("gpt"))
    for _ in range(2):
        world.clock.pass_by(timedelta(minutes=1))
        with pytest.raises(CommandNotStored):
            world.supervisor().handle(RunDue("gpt"))
    run = world.run()
    assert (run.state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt-a002"])
    assert [type(action) for action in run.pending] == [PostCommand]
    world.mailbox.closed = False
    world.minutes(1)
    assert world.run().pending == ()
    assert world.mailbox.commands[-1].attempt == 2


def test_a_launch_that_is_retried_has_one_pending_announcement(world):
    """No machines, twice, and a mailbox that takes nothing."""
    world.sagemaker.fail("gpt", NODE_LOST)
    world.mailbox.closed, world.sagemaker.no_capacity = True, 2
    for _ in range(20):
        world.clock.pass_by(timedelta(minutes=1))
        with suppress(CommandNotStored):
            world.supervisor().handle(RunDue("gpt"))
    assert world.sagemaker.live() == ["gpt-a002"]
    assert [type(action) for action in world.run().pending] == [PostCommand]


def test_a_pending_announcement_never_overwrites_a_newer_command(world):
    world.sagemaker.fail("gpt", NODE_LOST)
    world.mailbox.closed = True
    for _ in range(2):
        world.clock.pass_by(timedelta(minutes=1))
        with suppress(CommandNotStored):
            world.supervisor().handle(RunDue("gpt"))
    agent = Agent(world, attempt=2, job="gpt-a002")
    with pytest.raises(CommandNotStored):
        agent.hello()
    with pytest.raises(CommandNotStored):
        world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RESTART, "ada", ""))
    world.mailbox.closed = False
    world.minutes(1)
    assert [command.kind for command in world.mailbox.commands] == [CommandKind.CHECKPOINT]


def test_a_long_name_is_shortened_for_the_run_and_the_first_agent_knows_only_its_own():
    """The first job's agent reads the folder of its job's name, its successors that of the run."""
    name = "g" * 63
    world = World().adopt(name)
    run_id = world.runs.run_of(name)
    assert run_id != name
    agent = Agent(world, run=name, job=name)
    agent.hello()
    assert world.run(run_id).current.agent
    world.supervisor().handle(CommandReceived("c1", run_id, OperatorVerb.RESTART, "ada", ""))
    agent.commits(10)
    world.minutes(3)
    assert world.mailbox.commands[-1].run == run_id
    successor = Agent(world, run=run_id, attempt=2, job=f"{run_id}-a002")
    successor.hello()
    assert world.run(run_id).current.agent


def test_a_name_used_again_is_freed_of_what_was_asked_under_it(world, agent):
    """The old run's last command lies in the folder that the new job reads: it would fence it off."""
    world.sagemaker.fail("gpt", NODE_LOST)
    relaunched(world)
    world.sagemaker.end("gpt-a002", JobStatus.COMPLETED)
    world.minutes(2)
    del world.sagemaker.jobs["gpt"]
    world.clock.pass_by(timedelta(hours=1))
    world.adopt()
    assert (world.mailbox.commands[-1].run, world.mailbox.commands[-1].attempt) == ("gpt", 1)
    Agent(world).hello()
    (name,) = [name for name in world.runs.records if name != "gpt"]
    assert world.run(name).current.agent


# What the agent finds


def test_what_the_agent_finds_is_dealt_with_as_what_the_sweep_finds(world, agent):
    agent.finds(Finding(Kind.LOSS_SPIKE, Level.WARN, 505, 505, "loss 9.1, usual 2.3"))
    assert world.notice_titles(Severity.INFORM) == ["gpt: loss_spike (warning)"]
    agent.finds(Finding(Kind.DIVERGENCE, Level.INTERVENE, 520, 450, "loss 9.1 for 80 rows"))
    assert world.run().state is RunState.SAVING
    world.checkpoints.commit(step=521, reason=EMERGENCY, health=Health.SUSPECT)
    agent.commits(521)
    assert relaunched(world).current.resumed_from_step == 400


def test_a_stall_seen_by_the_agent_needs_no_second_signal(world, agent):
    """Not even a checkpoint that was committed in the background since speaks against it."""
    onset = world.clock()
    world.minutes(5)
    world.checkpoints.commit(step=505)
    agent.finds(Finding(Kind.STALL, Level.INTERVENE, 510, 510, "no step for 300 s", world.clock(), onset))
    assert world.run().state is RunState.STOPPING
    assert relaunched(world).incidents[0].kind == "stall"


# Reports that cannot be read


def test_an_unreadable_report_is_reported_once_for_each_defect(world, agent):
    """A run whose job has no key; with a key, they are one defect, the missing signature."""
    world.runs.save(replace(world.run(), requires_signature=False, version=world.run().version + 1), None, {})
    for number, text in enumerate([b"{", b"[]", b"{", b"", b"x" * 70_000, b"y" * 70_000]):
        key = make_report_key("gpt", f"bad-{number}")
        world.mailbox.put(key, text)
        agent.deliver(key)
    assert world.notice_titles(Severity.INFORM) == ["gpt: a report cannot be read"] * 3
    assert world.run().defects == ("json", "schema", "size")
    assert world.run().state is RunState.WATCHING
