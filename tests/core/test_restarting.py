"""Restart in place, told as timetables: the order is given, obeyed and heard of, or a relaunch takes its place."""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from rerail.decisions.decision import select_known
from rerail.decisions.in_place_restart import RestartTarget, choose_target, find_obstacle, on_processes_restarted
from rerail.decisions.remedies import Failure
from rerail.messages.messages import CommandReceived, FindingsReceived
from rerail.model.actions import Severity
from rerail.model.causes import Cause
from rerail.model.checkpoints import Health
from rerail.model.diagnosis import Diagnosis
from rerail.model.errors import CommandNotStored
from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Phase
from rerail.model.mailbox import LIMITS, Ability, Command, CommandKind, Report, ReportKind
from rerail.model.policy import InPlacePolicy, Mode, Policy
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import OperatorVerb
from tests.fakes import BUCKET, Agent, World

DIVERGED = (Kind.NON_FINITE, Kind.LOSS_SPIKE, Kind.DIVERGENCE, Kind.FROZEN_LOSS)
SAID = {Ability.SKIP, Ability.RATE, Ability.RESTART}


def report_of(cause: str = "user_code", error: str = "ValueError: x", step: int | None = 510) -> str:
    return json.dumps({"rerail": 1, "cause": cause, "error": error, "step": step, "rank": 0, "exit_code": 1})


@dataclass
class Job:
    """A job under our init: what its agent and its init say, as the restart that they owe their lives to."""

    world: World
    restart: int = 0
    attempt: int = 1
    name: str = "gpt"

    def __post_init__(self) -> None:
        self.agent = Agent(self.world, attempt=self.attempt, job=self.name, reports=1000 * self.restart)

    @property
    def order(self) -> Command:
        command = self.world.mailbox.commands[-1]
        assert (command.kind, command.attempt) == (CommandKind.RESTART, self.attempt)
        return command

    def report(self, kind: ReportKind, **facts) -> None:
        self.agent.deliver(self.agent.files(kind, restart=self.restart, **facts))

    def hello(self, *abilities: Ability) -> None:
        self.report(ReportKind.HELLO, abilities=tuple(abilities or sorted(SAID)))

    def finds(self, kind: Kind = Kind.NON_FINITE, *, onset: int = 450, step: int = 510) -> None:
        self.report(ReportKind.FINDINGS, findings=(Finding(kind, Level.INTERVENE, step, onset, f"since {onset}"),))

    def crashes(self, text: str = "") -> None:
        self.report(ReportKind.CRASHED, evidence=text or report_of())

    def restarts(self) -> "Job":
        """The old processes are gone, the new ones run."""
        order = self.order
        new = Job(self.world, restart=order.restart, attempt=self.attempt, name=self.name)
        new.report(ReportKind.RESTARTED, command=order.id)
        return new

    def steps(self, step: int) -> None:
        self.report(ReportKind.RESTARTED, step=step)

    def saves(self, step: int, **facts) -> None:
        self.world.checkpoints.commit(step=step, attempt=self.attempt, restart=self.restart, **facts)


@pytest.fixture
def job(world) -> Job:
    job = Job(world)
    job.hello()
    return job


def order(world: World):
    return world.run().current.in_place_restarts[-1]


# A loss that went wrong


@pytest.mark.parametrize("kind", DIVERGED)
def test_a_diverged_loss_is_rolled_back_within_the_job(world, job, kind):
    """62:00 found, the order is given; 62:10 the processes run again; 62:30 their first step: the same job goes on."""
    job.finds(kind)
    assert world.run().state is RunState.RESTARTING
    asked = job.order
    assert (asked.restart, asked.resume_step, asked.rate, asked.skip_samples) == (1, 400, 1.0, "")
    assert asked.deadline == world.clock() + Policy().restart.deadline
    world.clock.pass_by(timedelta(seconds=10))
    job = job.restarts()
    assert world.run().state is RunState.WATCHING
    assert world.reasons()[-1] == "restart 1 in place: the training processes run again, after 10 s"
    world.clock.pass_by(timedelta(seconds=20))
    job.steps(401)
    assert world.reasons()[-1] == "restart 1 in place: step 401 is done, 30 s after the order"
    world.minutes(5)
    assert world.run().open_incident is not None, "a checkpoint from after the onset does not end the incident"
    job.saves(500)
    world.minutes(3)
    run = world.run()
    assert (run.state, run.current.number, run.current.restart) == (RunState.WATCHING, 1, 1)
    assert (run.incidents[0].recovered, run.incidents[0].resume_step, run.incidents[0].onset_step) == (True, 400, 450)
    assert run.incidents[0].actions == ("restart",)
    assert list(world.sagemaker.jobs) == ["gpt"]
    assert [notice.severity for notice in world.bus.notices] == [Severity.INFORM] * 2


def test_the_first_step_of_a_restart_is_recorded_although_the_job_has_ended(world, job):
    """Events of jobs and reports have queues of their own."""
    job.finds()
    job = job.restarts()
    world.clock.pass_by(timedelta(seconds=30))
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    world.minutes(2)
    ended = world.run()
    assert (ended.state, order(world).stepped_at) == (RunState.COMPLETED, None)
    job.steps(401)
    assert (order(world).first_step, order(world).stepped_at) == (401, ended.current.ended_at)
    assert world.run().state is RunState.COMPLETED


def test_a_rollback_within_an_older_incident_is_the_incident_from_then_on(world, job):
    """The node was lost before anything else was saved: what the second job saved since the onset is no progress."""
    world.lose_node(minutes=5)
    second = Job(world, attempt=2, name="gpt-a002")
    second.hello()
    second.finds(onset=505, step=510)
    incident = world.run().open_incident
    assert (incident.attempt, incident.restart, incident.resume_step, incident.onset_step) == (2, 0, 500, 505)
    second.saves(508)
    world.minutes(2)
    assert world.run().open_incident is not None
    second = second.restarts()
    second.finds(onset=503, step=512)
    assert world.run().open_incident.onset_step == 503


def test_checkpoints_of_the_restarted_processes_are_clean(world, job):
    job.finds()
    job = job.restarts()
    job.saves(500)
    world.minutes(2)
    world.lose_node(minutes=5)
    assert (world.run().current.number, world.run().current.resumed_from_step) == (2, 500)


def test_tainted_checkpoints_stay_tainted_for_a_successor(world, job):
    """The order is obeyed, and then the node is lost: step 500 of the old processes is still not to be trusted."""
    job.finds()
    job.restarts()
    world.lose_node(minutes=5)
    assert (world.run().current.number, world.run().current.resumed_from_step) == (2, 400)


def test_nothing_before_the_onset_is_a_start_from_scratch(world, job):
    """A job that alone can read the checkpoints takes any before the onset."""
    job.finds(onset=50)
    assert job.order.resume_step == 0
    assert "in place, from the start" in world.reasons()[-1]
    failure = Failure(Diagnosis(Cause.DIVERGED, "", "", ""), 510, None, world.clock())
    unseen = replace(world.run(), checkpoint_uri="")
    assert [choose_target(unseen, failure, onset).resume_step for onset in (450, 0, None)] == [449, 0, 0]


@pytest.mark.parametrize("kind", [Kind.THROUGHPUT_DROP, Kind.STALL, Kind.STARTUP_STALL])
def test_what_may_be_the_machines_fault_wants_other_machines(world, job, kind):
    job.finds(kind)
    assert world.run().state in (RunState.SAVING, RunState.STOPPING)
    assert not [c for c in world.mailbox.commands if c.kind is CommandKind.RESTART]


def test_a_policy_may_forbid_it(world, job):
    world.policies.by_name["default"] = Policy(restart=InPlacePolicy(in_place=False))
    job.finds()
    assert world.run().state is RunState.SAVING


def test_observe_mode_restarts_nothing(world, job):
    world.policies.by_name["default"] = Policy(mode=Mode.OBSERVE)
    job.finds()
    job.crashes()
    assert (world.run().state, world.run().current.in_place_restarts) == (RunState.WATCHING, ())
    assert [c.kind for c in world.mailbox.commands] == [CommandKind.TRAIN]  # so that init does not wait


# When it does not help


@pytest.mark.parametrize("mode", [Mode.PAUSE, Mode.OBSERVE, Mode.APPROVE])
def test_an_order_that_was_not_posted_is_not_given_in_another_mode(world, job, mode):
    """S3 did not take the order; its deadline passes, and the stop that would follow is deferred or withdrawn."""
    world.mailbox.closed = True
    with suppress(CommandNotStored):
        job.finds()
    assert (world.run().state, order(world).approved_by) == (RunState.RESTARTING, "")
    world.mailbox.closed = False
    world.policies.by_name["default"] = Policy(mode=mode)
    world.minutes(30)
    assert CommandKind.RESTART not in [command.kind for command in world.mailbox.commands]
    assert world.run().state is (RunState.SAVING if mode is Mode.PAUSE else RunState.WATCHING)
    assert world.sagemaker.live() == ["gpt"]


def test_each_rung_of_the_ladder_is_climbed_in_place(world, job):
    """The loss diverges again before a save, and the next rung is tried on the same machines.

    The finding is equal to the first, and is not taken for a repeated report."""
    job.finds()
    job = job.restarts()
    world.clock.pass_by(timedelta(seconds=40))
    job.finds()
    assert (job.order.restart, job.order.resume_step, job.order.rate) == (2, 400, 0.9)
    assert (world.run().current.rate, len(world.run().incidents)) == (0.9, 1)


def test_a_relaunch_is_tried_before_a_human_is_asked(world):
    """The script can neither skip nor slow down; the replay in place has not helped; a new job's replay is the last."""
    job = Job(world)
    job.hello(Ability.RESTART)
    job.finds()
    job = job.restarts()
    job.finds(onset=455, step=520)
    assert world.run().state is RunState.SAVING
    assert "nothing has helped in place, so other machines are tried" in world.reasons()[-1]
    world.minutes(18)
    assert (world.run().current.number, world.run().current.resumed_from_step) == (2, 400)
    second = Job(world, attempt=2, name="gpt-a002")
    second.hello(Ability.RESTART)
    second.finds(onset=455, step=521)
    assert world.run().state is RunState.HELD


def test_the_same_finding_after_progress_is_another_incident(world, job):
    job.finds()
    job = job.restarts()
    job.saves(500)
    job.saves(600)
    world.minutes(2)
    job.finds(onset=650, step=700)
    assert (world.run().state, job.order.restart, job.order.resume_step) == (RunState.RESTARTING, 2, 600)
    assert [i.number for i in world.run().incidents] == [1, 2]


def test_an_attempt_has_only_so_many(world, job):
    world.policies.by_name["default"] = Policy(restart=InPlacePolicy(per_attempt=2))
    for step in (500, 5000):
        job.finds(onset=step - 50, step=step)
        job = job.restarts()
        job.saves(10 * step)
        world.minutes(2)
    job.finds(onset=60_000, step=60_010)
    assert world.run().state is RunState.SAVING
    assert len(world.run().current.in_place_restarts) == 2


@pytest.mark.parametrize("hears", [True, False])
def test_an_unanswered_restart_ends_in_a_relaunch(world, job, hears):
    job.finds()
    if hears:
        job.report(ReportKind.ACKNOWLEDGED, command=job.order.id)
    world.minutes(4)
    assert world.run().state is RunState.RESTARTING
    world.minutes(4)
    run = world.run()
    assert (run.state, run.current.number, run.current.resumed_from_step) == (RunState.WATCHING, 2, 400)
    assert run.attempts[0].in_place_restarts[0].failed == "no report of the restart in place arrived within 5 min"
    assert run.ledger.charges == {Cause.DIVERGED: 1}, "charged once"


def test_an_approval_of_a_restart_covers_the_stop_after_it_fails(world, job):
    """One answer is enough: the job is stopped, and relaunched, by the same approval."""
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE)
    job.finds()
    assert not world.run().current.in_place_restarts
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.APPROVE, "ada", "", world.run().proposal.id))
    assert order(world).approved_by == "ada"
    world.minutes(10)
    run = world.run()
    assert run.current.number == 2 and run.current.approved_by == "ada"


def test_one_refusal_by_an_init_is_enough(world, job):
    job.finds()
    asked = job.order
    job.restarts()
    other = Job(world)
    other.agent.reports = 50
    other.report(ReportKind.REFUSED, command=asked.id, reason="2 processes do not end")
    assert "cannot restart it in place (2 processes do not end)" in world.reasons()[-1]
    world.minutes(2)
    assert (world.run().current.number, world.run().current.resumed_from_step) == (2, 400)


def test_a_refusal_after_the_first_step_comes_too_late(world, job):
    job.finds()
    asked = job.order
    new = job.restarts()
    new.steps(401)
    job.report(ReportKind.REFUSED, command=asked.id, reason="late")
    assert world.run().state is RunState.WATCHING


# Words that are late, lost, repeated, or somebody else's


def test_any_report_of_the_new_processes_proves_that_they_run(world, job):
    job.finds()
    Job(world, restart=1).hello()
    assert world.run().state is RunState.WATCHING
    world.minutes(10)
    assert (world.run().current.number, world.run().current.restart) == (1, 1)


def test_reports_of_the_old_processes_prove_nothing(world, job):
    job.finds()
    job.hello()
    job.finds(Kind.DIVERGENCE)
    assert world.run().state is RunState.RESTARTING
    assert len(world.run().current.in_place_restarts) == 1


def test_what_the_old_processes_found_is_no_news_of_the_new_ones(world, job):
    """Their last report comes late."""
    job.finds()
    job.restarts()
    before = world.run()
    job.finds(Kind.DIVERGENCE)
    found = Finding(Kind.FROZEN_LOSS, Level.INTERVENE, 510, 450, "by the metrics", at=order(world).restarted_at)
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (found,)))
    assert world.run() == before


def test_reports_after_a_sagemaker_restart_count(world, job):
    """Its processes know of no order, and are no less watched for that."""
    job.finds()
    job.restarts()
    job.restarts().saves(500)
    world.minutes(2)
    for secondary in ("Restarting", "Training"):
        world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], secondary=secondary)
        world.minutes(1)
    anew = Job(world)
    anew.agent.reports = 200
    anew.finds(onset=550, step=560)
    assert world.run().state is RunState.RESTARTING
    assert anew.order.restart == 2


def test_what_a_container_saves_after_sagemaker_restarted_it_is_sound(world, job):
    """It counts its restarts anew, from 0: what its first processes saved as such was rolled back, this was not."""
    job.finds()
    job.restarts()
    world.minutes(2)
    for secondary in ("Restarting", "Training"):
        world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], secondary=secondary)
        world.minutes(1)
    anew = Job(world)
    anew.saves(600)
    world.minutes(2)
    assert world.run().open_incident is None, "that is progress"
    world.lose_node(minutes=5)
    assert (world.run().current.number, world.run().current.resumed_from_step) == (2, 600)
    assert [c.health for c in select_known(world.run(), world.checkpoints.saved[BUCKET]) if c.step == 500] == [
        Health.QUARANTINED
    ]


def test_a_job_that_sagemaker_itself_restarts_is_given_time_to_find_the_order(world, job):
    """Its machine broke before the order was read; half an hour later the new container's init obeys."""
    job.finds()
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], secondary="Restarting")
    world.minutes(30)
    assert world.run().state is RunState.RESTARTING
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], secondary="Training")
    world.minutes(1)
    job.restarts()
    assert (world.run().state, world.run().current.number) == (RunState.WATCHING, 1)


def test_the_detectors_start_fresh_for_the_new_processes(world, job):
    """The detectors begin afresh where the processes do, and startup is no stall."""
    for step in (500, 505):
        job.agent.beats(step)
        world.minutes(1)
    job.finds()
    job.restarts().agent.beats(None, Phase.STARTUP, restart=1)
    world.minutes(1)
    (memory,) = world.memories.recall(["gpt"]).values()
    assert (memory.restart, memory.cursor.step, memory.rows) == (1, 400, 0)
    assert memory.detectors.liveness.phase in (Phase.CAPACITY, Phase.STARTUP)


# Humans


def test_a_stop_that_is_under_way_is_not_taken_for_ours(world, job):
    job.finds()
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], status=JobStatus.STOPPING)
    world.minutes(8)
    assert world.run().stop is None
    world.sagemaker.end("gpt", JobStatus.STOPPED)
    world.minutes(2)
    assert world.run().state is RunState.STOPPED


@pytest.mark.parametrize(
    ("verb", "ends"), [(OperatorVerb.STOP, RunState.STOPPED), (OperatorVerb.RESTART, RunState.WATCHING)]
)
def test_an_operator_wins(world, job, verb, ends):
    """Nothing has been heard yet; the wish takes the order's place in the mailbox, and an answer comes too late."""
    job.finds()
    world.supervisor().handle(CommandReceived("c1", "gpt", verb, "ada", ""))
    assert (world.run().state, world.mailbox.commands[-1].kind) == (RunState.SAVING, CommandKind.CHECKPOINT)
    Job(world, restart=1).hello()
    assert world.run().state is RunState.SAVING
    world.minutes(18)
    assert world.run().state is ends
    assert world.sagemaker.jobs["gpt"].status is JobStatus.STOPPED


def test_a_hold_cancels_the_restart(world, job):
    job.finds()
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.HOLD, "ada", ""))
    assert (world.run().state, world.mailbox.commands[-1].kind) == (RunState.HELD, CommandKind.TRAIN)
    world.minutes(10)
    assert world.sagemaker.live() == ["gpt"]


# A crash that the container outlives


def test_a_crash_is_restarted_within_the_job(world, job):
    job.crashes()
    run = world.run()
    assert (run.state, run.ledger.charges) == (RunState.RESTARTING, {Cause.USER_CODE: 1})
    assert (job.order.restart, job.order.resume_step) == (1, None)
    world.clock.pass_by(timedelta(seconds=8))
    job.saves(520)  # by the process that has died: no progress
    job = job.restarts()
    job.steps(501)
    world.minutes(1)
    assert world.run().open_incident
    job.saves(600)
    world.minutes(2)
    run = world.run()
    assert (run.state, run.current.number) == (RunState.WATCHING, 1)
    assert (run.incidents[0].kind, run.incidents[0].recovered, run.incidents[0].onset_step) == ("crashed", True, None)


@pytest.mark.parametrize("has_onset", [False, True], ids=["a-crash", "a-rollback"])
def test_a_script_with_manifests_of_its_own_makes_progress_after_a_crash(world, has_onset):
    """They do not say which processes saved what: after a rollback it may be those that went wrong."""
    job = Job(world)
    job.hello()
    (job.finds if has_onset else job.crashes)()
    job.restarts()
    world.minutes(1)
    world.checkpoints.commit(step=600)
    world.minutes(2)
    assert world.run().incidents[0].recovered is not has_onset


@pytest.mark.parametrize(
    ("ordered", "aim", "resume_step", "obstacle"),
    [
        ({}, {}, 400, "the same restart in place has not helped"),
        ({}, {"before_step": 440}, 400, "the same restart in place has not helped"),
        ({}, {"rate": 0.9}, 400, ""),
        ({}, {"skip_samples": "9" * LIMITS["skip_samples"]}, 400, ""),
        ({}, {"skip_samples": "9" * (LIMITS["skip_samples"] + 1)}, 400, "too many for an order"),
        ({}, {}, 401, ""),  # there was progress since
        ({"failed": "no answer"}, {}, 400, "the restart in place before this one failed (no answer)"),
    ],
)
def test_only_another_restart_than_the_last_is_tried_without_progress(world, job, ordered, aim, resume_step, obstacle):
    job.finds()
    run = world.run()
    run = replace(run, attempts=(replace(run.current, in_place_restarts=(replace(order(world), **ordered),)),))
    failure = Failure(Diagnosis(Cause.DIVERGED, "", "", ""), 510, resume_step, world.clock())
    found = find_obstacle(run, failure, replace(RestartTarget(400, 450, "", 1.0), **aim), Policy())
    assert obstacle in found and bool(obstacle) == bool(found)
    # What runs again after its restart was given up is stopped: its failure is not charged twice.
    late = Report("r1", "gpt", 1, "gpt", ReportKind.RESTARTED, world.clock(), restart=1)
    assert (on_processes_restarted(run, late, at=world.clock()).run == run) is ("failed" in ordered)


def test_a_crash_is_left_to_people_where_the_policy_asks_for_an_approval(world, job):
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE)
    job.crashes()
    assert world.mailbox.commands[-1].kind is CommandKind.TRAIN
    assert "not restarted in place (nothing is done without a human)" in world.reasons()[-1]


@pytest.mark.parametrize("cause", ["oom", "hardware", "unknown"])
def test_a_crash_that_a_restart_cannot_fix_ends_the_job(world, job, cause):
    """Who waits is told at once; the failure of the job is judged as ever, and charged once."""
    job.crashes(report_of(cause, "Killed" if cause == "unknown" else cause))
    assert (world.run().state, world.mailbox.commands[-1].kind) == (RunState.WATCHING, CommandKind.TRAIN)
    assert world.run().ledger.charges == {}
    world.sagemaker.fail("gpt", f"AlgorithmError: {report_of(cause, cause)}")
    world.minutes(3)
    assert sum(world.run().ledger.charges.values()) == 1


@pytest.mark.parametrize("cause", ["infrastructure", "hang"])
def test_a_lost_peer_alone_restarts_nothing(world, job, cause):
    """The ranks of another machine miss it first; then the report of that machine comes, and both restart."""
    job.crashes(report_of(cause, "RuntimeError: gloo: Connection closed by peer"))
    assert (world.run().state, world.mailbox.commands) == (RunState.WATCHING, [])
    job.crashes()
    assert world.run().state is RunState.RESTARTING


def test_the_second_machines_report_of_a_crash_changes_nothing(world, job):
    job.crashes()
    job.crashes()
    assert len(world.run().current.in_place_restarts) == 1
    assert world.run().ledger.charges == {Cause.USER_CODE: 1}


def test_the_same_error_at_the_same_step_again_is_for_a_human(world, job):
    """In place once, never twice: it is deterministic."""
    job.crashes()
    job = job.restarts()
    job.crashes()
    assert world.mailbox.commands[-1].kind is CommandKind.TRAIN
    assert "the same error at step 510 before and after a restart in place" in world.reasons()[-1]
    world.sagemaker.fail("gpt", f"AlgorithmError: {report_of()}")
    world.minutes(1)
    run = world.run()
    assert run.state is RunState.HELD
    assert "the same error at step 510" in run.hold_reason


def test_a_job_that_ends_instead_of_restarting_is_charged_once(world, job):
    """The init's patience was at an end before it read the order."""
    job.crashes()
    world.sagemaker.fail("gpt", f"AlgorithmError: {report_of()}, exit code: 1")
    world.minutes(2)
    run = world.run()
    assert (run.state, run.current.number, run.current.resumed_from_step) == (RunState.WATCHING, 2, 500)
    assert run.ledger.charges == {Cause.USER_CODE: 1}


def test_a_job_that_ends_of_something_else_instead_is_judged_for_that(world, job):
    job.finds()
    world.lose_node(minutes=3)
    run = world.run()
    assert run.ledger.charges == {Cause.DIVERGED: 1, Cause.INFRASTRUCTURE: 1}
    assert (run.current.number, run.current.resumed_from_step) == (2, 400)


def test_a_crash_is_no_agent(world):
    """A script without one is restarted too; it is not asked for checkpoints that it cannot save."""
    init = Job(world)
    init.crashes()
    assert (world.run().state, world.run().current.agent) == (RunState.RESTARTING, False)
    init.restarts()
    assert (world.run().state, world.run().current.agent) == (RunState.WATCHING, False)


def test_a_crash_while_the_job_is_being_stopped_changes_nothing(world, job):
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.STOP, "ada", ""))
    job.crashes()
    assert world.run().state is RunState.SAVING
    world.sagemaker.fail("gpt", f"AlgorithmError: {report_of()}")
    world.minutes(1)
    assert world.run().state is RunState.STOPPED


# Whatever happens


def test_suspect_saves_of_the_old_processes_stay_suspect(world, job):
    """Also where their own manifest calls them clean."""
    job.finds()
    job.restarts().saves(450, health=Health.SUSPECT)
    world.minutes(5)
    assert world.run().open_incident is not None
