"""What a runbook tells people to look for is what the supervisor says: one night for each page, with the real loop."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from bench.quotations import DOCS
from rerail.messages.messages import CommandReceived, FindingsReceived, JobStateChanged
from rerail.model.actions import Severity
from rerail.model.finding import Finding, Kind, Level
from rerail.model.notice import Notice
from rerail.model.policy import Capacity, Limits, Mode, Policy, Retries
from rerail.model.run import RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import OperatorVerb
from tests.fakes import World

OOM = "AlgorithmError: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB., exit code: 1"
NODE_LOST = "InternalServerError: We encountered an internal error.  Please try again."
BUG = "AlgorithmError: KeyError: 'labels' in collate, exit code: 1"
DIVERGED = "AlgorithmError: FloatingPointError: loss is nan at step 517, exit code: 1"
CAPACITY = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different instance type."
)
# Alarms of CloudWatch: no run is the matter, and the stack's own tests have their words.
OF_THE_STACK = {
    *(Runbook.DEAD_LETTERS, Runbook.FUNCTION_ERRORS, Runbook.THROTTLES, Runbook.EVENTS_DROPPED),
    *(Runbook.STALE_SIGNALS, Runbook.NO_SWEEP, Runbook.UNDELIVERED, Runbook.UNHEALTHY),
}
QUOTED = re.compile(r"`([^`]+)`")


def a_world(policy: Policy | None = None, *, layout: str = "manifest", **facts: object) -> World:
    """A run that has trained for fifty minutes and saved at steps 100 to 500, at a price that is known."""
    world = World()
    world.sagemaker.instance_type = "ml.p5.48xlarge"
    world.policies.by_name["default"] = policy or Policy()
    world.sagemaker.submit("gpt", **facts)
    world.supervisor().handle(JobStateChanged("gpt"))
    for step in range(100, 501, 100):
        world.minutes(10)
        world.checkpoints.save(step=step, layout=layout)
    return world


def died(reason: str, policy: Policy | None = None, *, minutes: float = 2) -> World:
    """The same run, whose job dies of that at step 517."""
    world = a_world(policy)
    world.sagemaker.fail("gpt", reason, metrics={"step": 517.0})
    world.minutes(minutes)
    return world


def same_error() -> World:
    world = died(BUG, minutes=20)
    world.sagemaker.fail("gpt-a002", BUG, metrics={"step": 517.0})
    world.minutes(2)
    return world


def job_gone() -> World:
    world = a_world()
    del world.sagemaker.jobs["gpt"]
    world.minutes(2)
    return world


def refused() -> World:
    world = a_world(request={"ResourceConfig": {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1}})
    world.sagemaker.lacking["ml.p5.48xlarge"] = "ValidationException: Could not assume role"
    world.sagemaker.fail("gpt", NODE_LOST)
    world.minutes(20)
    return world


def out_of_time() -> World:
    world = a_world(max_runtime_s=3_000)
    world.sagemaker.fail("gpt", NODE_LOST, metrics={"step": 517.0})
    world.minutes(5)
    return world


def braked() -> World:
    world = a_world(Policy(limits=Limits(account_relaunches=1)))
    world.brake.admit("another-a002", at=world.clock(), limit=1, window=timedelta(hours=1))
    world.sagemaker.fail("gpt", NODE_LOST)
    world.minutes(5)
    return world


def not_set_aside() -> World:
    world = a_world(layout="huggingface")
    world.checkpoints.forbidden = "AccessDenied"
    finding = Finding(Kind.NON_FINITE, Level.INTERVENE, 410, 401, "loss is nan", world.clock(), world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    world.minutes(30)
    return world


def found(kind: Kind, evidence: str, level: Level = Level.WARN) -> World:
    world = a_world()
    finding = Finding(kind, level, 480, 480, evidence, world.clock(), world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    return world


NIGHTS: dict[Runbook, Callable[[], World]] = {
    Runbook.OUT_OF_MEMORY: partial(died, OOM),
    Runbook.SAME_ERROR: same_error,
    Runbook.ATTEMPTS_SPENT: partial(died, NODE_LOST, Policy(limits=Limits(attempts=1))),
    Runbook.RESTART_STORM: partial(died, NODE_LOST, Policy(limits=Limits(starts=1, starts_window=timedelta(hours=2)))),
    Runbook.NO_PROGRESS: partial(died, "", Policy(limits=Limits(attempts_without_progress=0))),
    Runbook.BUDGET_SPENT: partial(died, NODE_LOST, Policy(retries=Retries(infrastructure=0))),
    Runbook.DIVERGED: partial(died, DIVERGED, Policy(retries=Retries(diverged=0))),
    Runbook.NO_CAPACITY: partial(died, CAPACITY, Policy(capacity=Capacity(wait=timedelta(0)))),
    Runbook.REQUEST_REFUSED: refused,
    Runbook.JOB_GONE: job_gone,
    Runbook.MONEY_SPENT: partial(died, NODE_LOST, Policy(limits=Limits(run_dollars=1.0))),
    Runbook.TIME_SPENT: out_of_time,
    Runbook.RELAUNCH_BRAKE: braked,
    Runbook.APPROVAL: partial(died, NODE_LOST, Policy(mode=Mode.APPROVE)),
    Runbook.NOT_SET_ASIDE: not_set_aside,
    Runbook.OBSERVING: partial(died, NODE_LOST, Policy(mode=Mode.OBSERVE)),
    Runbook.BLIND: partial(found, Kind.BLIND, "no metrics for 640 s while the job is training"),
    Runbook.CHECKPOINT_STALL: partial(
        found, Kind.CHECKPOINT_STALL, "a checkpoint has been running for 1900 s, limit 900 s", Level.INTERVENE
    ),
    Runbook.PLATEAU: partial(found, Kind.PLATEAU, "loss 2.31 is 0.8% better than at step 4100"),
    Runbook.GRAD_NORM: partial(found, Kind.GRAD_NORM, "gradient norm 14.2 is 6.1 times its median 2.33"),
    Runbook.RESUME_MISMATCH: partial(found, Kind.RESUME_MISMATCH, "loss 2.9 at step 501, 2.3 when it was saved"),
    Runbook.INFORMED: partial(died, NODE_LOST),
}
# Who has read the page and says release: what it promises then.
RELEASED = [
    *(Runbook.OUT_OF_MEMORY, Runbook.SAME_ERROR, Runbook.ATTEMPTS_SPENT, Runbook.RESTART_STORM, Runbook.NO_PROGRESS),
    *(Runbook.BUDGET_SPENT, Runbook.DIVERGED, Runbook.NO_CAPACITY, Runbook.JOB_GONE, Runbook.MONEY_SPENT),
    *(Runbook.OBSERVING,),
]


def page(runbook: Runbook) -> str:
    return (DOCS / "runbooks" / f"{runbook.value}.md").read_text(encoding="utf-8")


def how_to_tell(runbook: Runbook) -> list[str]:
    """What that part of the page quotes, in its shape: names and numbers are those of one night."""
    part = re.split(r"^## .+$", page(runbook), flags=re.MULTILINE)[3]
    return [shape(quote) for quote in QUOTED.findall(part) if len(quote.split()) > 2]


def shape(text: str) -> str:
    """The words without their numbers and names, and without the run's own title."""
    words = " ".join(text.replace("my-run", "gpt").split())
    words = re.sub(r"-a\d+", "-a0", re.sub(r"\$?[\d,.]*\d", "0", words))
    return re.sub(r"\b(s|min|h|days?)\b", "time", words).rstrip(":")


def told(world: World) -> Notice:
    """What people were told last, a page before anything else."""
    return next((n for n in reversed(world.bus.told) if n.severity is Severity.PAGE), world.bus.told[-1])


@pytest.mark.parametrize("runbook", NIGHTS)
def test_a_notice_names_the_page_that_is_about_it_and_the_page_quotes_its_words(runbook: Runbook):
    """Title, body, or the reason that the run is held for has one of the phrases of *Diagnosis*."""
    world = NIGHTS[runbook]()
    notice, run = told(world), world.runs.load("gpt")
    assert notice.runbook is runbook
    said = shape(" ".join((notice.title, notice.body, notice.did, run.hold_reason if run else "")))
    quotes = [part.strip() for quote in how_to_tell(runbook) for part in quote.split("(...)")]
    if runbook is not Runbook.INFORMED:  # of which there are many
        assert any(quote in said for quote in quotes if quote), (said, quotes)


@pytest.mark.parametrize("runbook", RELEASED)
def test_a_release_starts_the_next_attempt_as_the_page_says(runbook: Runbook):
    """At once, from the newest checkpoint; the page that was sent is over."""
    world = NIGHTS[runbook]()
    assert world.run().state is RunState.HELD
    before = world.run().current
    next_one = before.number + 1 if before.exists else before.number
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", "mended"))
    run = world.run()
    assert (run.state, run.current.number, run.current.resumed_from_step) == (RunState.STARTING, next_one, 500)
    assert "release" in page(runbook)


def test_a_second_failure_of_the_same_kind_is_held_at_once_after_a_release():
    """As the page about the same error has it: the memory of the last error stays."""
    world = same_error()
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", "mended"))
    world.minutes(5)
    world.sagemaker.fail("gpt-a003", BUG, metrics={"step": 517.0})
    world.minutes(2)
    assert world.run().state is RunState.HELD and told(world).runbook is Runbook.SAME_ERROR


def test_a_release_grants_one_attempt_where_all_are_spent():
    """As its page has it: the number of attempts is never reset."""
    world = NIGHTS[Runbook.ATTEMPTS_SPENT]()
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", "once more"))
    world.minutes(5)
    world.sagemaker.fail("gpt-a002", NODE_LOST, metrics={"step": 700.0})
    world.minutes(2)
    assert world.run().state is RunState.HELD and told(world).runbook is Runbook.ATTEMPTS_SPENT


def test_a_run_whose_time_is_spent_cannot_be_released():
    """As its page has it: the run has ended, and nobody was paged."""
    world = out_of_time()
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", "go on"))
    assert world.run().state is RunState.STOPPED
    assert Severity.PAGE not in {notice.severity for notice in world.bus.told}


def test_every_page_has_its_night_or_is_about_the_stack():
    """A new runbook gets a night here, or belongs to an alarm; HyperPod has tests of its own."""
    assert set(NIGHTS) | OF_THE_STACK | {Runbook.HYPERPOD} == set(Runbook)


@pytest.mark.parametrize("runbook", sorted(OF_THE_STACK))
def test_an_alarms_page_quotes_its_words(runbook: Runbook):
    """Some phrase of *Diagnosis* stands in the stack's own descriptions of its alarms."""
    parts = Path(__file__).parents[2] / "stacks" / "parts"
    said = " ".join(path.read_text(encoding="utf-8") for path in parts.glob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", said)  # a sentence over two lines
    part = re.split(r"^## .+$", page(runbook), flags=re.MULTILINE)[3]
    quotes = [" ".join(quote.split()) for quote in QUOTED.findall(part)]
    assert [quote for quote in quotes if any(piece in said for piece in _pieces(quote))], quotes


def _pieces(quote: str) -> list[str]:
    """What of a quotation is not a name: its longest runs of words between names of functions, rules and topics."""
    names = r"\b(?:supervise|sweep|notify|page|JobEvents|PagerDuty|RerailUnhealthy)\b"
    whole = [quote] if re.fullmatch(r"\w+", quote) else []
    return [*whole, *(piece.strip() for piece in re.split(names, quote) if len(piece.split()) > 4)]


def test_the_worlds_of_these_nights_are_sound():
    """Before anything happens the run is well, and nobody was told anything."""
    world = a_world()
    assert world.run().state is RunState.WATCHING and not world.bus.told
