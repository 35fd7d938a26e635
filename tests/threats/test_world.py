"""Metrics, tags and checkpoints that others have written: what they can make of a run, and what not."""

import json
from dataclasses import replace

import pytest

from rerail.decisions.quarantine import plan_moves
from rerail.messages.messages import CommandReceived, parse_message
from rerail.model.actions import QuarantineCheckpoints
from rerail.model.checkpoint_layouts import StoredObject
from rerail.model.checkpoints import read_manifest
from rerail.model.errors import BadManifest, BadMessage
from rerail.model.mailbox import ReportKind
from rerail.model.policy import Mode, OnAlarm
from rerail.model.run import RunState
from rerail.model.signals import OperatorVerb
from tests.fakes import BUCKET, DEFAULT, KEY, MIDNIGHT, Agent, World
from tests.threats.test_mailbox import MINUTE, beating


@pytest.mark.threat("T7")
def test_forged_metrics_do_not_steer_a_run_with_an_agent(world, agent):
    """Somebody publishes losses under the job's name, not finite and rising: the sealed heartbeats are believed."""
    world.checkpoints.save(step=40)
    for minute in range(30):
        at = world.clock()
        world.series.print("gpt", at, step=10.0 * minute, loss=1e6 * (minute + 1), nonfinite=1.0, count=5.0)
        agent.beats(10 * (1 + minute), loss=2.0)
        world.minutes(1)
    assert (world.run().state, world.run().incidents, world.notice_titles()) == (RunState.WATCHING, (), [])


@pytest.mark.threat("T7")
def test_a_run_without_an_agent_is_judged_by_its_metrics(world):
    """What remains: without one, whoever may publish under the job's name can have the run stopped, and told."""
    world.checkpoints.save(step=40)
    for minute in range(30):
        world.series.print("gpt", world.clock(), step=10.0 * minute, loss=2.0, nonfinite=1.0, count=5.0)
        world.minutes(1)
    assert world.run().incidents
    assert world.notice_titles()


@pytest.mark.threat("T7")
def test_metrics_under_another_jobs_name_are_another_jobs(world, agent):
    """A job's own log lines become metrics under its own name alone: those of others are not asked for."""
    beating(world, agent, 3)
    for minute in range(20):
        world.series.print("evil", world.clock(), step=10.0 * minute, loss=9e9, nonfinite=1.0, count=5.0)
        agent.beats(40 + 10 * minute, loss=2.0)
        world.minutes(1)
    assert not world.notice_titles()


@pytest.mark.threat("T6")
def test_who_tags_a_job_chooses_a_policy_and_nothing_else(world):
    """The tag names a policy that somebody has deployed; one that is not there, or no name at all, only observes."""
    world.policies.by_name["careful"] = replace(DEFAULT, name="careful", mode=Mode.APPROVE)
    for name, tag in (("mine", "careful"), ("odd", "../../switch"), ("long", "x" * 256)):
        world.adopt(name, policy=tag)
    assert [world.run(name).policy for name in ("mine", "odd", "long")] == ["careful", "default", "default"]
    assert [world.run(name).observe_only for name in ("mine", "odd", "long")] == [False, True, True]


@pytest.mark.threat("T18")
@pytest.mark.parametrize(
    "name", ["../../other/step-000000001/a", "/etc/passwd", "a/../../b", "..", "", "a\\..\\b", "a\x00"]
)
def test_a_manifest_names_nothing_outside_of_its_folder(name):
    """Whoever may write the bucket: such a checkpoint is none, and neither loaded nor resumed from."""
    manifest = {"schema": 1, "step": 7, "attempt": 1, "saved_at": "2026-01-31T03:00:00Z"}
    text = json.dumps({**manifest, "files": [{"name": name, "bytes": 1}]})
    with pytest.raises(BadManifest):
        read_manifest(text, uri="s3://bucket/gpt/step-000000007/manifest.json", sizes={name: 1})


@pytest.mark.threat("T18")
def test_what_is_quarantined_comes_from_the_runs_own_folder():
    """Keys as strange as S3 takes them: what is moved lies below the checkpoint folder, and goes below the quarantine
    of this run."""
    strange = [
        "../other/checkpoint-900/model.pt",
        "checkpoint-900/../../x",
        "checkpoint-900/model.pt",
        "checkpoint-901/%2e%2e/y",
    ]
    stored = [StoredObject(key, 10, MIDNIGHT, '"e"') for key in [*strange, "checkpoint-100/model.pt"]]
    action = QuarantineCheckpoints(
        "gpt", 1, "s3://bucket/teams/a/", 100, MIDNIGHT + MINUTE, strict=False, saved_after=MIDNIGHT
    )
    moves = plan_moves(stored, {}, action)
    assert moves
    for move in moves:
        assert move.source.key.startswith("teams/a/")
        assert move.target.startswith("rerail-quarantine/gpt/a001/")
        assert not move.copy_key or move.copy_key.startswith("teams/a/")


@pytest.mark.threat("T19")
def test_a_job_in_anothers_folder_changes_no_other_run(world, agent):
    """A stranger's supervised job names the run's checkpoint folder as its own. It resumes from there, as it could by
    itself; the other run's record, budget and job are not touched by what becomes of it."""
    world.checkpoints.save(step=50)
    before = world.run()
    world.adopt("parasite", uri=BUCKET)
    world.sagemaker.fail("parasite", "AlgorithmError: torch.OutOfMemoryError: CUDA out of memory., exit code: 1")
    beating(world, agent, 10)
    after = world.run()
    assert (after.state, after.attempts[0].job_name, after.ledger, after.incidents) == (
        RunState.WATCHING,
        "gpt",
        before.ledger,
        (),
    )
    assert world.run("parasite").state is not RunState.WATCHING
    assert world.checkpoints.saved[BUCKET]


@pytest.mark.threat("T20")
def test_a_job_spends_its_own_budgets_only(world, agent):
    """An agent that cries wolf: its run is relaunched within its policy, held at the end, and no other run notices."""
    world.adopt("calm", uri="s3://bucket/calm/")
    for _ in range(12):
        run = world.run()
        if run.state.is_end:
            break
        crier = Agent(world, attempt=run.current.number, job=run.current.job_name, reports=300, signing_key=KEY)
        crier.deliver(crier.files(ReportKind.HELLO))
        world.sagemaker.fail(run.current.job_name, "InternalServerError: We encountered an internal error.")
        world.minutes(30)
    assert world.run().state is RunState.HELD
    assert len(world.run().attempts) <= DEFAULT.limits.attempts
    assert (world.run("calm").state, len(world.run("calm").attempts)) == (RunState.WATCHING, 1)


@pytest.mark.threat("T10")
def test_a_command_contains_only_a_known_verb(world):
    """Whoever may put events on our bus can hold and stop; he can name no job, no role, no request and no file."""
    with pytest.raises(BadMessage):
        detail = {"verb": "create", "run": "gpt", "who": "eve", "request": {"RoleArn": "x"}}
        parse_message(json.dumps({"source": "rerail.operator", "id": "1", "detail": detail}))
    before = world.runs.request("gpt")
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.HOLD, "eve", "because"))
    assert world.run().state is RunState.HELD
    assert "eve said hold" in world.run().hold_reason
    assert world.runs.request("gpt") == before


def set_alarm(world: World, namespace: str, name: str = "evil", *, dimensions: str = "TrainingJobName") -> None:
    """Somebody's alarm on the run's job goes off."""
    metric = {"namespace": namespace, "name": "x", "dimensions": {dimensions: world.run().current.job_name}}
    detail = {
        "alarmName": name,
        "state": {"value": "ALARM", "reason": "because"},
        "configuration": {"metrics": [{"metricStat": {"metric": metric}}]},
    }
    world.supervisor().handle(parse_message(json.dumps({"source": "aws.cloudwatch", "detail": detail})))


def train_on(world: World, minutes: int = 40) -> None:
    """The newest attempt trains, and saves a newer checkpoint."""
    world.minutes(minutes)
    world.checkpoints.save(step=600 + 100 * world.checkpoints.count, attempt=world.run().current.number)
    world.minutes(2)


@pytest.mark.threat("T29")
@pytest.mark.parametrize("dimensions", ["TrainingJobName", "Host"])
def test_an_alarm_outside_of_sagemakers_namespace_restarts_nothing(dimensions):
    """It is shown, and so it is for one whose name is nearly in the policy; the named one restarts."""
    world = World().with_saves()
    world.policies.by_name["default"] = replace(DEFAULT, on_alarm=OnAlarm.RESTART, alarms=("loss-of-mine",))
    set_alarm(world, "Evil/Own", dimensions=dimensions)
    set_alarm(world, "", "Loss-of-mine", dimensions=dimensions)
    set_alarm(world, "/aws/sagemaker/TrainingJobs/", dimensions=dimensions)
    world.minutes(20)
    assert (world.run().state, len(world.run().attempts)) == (RunState.WATCHING, 1)
    assert [title for title in world.notice_titles() if title.startswith("gpt: alarm")] == ["gpt: alarm (warning)"]
    set_alarm(world, "Mine/Own", "loss-of-mine", dimensions=dimensions)
    train_on(world)
    assert world.run().current.number == 2


@pytest.mark.threat("T29")
@pytest.mark.parametrize("is_saving", [True, False], ids=["progress between", "no progress"])
def test_alarms_restart_a_run_three_times_a_day(is_saving):
    """Whatever the progress in between; then they are only shown, and never is the run held for one."""
    world = World().with_saves()
    world.policies.by_name["default"] = replace(DEFAULT, on_alarm=OnAlarm.RESTART)
    for number in range(12):
        set_alarm(world, "/aws/sagemaker/TrainingJobs", f"evil-{number}")
        train_on(world) if is_saving else world.minutes(20)
    assert world.run().state is RunState.WATCHING
    assert len(world.run().attempts) <= 4
    assert len(world.run().attempts) == 4 or not is_saving
    assert world.sagemaker.live() == [world.run().current.job_name]
    if is_saving:
        world.minutes(24 * 60)
        train_on(world)
        set_alarm(world, "/aws/sagemaker/TrainingJobs", "the next day")
        train_on(world)
        assert len(world.run().attempts) == 5
