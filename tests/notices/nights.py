"""Notices as the supervisor itself makes them, in a world of fakes: one night each."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from rerail.messages.messages import CommandReceived, FindingsReceived
from rerail.model.actions import Severity
from rerail.model.finding import Finding, Kind, Level
from rerail.model.notice import Notice
from rerail.model.policy import Mode
from rerail.model.signals import OperatorVerb
from rerail.notices.notice import TEXT_LIMIT, TITLE_LIMIT, truncate
from rerail.notices.notifiers.links import Links, NoticeOrigin, make_links
from tests.fakes import DEFAULT, World

START_UP = timedelta(minutes=6)
OOM = "AlgorithmError: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB., exit code: 1"
NODE_LOST = "InternalServerError: We encountered an internal error.  Please try again."
PLACE = NoticeOrigin("111122223333", "eu-west-1", "https://docs.example.com/rerail")
REPORT = "https://rerail-reports-111122223333-eu-west-1.s3.eu-west-1.amazonaws.com/runs/gpt/report.html?X-Amz-Expires=1"


def a_world(mode: Mode = Mode.ACT) -> World:
    """A run on one machine whose price is known, which has trained for fifty minutes."""
    world = World()
    world.sagemaker.instance_type = "ml.p5.48xlarge"
    world.policies.by_name["default"] = replace(DEFAULT, mode=mode)
    world.adopt(created_at=world.clock() - START_UP)
    for step in range(100, 501, 100):
        world.minutes(10)
        world.checkpoints.save(step=step)
    return world


def held() -> Notice:
    """Out of memory, which is not retried."""
    return _held(a_world())


def approval() -> Notice:
    """A machine is lost, and a human has to say whether to go on."""
    world = a_world(Mode.APPROVE)
    world.lose_node(minutes=1, metrics={"step": 517.0})
    return _last(world, Severity.PAGE)


def blind() -> Notice:
    """Its checkpoints come, its metrics do not."""
    world = a_world()
    evidence = "no step for 1200 s, yet a checkpoint was saved at step 500: its metrics are missing"
    finding = Finding(Kind.BLIND, Level.INTERVENE, 480, 480, evidence, world.clock(), world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    return _last(world, Severity.PAGE)


def relaunch() -> Notice:
    """A machine is lost, and nobody has to do anything."""
    world = a_world()
    world.lose_node(minutes=1, metrics={"step": 517.0})
    return _last(world, Severity.INFORM)


def all_clear() -> Notice:
    """The run that was out of memory is released."""
    world = a_world()
    _held(world)
    world.minutes(12)
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RELEASE, "ada", "a smaller batch"))
    return _last(world, Severity.CLEAR)


NIGHTS: dict[str, Callable[[], Notice]] = {
    "held": held,
    "approval": approval,
    "blind": blind,
    "relaunch": relaunch,
    "all_clear": all_clear,
}


def links(notice: Notice, report: str = REPORT) -> Links:
    """Its links, where the docs are served and reports are signed."""
    return make_links(notice, PLACE, report=report)


def nasty(notice: Notice, name: str, evidence: str) -> Notice:
    """The same notice, with a name and evidence that somebody else has chosen."""
    limits = {"title": TITLE_LIMIT, "body": TEXT_LIMIT, "did": TEXT_LIMIT, "todo": TEXT_LIMIT}
    said = {field: f"{text} {evidence}" for field in limits if (text := getattr(notice, field))}
    texts = {field: truncate(text, limits[field]) for field, text in said.items()}
    return replace(notice, run=name, thread=name, job=name, key=f"{name}/{notice.key}", **texts)


def _held(world: World) -> Notice:
    world.sagemaker.fail("gpt", OOM, metrics={"step": 517.0})
    world.minutes(1)
    return _last(world, Severity.PAGE)


def _last(world: World, severity: Severity) -> Notice:
    return next(notice for notice in reversed(world.bus.notices) if notice.severity is severity)
