"""The ladder for a loss that does not mend: each rung in its turn, from before the onset; what it skips stays so."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.decisions import rollback_ladder
from rerail.decisions.remedies import Hold
from rerail.decisions.rollback_ladder import RollbackPlan, Rung, plan_rollback, with_rung_taken
from rerail.messages.messages import CommandReceived, FindingsReceived, JobStateChanged
from rerail.model import skipped_samples
from rerail.model.actions import Severity
from rerail.model.checkpoints import Checkpoint, Health
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import ReportKind
from rerail.model.policy import Ladder, Policy, PolicyError, Retries, parse_policy
from rerail.model.run import Attempt, Run, RunState
from rerail.model.signals import OperatorVerb
from tests.core.failures import NODE_LOST
from tests.examples import count_examples
from tests.fakes import BUCKET, MIDNIGHT, Agent, World

BATCH = 16
BOTH = ("skip", "rate")
RUNGS = list(Rung)


def saves(*steps: int, attempt: int = 1, batch: int = BATCH, **facts) -> list[Checkpoint]:
    known = {"consumed_samples": None} if not batch else {}
    return [
        Checkpoint(f"{BUCKET}step-{s:09d}/", s, attempt, MIDNIGHT, **{"consumed_samples": s * batch, **facts, **known})
        for s in sorted(steps, reverse=True)
    ]


def run_at(attempt: int = 1, *, abilities: tuple[str, ...] = BOTH, resumed: int | None = None) -> Run:
    attempts = [Attempt(n, f"gpt-a{n:03d}", abilities=abilities) for n in range(1, attempt + 1)]
    attempts[-1] = replace(attempts[-1], resumed_from_step=resumed)
    return Run("gpt", "default", RunState.WATCHING, MIDNIGHT, tuple(attempts), BUCKET)


def next_attempt(run: Run, planned: RollbackPlan, onset: int) -> Run:
    """The next attempt, launched on this rung; it says what it can do as the one before did."""
    before = run.current
    attempt = Attempt(before.number + 1, "gpt-next", abilities=before.abilities, resumed_from_step=planned.resume_step)
    return with_rung_taken(replace(run, attempts=(*run.attempts, attempt)), planned, onset, at=MIDNIGHT)


def take_all_rungs(
    run: Run, onset: int, checkpoints: list[Checkpoint], policy: Policy
) -> tuple[list[RollbackPlan], Hold]:
    """The trouble comes again at the same step whatever is done."""
    plans: list[RollbackPlan] = []
    while isinstance(planned := plan_rollback(run, onset, checkpoints, policy), RollbackPlan):
        plans.append(planned)
        run = next_attempt(run, planned, onset)
    return plans, planned


def test_the_rungs_come_in_their_order_and_then_a_human():
    """Replay, skip 200 batches, skip 500 from farther back, a tenth off the learning rate; each once."""
    plans, hold = take_all_rungs(run_at(), 1_000, saves(*range(100, 1_101, 100)), Policy())
    assert [plan.rung for plan in plans] == RUNGS
    assert [plan.resume_step for plan in plans] == [900, 900, 800, 800]
    assert [plan.skip_samples for plan in plans] == ["", "14400-17599", "14400-23183", "14400-23183"]
    assert [plan.rate for plan in plans] == [1.0, 1.0, 1.0, 0.9]
    assert "the loss went wrong again at step 1000 after replay in attempt 2, skip in attempt 3" in hold.why


@pytest.mark.parametrize("consumed", [10**14 - 1, 10**20, 9 * 10**4299], ids=["most", "20 digits", "4300 digits"])
def test_a_manifest_that_counts_too_many_samples_skips_none(consumed):
    """Their ids would be more than the text of a launch can hold, which no later decision could read."""
    checkpoints = [*saves(900, consumed_samples=consumed), *saves(500, 800)]
    plans, _ = take_all_rungs(run_at(), 1_000, checkpoints, Policy())
    assert [plan.rung for plan in plans] == [Rung.REPLAY, Rung.RATE]


def test_the_skipped_batches_are_around_the_onset():
    """The samples of 200 steps: the 100 before step 1000, and the 100 from it on."""
    planned = next_attempt(run_at(), plan_rollback(run_at(), 1_000, saves(500, 800, 850), Policy()), 1_000)
    skip = plan_rollback(planned, 1_000, saves(500, 800, 850), Policy())
    ((first, last),) = skipped_samples.parse_ranges(skip.skip_samples)
    assert (first, last + 1) == ((1_000 - 1 - 100) * BATCH, (1_000 - 1 + 100) * BATCH)


def test_nothing_before_the_checkpoint_is_skipped():
    """It has been trained on: as many batches are skipped behind it instead."""
    near = Policy(ladder=Ladder(margin_steps=10))
    run = next_attempt(run_at(), plan_rollback(run_at(), 1_000, saves(980), near), 1_000)
    ((first, last),) = skipped_samples.parse_ranges(plan_rollback(run, 1_000, saves(980), near).skip_samples)
    assert (first, last + 1 - first) == (980 * BATCH, 200 * BATCH)


def test_a_trouble_far_beyond_starts_with_a_replay_and_keeps_what_is_skipped():
    saved = saves(*range(100, 3_001, 100))
    run = run_at()
    for _ in RUNGS:
        run = next_attempt(run, plan_rollback(run, 1_000, saved, Policy()), 1_000)
    fresh = plan_rollback(run, 2_000, saved, Policy())
    assert (fresh.rung, fresh.resume_step) == (Rung.REPLAY, 1_900)
    assert (fresh.skip_samples, fresh.rate) == (run.current.skip_samples, 0.9)
    within = plan_rollback(run, 1_500, saved, Policy())
    assert isinstance(within, Hold), "500 steps beyond it is the same trouble"


def test_a_trouble_in_the_same_data_is_counted_on_from_what_was_skipped():
    """After a skip a step has later samples than it had: the window moves with them."""
    saved = saves(*range(100, 1_001, 100))
    run = run_at()
    for _ in range(2):
        run = next_attempt(run, plan_rollback(run, 1_000, saved, Policy()), 1_000)
    skipped = skipped_samples.parse_ranges(run.current.skip_samples)
    far = plan_rollback(run, 1_150, saved, Policy())
    ranges = skipped_samples.parse_ranges(far.skip_samples)
    assert skipped == ((900 * BATCH, 1_100 * BATCH - 1),)
    # Step 1150 has the samples of step 1350 before: 250 batches before them and as many after, and those from before.
    assert ranges == ((900 * BATCH, (1_349 + 250) * BATCH - 1),)


@pytest.mark.parametrize(
    ("abilities", "batch", "rungs", "said"),
    [
        (
            (),
            BATCH,
            [Rung.REPLAY],
            "skip is passed over: the script does not report that it supports RERAIL_SKIP_SAMPLES",
        ),
        (("rate",), BATCH, [Rung.REPLAY, Rung.RATE], "the loss went wrong again"),
        (("skip",), BATCH, RUNGS[:3], "lower_rate is passed over: the script does not report that it supports"),
        (BOTH, 0, [Rung.REPLAY, Rung.RATE], "the loss went wrong again"),
    ],
)
def test_a_rung_without_its_ability_is_passed_over_with_the_reason(abilities, batch, rungs, said):
    """A script that says nothing is replayed once, and then a human is asked."""
    plans, hold = take_all_rungs(run_at(abilities=abilities), 1_000, saves(700, 800, 900, batch=batch), Policy())
    assert [plan.rung for plan in plans] == rungs
    assert said in hold.why
    if batch == 0:
        assert "skip is passed over: no checkpoint says how many samples it had consumed" in plans[-1].why


def test_where_retention_has_left_nothing_a_margin_before_the_newest_before_the_onset_has_to_do():
    planned = plan_rollback(run_at(), 1_000, saves(950, 975, 1_000), Policy())
    assert planned.resume_step == 975
    assert (
        "no clean checkpoint from at least 100 steps before it is left; have the job keep more of them" in planned.why
    )


@pytest.mark.parametrize(
    ("saved", "said"), [([], "nothing was saved"), (saves(1_000), "no clean checkpoint from before")]
)
def test_with_nothing_before_the_onset_the_run_starts_over(saved, said):
    planned = plan_rollback(run_at(), 1_000, saved, Policy())
    assert planned.resume_step is None
    assert said in planned.why


def test_what_the_script_can_do_is_known_from_any_attempt():
    """The newest one's hello may be lost."""
    run = next_attempt(run_at(), plan_rollback(run_at(), 1_000, saves(800, 900), Policy()), 1_000)
    run = replace(run, attempts=(run.attempts[0], replace(run.current, abilities=())))
    assert plan_rollback(run, 1_000, saves(800, 900), Policy()).rung is Rung.SKIP


def test_farther_back_there_may_be_nothing():
    """Then the same checkpoint, with more data skipped: a start from scratch would cost all."""
    plans, _ = take_all_rungs(run_at(), 1_000, saves(800, 900, 1_000)[:2], Policy())
    assert [plan.resume_step for plan in plans] == [900, 900, 900, 900]
    assert "no older clean checkpoint is there" in plans[2].why


def test_the_learning_rate_has_a_floor():
    policy = Policy(ladder=Ladder(lower_rates=10, least_rate=0.8))
    plans, hold = take_all_rungs(run_at(), 1_000, saves(800, 900), policy)
    assert [plan.rate for plan in plans[3:]] == [0.9, 0.81]
    assert "the learning rate is at 0.81 of the schedule already" in hold.why


@pytest.mark.parametrize("factor", ["0.0", "1.0", "1.5"])
def test_a_factor_that_lowers_nothing_is_refused(factor):
    with pytest.raises(PolicyError, match="field 'ladder.rate_factor' is .* between 0 and 1"):
        parse_policy(f"[ladder]\nrate_factor = {factor}", name="mine")


def test_a_pair_of_checkpoints_with_a_skip_between_them_does_not_count():
    """Most say 16 samples a step; the one over the gap says more."""
    saved = [
        replace(c, consumed_samples=(c.consumed_samples or 0) + 3_200 * (c.step > 500))
        for c in saves(*range(100, 1_000, 100))
    ]
    run = next_attempt(run_at(), plan_rollback(run_at(), 900, saved, Policy()), 900)
    ((first, last),) = skipped_samples.parse_ranges(plan_rollback(run, 900, saved, Policy()).skip_samples)
    assert last + 1 - first == 200 * BATCH


onsets = st.integers(1, 4_000)
ladders = st.builds(
    Ladder,
    margin_steps=st.integers(0, 300),
    near_steps=st.integers(0, 1_000),
    skip_batches=st.integers(0, 300),
    far_skip_batches=st.integers(0, 700),
    replays=st.integers(0, 2),
    skips=st.integers(0, 2),
    far_skips=st.integers(0, 2),
    lower_rates=st.integers(0, 3),
)


@st.composite
def histories(draw):
    """Troubles one after the other, each with the checkpoints that were there then."""
    health = st.sampled_from(Health)
    saved = st.lists(st.tuples(st.integers(1, 4_000), health, st.integers(0, 32)), max_size=8)
    troubles = draw(st.lists(st.tuples(onsets, saved), min_size=1, max_size=10))
    return draw(ladders), draw(st.sets(st.sampled_from(BOTH))), troubles


@settings(max_examples=count_examples(80), deadline=None)
@given(histories())
def test_whatever_comes_the_ladder_keeps_its_promises(history):
    """Never at or after the onset, never from what is not clean; nothing skipped is ever taken back; each rung within
    its bound; the same input, the same plan."""
    bounds, abilities, troubles = history
    policy = Policy(ladder=bounds)
    tries = dict(zip(Rung, (bounds.replays, bounds.skips, bounds.far_skips, bounds.lower_rates), strict=True))
    run = run_at(abilities=tuple(sorted(abilities)))
    for onset, saved in troubles:
        checkpoints = [c for step, health, batch in saved for c in saves(step, batch=batch, health=health)]
        planned = plan_rollback(run, onset, checkpoints, policy)
        assert planned == plan_rollback(run, onset, tuple(reversed(checkpoints)), policy)
        if isinstance(planned, Hold):
            continue
        clean = {c.step for c in checkpoints if c.health is Health.CLEAN}
        assert planned.resume_step is None or (planned.resume_step < onset and planned.resume_step in clean)
        assert planned.resume_step is not None or not [step for step in clean if step < onset]
        before, after = (
            skipped_samples.parse_ranges(run.current.skip_samples),
            skipped_samples.parse_ranges(planned.skip_samples),
        )
        assert skipped_samples.merge_ranges((*before, *after)) == after
        assert len(planned.skip_samples) <= skipped_samples.LIMIT
        assert planned.rate <= run.current.rate
        run = next_attempt(run, planned, onset)
        tried = rollback_ladder.select_rungs_taken(run, onset, policy)
        assert all(sum(climb.rung == rung for climb in tried) <= tries[rung] for rung in Rung)
        order = [RUNGS.index(Rung(climb.rung)) for climb in tried]
        assert order == sorted(order)


@given(st.lists(st.tuples(st.integers(0, 10**15 - 1), st.integers(0, 10**9)), max_size=60))
def test_ranges_of_samples_only_grow_however_long_their_text(pairs):
    """What does not fit is joined with its neighbour: more is skipped, never less."""
    ranges = [(first, min(first + length, 10**15 - 1)) for first, length in pairs]
    text = skipped_samples.format_ranges(tuple(ranges))
    assert len(text) <= skipped_samples.LIMIT
    assert skipped_samples.merge_ranges((*skipped_samples.parse_ranges(text), *ranges)) == skipped_samples.parse_ranges(
        text
    )


@given(st.integers(0, 60), st.integers(0, 40), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), max_size=5))
def test_counting_on_passes_over_what_is_skipped(position, samples, pairs):
    ranges = skipped_samples.merge_ranges([(first, first + more) for first, more in pairs])
    left = (i for i in range(position, 1_000) if not any(first <= i <= last for first, last in ranges))
    assert skipped_samples.advance(position, samples, ranges) == [*zip(range(samples + 1), left, strict=False)][-1][1]


@pytest.mark.parametrize("text", ["5", "7-3", "a-b", "1-2;3-4", "-1-3"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ValueError, match="is not a valid range of sample ids; write first-last"):
        skipped_samples.parse_ranges(text)


# ---------------------------------------------------------------------- through the loop


@pytest.fixture
def world() -> World:
    """A run of 16 samples a step that has trained for an hour, with checkpoints each 100 steps up to 1000."""
    world = World()
    world.policies.by_name["default"] = Policy(ladder=Ladder(margin_steps=100))
    world.adopt()
    hello(world)
    for step in range(100, 1_001, 100):
        world.minutes(6)
        save(world, step)
    return world


def hello(world: World) -> None:
    current = world.run().current
    agent = Agent(world, attempt=current.number, job=current.job_name)
    agent.deliver(agent.files(ReportKind.HELLO, abilities=BOTH))


def save(world: World, step: int, **facts) -> None:
    attempt = world.run().current.number
    world.checkpoints.commit(step=step, attempt=attempt, consumed_samples=step * BATCH, **facts)


def report_divergence(world: World, *, onset: int = 950, level: Level = Level.INTERVENE, minutes: float = 25) -> None:
    """The detectors say so; nobody answers the wish to save, the job is stopped, and the next one says hello."""
    finding = Finding(Kind.DIVERGENCE, level, onset + 64, onset, f"divergence since step {onset}", world.clock())
    world.supervisor().handle(FindingsReceived("gpt", world.run().current.job_name, (finding,)))
    world.minutes(minutes)
    if world.sagemaker.live():
        hello(world)


def launch_environment(world: World) -> dict[str, str]:
    """What the current job's environment asks of its script."""
    environment = world.sagemaker.requests[world.run().current.job_name]["Environment"]
    names = ("RERAIL_RESUME_STEP", "RERAIL_SKIP_SAMPLES", "RERAIL_LR_SCALE")
    return {name: environment[name] for name in names if name in environment}


def test_a_repeated_finding_takes_every_rung_of_the_ladder(world):
    """Each launch asks for what its rung says, the attempt carries its name, and the fifth time people are asked."""
    for _ in range(4):
        report_divergence(world)
    run = world.run()
    assert [attempt.rung for attempt in run.attempts] == ["", *(rung.value for rung in RUNGS)]
    assert [attempt.resumed_from_step for attempt in run.attempts] == [None, 800, 800, 700, 700]
    assert launch_environment(world) == {
        "RERAIL_RESUME_STEP": "700",
        "RERAIL_SKIP_SAMPLES": run.current.skip_samples,
        "RERAIL_LR_SCALE": "0.9",
    }
    report_divergence(world)
    run = world.run()
    assert (run.state, len(run.attempts)) == (RunState.HELD, 5)
    assert "replay in attempt 2, skip in attempt 3, far_skip in attempt 4, lower_rate in attempt 5" in run.hold_reason
    assert len(run.incidents) == 1, "no progress beyond the onset: it is one incident"
    assert all(f"rung {rung}" in run.incidents[0].reason for rung in RUNGS)
    (page,) = [notice for notice in world.bus.notices if notice.severity is Severity.PAGE]
    assert page.title.startswith("gpt: held: the loss went wrong again at step ")
    assert page.runbook == "diverged"


def test_progress_beyond_the_onset_ends_the_incident_and_not_before(world):
    """A checkpoint at 900 was there before; one at 1000 proves that the loss got past 950."""
    report_divergence(world)
    save(world, 900)
    world.minutes(2)
    assert world.run().open_incident is not None
    save(world, 1_000)
    world.minutes(2)
    assert world.run().open_incident is None


def test_every_later_launch_skips_the_same_samples(world):
    report_divergence(world)
    report_divergence(world)
    skipped = launch_environment(world)["RERAIL_SKIP_SAMPLES"]
    save(world, 1_100)
    world.lose_node("gpt-a003", minutes=5)
    assert launch_environment(world) == {"RERAIL_RESUME_STEP": "1100", "RERAIL_SKIP_SAMPLES": skipped}
    assert world.run().current.rung == ""


def test_what_vanished_before_the_launch_is_not_resumed_from(world):
    """Chosen when the loss went wrong, deleted while the job was being stopped: the one before it is taken."""
    report_divergence(world, minutes=0)
    world.checkpoints.saved[BUCKET] = [c for c in world.checkpoints.saved[BUCKET] if c.step != 800]
    world.minutes(25)
    assert world.run().current.resumed_from_step == 700


def test_what_vanishes_during_a_wait_is_not_resumed_from_either(world):
    world.sagemaker.fail("gpt", NODE_LOST)
    world.supervisor().handle(JobStateChanged("gpt"))
    assert world.run().current.resumed_from_step == 1_000
    world.checkpoints.saved[BUCKET] = [c for c in world.checkpoints.saved[BUCKET] if c.step < 900]
    world.minutes(5)
    assert launch_environment(world) == {"RERAIL_RESUME_STEP": "800"}
    assert any("the checkpoint of step 1000 cannot be resumed from any more" in e.reason for e in world.runs.timeline)


def fail_with_nan(world: World, step: int) -> None:
    """The script itself raises when its loss is no number."""
    error = {"rerail": 1, "cause": "diverged", "error": "FloatingPointError: loss is nan", "step": step, "rank": 0}
    world.sagemaker.fail(world.run().current.job_name, f"AlgorithmError: {json.dumps(error)}, exit code: 1")
    world.minutes(25)


def test_a_script_that_stops_for_its_loss_takes_the_same_rungs(world):
    """The same error at the same step is what the next rung is for; what was warned of dates the onset."""
    report_divergence(world, onset=940, level=Level.WARN, minutes=1)
    fail_with_nan(world, 970)
    assert (world.run().current.rung, world.run().current.resumed_from_step) == ("replay", 800)
    assert world.run().rungs_taken[0].onset_step == 940
    hello(world)
    fail_with_nan(world, 970)
    assert (world.run().current.rung, world.run().current.resumed_from_step) == ("skip", 800)
    assert world.run().rungs_taken[1].onset_step == 970, "nobody had warned: it is the step at which it gave up"
    assert "RERAIL_SKIP_SAMPLES" in launch_environment(world)
    hello(world)
    for _ in range(2):
        fail_with_nan(world, 970)
        if world.sagemaker.live():
            hello(world)
    fail_with_nan(world, 970)
    assert world.run().state is RunState.HELD
    assert "after replay in attempt 2, skip in attempt 3, far_skip in attempt 4" in world.run().hold_reason


def test_a_release_restarts_the_ladder(world):
    """They have looked, and may have changed something; what is skipped stays skipped."""
    for _ in range(5):
        report_divergence(world)
    skipped = world.run().current.skip_samples
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", ""))
    assert (world.run().rungs_taken, world.run().current.skip_samples) == ((), skipped)


def test_the_total_is_bounded_by_the_causes_own_budget(world):
    world.policies.by_name["default"] = Policy(retries=Retries(diverged=2))
    for _ in range(3):
        report_divergence(world)
    assert world.run().state is RunState.HELD
    assert "diverged has spent its budget of 2 without progress" in world.run().hold_reason
