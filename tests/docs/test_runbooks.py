"""Each runbook quotes the words of the notice that links to it: one scenario for each page, with the real loop."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from rerail.aws.folder_listing import ADVICE
from rerail.messages.messages import CommandReceived, FindingsReceived
from rerail.model.actions import Severity
from rerail.model.errors import BoundsExceeded
from rerail.model.finding import Finding, Kind, Level
from rerail.model.notice import Notice
from rerail.model.policy import Capacity, Limits, Mode, Notices, Policy, Retries
from rerail.model.rate_limit import LaunchRequest
from rerail.model.run import RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import OperatorVerb
from tests.fakes import World
from tests.raising import raising
from tools.quotations import DOCS

OOM = "AlgorithmError: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB., exit code: 1"
NODE_LOST = "InternalServerError: We encountered an internal error.  Please try again."
BUG = "AlgorithmError: KeyError: 'labels' in collate, exit code: 1"
DIVERGED = "AlgorithmError: FloatingPointError: loss is nan at step 517, exit code: 1"
DAMAGED = (
    "AlgorithmError: RuntimeError: PytorchStreamReader failed reading zip archive: not a ZIP archive, exit code: 1"
)
CAPACITY = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different instance type."
)
# CloudWatch alarms about Rerail itself.
STACK_RUNBOOKS = {
    *(Runbook.DEAD_LETTERS, Runbook.FUNCTION_ERRORS, Runbook.THROTTLES, Runbook.EVENTS_DROPPED),
    *(Runbook.STALE_SIGNALS, Runbook.NO_SWEEP, Runbook.UNDELIVERED, Runbook.UNHEALTHY),
}
QUOTED = re.compile(r"`([^`]+)`")


def make_world(policy: Policy | None = None, *, layout: str = "manifest", **facts: object) -> World:
    """Return a run that has trained for fifty minutes, with checkpoints at steps 100 to 500 and a known price."""
    world = World()
    world.sagemaker.instance_type = "ml.p5.48xlarge"
    world.policies.by_name["default"] = replace(policy or Policy(), notices=Notices(unwatched_after=timedelta()))
    world.adopt(**facts)
    for step in range(100, 501, 100):
        world.minutes(10)
        world.checkpoints.save(step=step, layout=layout)
    return world


def fail(reason: str, policy: Policy | None = None, *, minutes: float = 2) -> World:
    """Return the same run after its job failed at step 517 for this reason."""
    world = make_world(policy)
    world.sagemaker.fail("gpt", reason, metrics={"step": 517.0})
    world.minutes(minutes)
    return world


def repeat_error() -> World:
    world = fail(BUG, minutes=20)
    world.sagemaker.fail("gpt-a002", BUG, metrics={"step": 517.0})
    world.minutes(2)
    return world


def delete_job() -> World:
    world = make_world()
    del world.sagemaker.jobs["gpt"]
    world.minutes(2)
    return world


def refuse_request() -> World:
    world = make_world(request={"ResourceConfig": {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1}})
    world.sagemaker.lacking["ml.p5.48xlarge"] = "ValidationException: Could not assume role"
    world.lose_node(minutes=20)
    return world


def spend_time() -> World:
    world = make_world(max_runtime_s=3_000)
    world.lose_node(minutes=5, metrics={"step": 517.0})
    return world


def exceed_rate() -> World:
    world = make_world(Policy(limits=Limits(account_relaunches=1)))
    world.rate_limit.admit(LaunchRequest("another-a002"), at=world.clock(), limit=1, window=timedelta(hours=1))
    world.lose_node(minutes=5)
    return world


def exceed_bounds() -> World:
    world = make_world()
    what = "the checkpoints under s3://b/c/ cannot be listed: more than 20,000 objects and folders have to be read"

    world.checkpoints.list_checkpoints = raising(BoundsExceeded(what, advice=ADVICE))
    world.lose_node(minutes=5)
    return world


def forbid_quarantine() -> World:
    world = make_world(layout="huggingface")
    world.checkpoints.forbidden = "AccessDenied"
    finding = Finding(Kind.NON_FINITE, Level.INTERVENE, 410, 401, "loss is nan", world.clock(), world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    world.minutes(30)
    return world


def detect(kind: Kind, evidence: str, level: Level = Level.WARN) -> World:
    world = make_world()
    finding = Finding(kind, level, 480, 480, evidence, world.clock(), world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    return world


def lose_the_only_checkpoint() -> World:
    """Return a run whose attempt 2 could not load the only checkpoint."""
    world = World().adopt()
    world.minutes(10)
    world.checkpoints.save(step=100)
    world.lose_node(minutes=30, metrics={"step": 117.0})
    world.sagemaker.fail("gpt-a002", DAMAGED)
    world.minutes(2)
    return world


SCENARIOS: dict[Runbook, Callable[[], World]] = {
    Runbook.OUT_OF_MEMORY: partial(fail, OOM),
    Runbook.SAME_ERROR: repeat_error,
    Runbook.DAMAGED_CHECKPOINT: lose_the_only_checkpoint,
    Runbook.ATTEMPTS_SPENT: partial(fail, NODE_LOST, Policy(limits=Limits(attempts=1))),
    Runbook.RESTART_STORM: partial(fail, NODE_LOST, Policy(limits=Limits(starts=1, starts_window=timedelta(hours=2)))),
    Runbook.NO_PROGRESS: partial(fail, "", Policy(limits=Limits(attempts_without_progress=0))),
    Runbook.BUDGET_SPENT: partial(fail, NODE_LOST, Policy(retries=Retries(infrastructure=0))),
    Runbook.DIVERGED: partial(fail, DIVERGED, Policy(retries=Retries(diverged=0))),
    Runbook.NO_CAPACITY: partial(fail, CAPACITY, Policy(capacity=Capacity(wait=timedelta(0)))),
    Runbook.REQUEST_REFUSED: refuse_request,
    Runbook.JOB_GONE: delete_job,
    Runbook.MONEY_SPENT: partial(fail, NODE_LOST, Policy(limits=Limits(run_dollars=1.0))),
    Runbook.TIME_SPENT: spend_time,
    Runbook.RELAUNCH_RATE_LIMIT: exceed_rate,
    Runbook.APPROVAL: partial(fail, NODE_LOST, Policy(mode=Mode.APPROVE)),
    Runbook.NOT_QUARANTINED: forbid_quarantine,
    Runbook.NO_CHECKPOINTS: exceed_bounds,
    Runbook.OBSERVING: partial(fail, NODE_LOST, Policy(mode=Mode.OBSERVE)),
    Runbook.BLIND: partial(detect, Kind.BLIND, "no metrics for 640 s while the job is training"),
    Runbook.CHECKPOINT_STALL: partial(
        detect, Kind.CHECKPOINT_STALL, "a checkpoint has been running for 1900 s, limit 900 s", Level.INTERVENE
    ),
    Runbook.PLATEAU: partial(detect, Kind.PLATEAU, "loss 2.31 is 0.8% better than at step 4100"),
    Runbook.GRAD_NORM: partial(detect, Kind.GRAD_NORM, "gradient norm 14.2 is 6.1 times its median 2.33"),
    Runbook.RESUME_MISMATCH: partial(detect, Kind.RESUME_MISMATCH, "loss 2.9 at step 501, 2.3 when it was saved"),
    Runbook.INFORMED: partial(fail, NODE_LOST),
}
# Pages that tell the operator to release the run.
RELEASABLE = [
    *(Runbook.OUT_OF_MEMORY, Runbook.SAME_ERROR, Runbook.ATTEMPTS_SPENT, Runbook.RESTART_STORM, Runbook.NO_PROGRESS),
    *(Runbook.BUDGET_SPENT, Runbook.DIVERGED, Runbook.NO_CAPACITY, Runbook.JOB_GONE, Runbook.MONEY_SPENT),
    *(Runbook.OBSERVING,),
]


def read_page(runbook: Runbook) -> str:
    return (DOCS / "runbooks" / f"{runbook.value}.md").read_text(encoding="utf-8")


def diagnosis_quotes(runbook: Runbook) -> list[str]:
    """Return the phrases that Diagnosis quotes, without numbers and names."""
    part = re.split(r"^## .+$", read_page(runbook), flags=re.MULTILINE)[3]
    return [normalize(quote) for quote in QUOTED.findall(part) if len(quote.split()) > 2]


def normalize(text: str) -> str:
    """Return the text with numbers, attempt names and units replaced."""
    words = " ".join(text.replace("my-run", "gpt").split())
    words = re.sub(r"-a\d+", "-a0", re.sub(r"\$?[\d,.]*\d", "0", words))
    return re.sub(r"\b(s|min|h|days?)\b", "time", words).rstrip(":")


def last_notice(world: World) -> Notice:
    """Return the last page, or the last notice if there is no page."""
    return next((n for n in reversed(world.bus.notices) if n.severity is Severity.PAGE), world.bus.notices[-1])


@pytest.mark.parametrize("runbook", SCENARIOS)
def test_a_notice_names_the_page_that_is_about_it_and_the_page_quotes_its_words(runbook: Runbook):
    """Title, body, or hold reason contains one of the phrases of *Diagnosis*."""
    world = SCENARIOS[runbook]()
    notice, run = last_notice(world), world.runs.load("gpt")
    assert notice.runbook is runbook
    text = normalize(" ".join((notice.title, notice.body, notice.did, run.hold_reason if run else "")))
    quotes = [part.strip() for quote in diagnosis_quotes(runbook) for part in quote.split("(...)")]
    if runbook is not Runbook.INFORMED:  # of which there are many
        assert any(quote in text for quote in quotes if quote), (text, quotes)


@pytest.mark.parametrize("runbook", RELEASABLE)
def test_a_release_starts_the_next_attempt_as_on_the_page(runbook: Runbook):
    """The next attempt starts at once from the newest checkpoint."""
    world = SCENARIOS[runbook]()
    assert world.run().state is RunState.HELD
    before = world.run().current
    next_one = before.number + 1 if before.exists else before.number
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", "fixed"))
    run = world.run()
    assert (run.state, run.current.number, run.current.resumed_from_step) == (RunState.STARTING, next_one, 500)
    assert "release" in read_page(runbook)


def test_a_second_failure_of_the_same_kind_is_held_at_once_after_a_release():
    """The page about the same error says so: the last error is remembered."""
    world = repeat_error()
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", "fixed"))
    world.minutes(5)
    world.sagemaker.fail("gpt-a003", BUG, metrics={"step": 517.0})
    world.minutes(2)
    assert world.run().state is RunState.HELD and last_notice(world).runbook is Runbook.SAME_ERROR


def test_a_release_grants_one_attempt_where_all_are_spent():
    """Its page says so: the number of attempts is never reset."""
    world = SCENARIOS[Runbook.ATTEMPTS_SPENT]()
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", "once more"))
    world.minutes(5)
    world.lose_node("gpt-a002", minutes=2, metrics={"step": 700.0})
    assert world.run().state is RunState.HELD and last_notice(world).runbook is Runbook.ATTEMPTS_SPENT


def test_a_run_whose_time_is_spent_cannot_be_released():
    """Its page says so: the run has ended, and no page was sent."""
    world = spend_time()
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", "go on"))
    assert world.run().state is RunState.STOPPED
    assert Severity.PAGE not in {notice.severity for notice in world.bus.notices}


def test_every_page_has_a_scenario_or_is_about_the_stack():
    """A new runbook needs a scenario here or belongs to an alarm; HyperPod has tests of its own."""
    assert set(SCENARIOS) | STACK_RUNBOOKS | {Runbook.HYPERPOD} == set(Runbook)


@pytest.mark.parametrize("runbook", sorted(STACK_RUNBOOKS))
def test_an_alarms_page_quotes_its_words(runbook: Runbook):
    """The stack's alarm descriptions contain a phrase of *Diagnosis*."""
    parts = Path(__file__).parents[2] / "stacks" / "parts"
    text = " ".join(path.read_text(encoding="utf-8") for path in parts.glob("*.py"))
    text = re.sub(r'"\s*\n\s*f?"', "", text)  # a sentence over two lines
    part = re.split(r"^## .+$", read_page(runbook), flags=re.MULTILINE)[3]
    quotes = [" ".join(quote.split()) for quote in QUOTED.findall(part)]
    assert [quote for quote in quotes if any(piece in text for piece in _split_at_names(quote))], quotes


def _split_at_names(quote: str) -> list[str]:
    """Return the parts of a quotation between names of functions, rules and topics."""
    names = r"\b(?:supervise|sweep|notify|page|JobEvents|PagerDuty|RerailUnhealthy)\b"
    whole = [quote] if re.fullmatch(r"\w+", quote) else []
    return [*whole, *(piece.strip() for piece in re.split(names, quote) if len(piece.split()) > 4)]


def test_the_initial_world_is_healthy():
    """Before the failure the run trains and no notice was sent."""
    world = make_world()
    assert world.run().state is RunState.WATCHING and not world.bus.notices
