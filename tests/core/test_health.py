"""What is learnt of a save after it was made: an onset makes later ones suspect, a mended loss clears them again."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.decisions import checkpoint_health
from rerail.decisions.checkpoint_health import assess_health, find_newest_resumable, with_health
from rerail.messages.messages import FindingsReceived, JobStateChanged
from rerail.model.checkpoints import Checkpoint, Health
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import ReportKind
from rerail.model.run import Attempt, Run, RunState
from tests.core.failures import NODE_LOST
from tests.examples import count_examples
from tests.fakes import BUCKET, MIDNIGHT, Agent, World

SPIKE = Kind.LOSS_SPIKE


def save(step: int, attempt: int = 1, **facts) -> Checkpoint:
    return Checkpoint(f"{BUCKET}step-{step:09d}/", step, attempt, MIDNIGHT, **facts)


@pytest.fixture
def world() -> World:
    """A run that has trained for an hour, with clean checkpoints at steps 100 to 500, and an agent in it."""
    world = World().adopt()
    Agent(world).hello()
    for step in range(100, 501, 100):
        world.minutes(10)
        world.checkpoints.commit(step=step)
    return world


def report_finding(world: World, level: Level, *, onset: int | None, step: int | None, kind: Kind = SPIKE) -> None:
    finding = Finding(kind, level, step, onset, "the loss jumped")
    world.supervisor().handle(FindingsReceived("gpt", world.run().current.job_name, (finding,)))


def health_of(world: World, step: int) -> tuple[Health, str]:
    run = world.run()
    (checkpoint,) = (c for c in world.checkpoints.list_checkpoints(run.checkpoint_uri) if c.step == step)
    return assess_health(run, checkpoint)


def lose_node(world: World) -> int | None:
    """The node is lost; where the next attempt begins."""
    world.lose_node(world.run().current.job_name, minutes=3)
    return world.run().current.resumed_from_step


def test_from_the_warning_on_what_is_saved_is_suspect(world):
    report_finding(world, Level.WARN, onset=450, step=510)
    world.checkpoints.commit(step=600)
    assert health_of(world, 400) == (Health.CLEAN, "")
    for step in (500, 600):
        assert health_of(world, step) == (
            Health.SUSPECT,
            "saved after the loss had gone wrong at step 450 (loss_spike: the loss jumped)",
        )
    assert lose_node(world) == 400


def test_a_loss_that_recovers_makes_checkpoints_clean_again(world):
    """What was saved in the spike, by its own manifest suspect, too."""
    report_finding(world, Level.WARN, onset=450, step=455)
    world.checkpoints.commit(step=460, health=Health.SUSPECT)
    report_finding(world, Level.RECOVERED, onset=450, step=470)
    world.checkpoints.commit(step=600)
    world.checkpoints.commit(step=610, health=Health.SUSPECT)
    assert health_of(world, 460)[0] is Health.CLEAN
    assert "had recovered by step 470" in health_of(world, 460)[1]
    assert health_of(world, 600) == (Health.CLEAN, "")
    assert health_of(world, 610)[0] is Health.SUSPECT, "of what came later nobody has said that it is over"
    assert lose_node(world) == 600
    assert "loss_spike (over)" in [notice.title.removeprefix("gpt: ") for notice in world.bus.notices]


def test_where_nothing_is_clean_a_suspect_one_is_better_than_the_start(world):
    """It may be sound; a quarantined one never is taken."""
    report_finding(world, Level.WARN, onset=50, step=510)
    assert lose_node(world) == 500


def test_what_is_rolled_back_is_never_resumed_from(world):
    report_finding(world, Level.INTERVENE, onset=50, step=510)
    world.minutes(20)
    assert world.run().current.resumed_from_step is None
    assert health_of(world, 500)[0] is Health.QUARANTINED
    assert lose_node(world) is None


def report_unloadable(
    world: World, kind: ReportKind, step: int, *, saved_by: int | None = 1, reason: str = "bad magic"
) -> str:
    """The agent of the current attempt could not restore a checkpoint; the report's key."""
    run = world.run()
    agent = Agent(world, attempt=run.current.number, job=run.current.job_name, reports=len(world.mailbox.objects))
    key = agent.files(kind, step=step, saved_by=saved_by, reason=reason)
    agent.deliver(key)
    return key


def test_what_cannot_be_loaded_once_is_suspect_and_twice_is_quarantined(world):
    """The same report heard again is no second failure."""
    key = report_unloadable(world, ReportKind.UNLOADED, 500)
    for _ in range(2):
        Agent(world).deliver(key)
    assert health_of(world, 500)[0] is Health.SUSPECT
    assert lose_node(world) == 400
    report_unloadable(world, ReportKind.UNLOADED, 500)
    assert health_of(world, 500) == (Health.QUARANTINED, "it could not be loaded, twice: bad magic")
    assert health_of(world, 400)[0] is Health.CLEAN
    assert [n.title for n in world.bus.notices if "checkpoint" in n.title] == [
        "gpt: a checkpoint is suspect",
        "gpt: a checkpoint is quarantined",
    ]


def test_what_a_job_saves_after_sagemaker_restarted_it_is_another_matter(world):
    """It went on from a clean checkpoint: the trouble before is not its own."""
    report_finding(world, Level.WARN, onset=450, step=510)
    for secondary in ("Interrupted", "Training"):
        world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], secondary=secondary)
        world.minutes(2)
    world.checkpoints.commit(step=510)
    assert (health_of(world, 500)[0], health_of(world, 510)[0]) == (Health.SUSPECT, Health.CLEAN)
    report_finding(world, Level.WARN, onset=505, step=520)
    assert health_of(world, 510)[0] is Health.SUSPECT
    report_finding(world, Level.RECOVERED, onset=505, step=530)
    assert (health_of(world, 500)[0], health_of(world, 510)[0]) == (Health.SUSPECT, Health.CLEAN)


def test_a_report_that_comes_after_the_jobs_end_counts_too(world):
    """The job that could not load it is over by then, and its successor waits with the same step."""
    agent = Agent(world, reports=500)
    world.sagemaker.fail("gpt", NODE_LOST)
    world.supervisor().handle(JobStateChanged("gpt"))
    assert world.run().current.resumed_from_step == 500
    agent.deliver(agent.files(ReportKind.DAMAGED, step=500, saved_by=1, reason="x"))
    world.minutes(5)
    assert world.sagemaker.requests["gpt-a002"]["Environment"]["RERAIL_RESUME_STEP"] == "400"


def test_a_finding_during_a_stop_labels_the_checkpoints(world):
    """Nothing more is decided then, but what it says of the saves is true."""
    report_finding(world, Level.INTERVENE, kind=Kind.THROUGHPUT_DROP, onset=480, step=500)
    assert world.run().state is RunState.SAVING
    report_finding(world, Level.WARN, onset=450, step=510)
    assert world.run().state is RunState.SAVING
    assert health_of(world, 500)[0] is Health.SUSPECT


def run_of(attempts: int) -> Run:
    return Run(
        "gpt",
        "default",
        RunState.WATCHING,
        MIDNIGHT,
        tuple(Attempt(n, f"a{n}") for n in range(1, attempts + 1)),
        BUCKET,
    )


kinds = st.sampled_from([SPIKE, Kind.DIVERGENCE, Kind.NON_FINITE, Kind.FROZEN_LOSS, Kind.STALL])
stories = st.lists(st.tuples(kinds, st.sampled_from(Level), st.integers(0, 300), st.integers(0, 60)), max_size=150)
steps = st.lists(st.integers(0, 400), min_size=1, max_size=8)


@settings(max_examples=count_examples(100))
@given(stories, steps)
def test_labels_are_bounded_and_no_suspect_checkpoint_becomes_clean(events, saved):
    """A save after an onset of which nobody has said that it is over stays suspect; labels have a bound."""
    run, open_since = run_of(1), {}
    for kind, level, onset, length in events:
        finding = Finding(kind, level, onset + length, onset, "said")
        run = checkpoint_health.with_findings(run, [finding])
        if level in checkpoint_health.RESOLVED_LEVELS:
            open_since = {k: s for k, s in open_since.items() if k is not kind or s > onset + length}
        elif kind is not Kind.STALL:
            open_since[kind] = min(onset, open_since.get(kind, onset))
    assert len(run.labels) <= checkpoint_health.MAX_LABELS
    for step in saved:
        is_open = any(since <= step for since in open_since.values())
        assert not is_open or assess_health(run, save(step))[0] is not Health.CLEAN
    checkpoints = [save(step) for step in saved]
    assert with_health(run, with_health(run, checkpoints)) == with_health(run, checkpoints)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(Health), st.booleans()), max_size=8))
def test_the_one_to_resume_from_is_whole_and_clean_before_it_is_new(saves):
    found = find_newest_resumable([save(step, health=h, missing=() if whole else ("x",)) for step, h, whole in saves])
    clean = [step for step, h, whole in saves if whole and h is Health.CLEAN]
    suspect = [step for step, h, whole in saves if whole and h is Health.SUSPECT]
    assert (found.step if found else None) == max(clean, default=max(suspect, default=None))


@pytest.mark.parametrize(
    ("step", "health"), [(499, Health.CLEAN), (500, Health.QUARANTINED), (501, Health.QUARANTINED)]
)
def test_a_rollback_quarantines_what_was_saved_at_the_onset(world, step, health):
    """The loss of the onset's own step is already wrong."""
    run = world.run()
    run = replace(run, attempts=(replace(run.current, onset_step=500),))
    assert assess_health(run, save(step))[0] is health
