"""The facts about an emergency checkpoint, from a timeline as the supervisor writes it."""

from datetime import UTC, datetime, timedelta

from cli.demo.handshake import find_handshakes
from rerail.model.actions import PostCommand, StopJob
from rerail.model.codec import to_plain
from rerail.model.mailbox import Command, CommandKind, Report, ReportKind
from rerail.model.run import RunState, TimelineEntry
from rerail.model.signals import AgentReported, Tick

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def entry(
    seconds: float, *actions, kind: ReportKind | None = None, command: str = "save-1", why: str = "", **said
) -> TimelineEntry:
    """A decision at this second, with these actions; on a report, if `kind` is given."""
    signal = Tick(at(seconds))
    if kind:
        signal = AgentReported(at(seconds), Report("r", "gpt", 1, "gpt", kind, at(seconds), command=command, **said))
    state, asked = RunState.WATCHING, tuple(to_plain(action) for action in actions)
    return TimelineEntry("gpt", 1, at(seconds), state, state, why, signal=to_plain(signal), actions=asked)


def command(id: str = "save-1", kind: CommandKind = CommandKind.CHECKPOINT) -> PostCommand:
    return PostCommand(Command(id, "gpt", 1, kind, NOON, reason="throughput_drop"))


def test_each_step_is_timed_from_the_command():
    """Asked, heard, committed with its step, and only then the stop."""
    timeline = [
        entry(0, command(kind=CommandKind.TRAIN)),
        entry(10, command()),
        entry(11.5, kind=ReportKind.ACKNOWLEDGED),
        entry(12, kind=ReportKind.CHECKPOINT, command="another", step=7),
        entry(13, StopJob("gpt"), kind=ReportKind.CHECKPOINT, step=640, why="it is committed"),
    ]
    (asked,) = find_handshakes(timeline)
    assert asked == {
        "attempt": 1,
        "asked_at": at(10).isoformat(),
        "reason": "throughput_drop",
        "heard_after_s": 1.5,
        "committed_after_s": 3.0,
        "step": 640,
        "refused": "",
        "stop_called_after_s": 3.0,
        "stopped_because": "it is committed",
    }


def test_what_never_came_is_none():
    """An agent that is silent, or refuses: the job is stopped all the same."""
    (silent,) = find_handshakes([entry(0, command()), entry(6, StopJob("gpt"))])
    assert (silent["heard_after_s"], silent["committed_after_s"], silent["stop_called_after_s"]) == (None, None, 6.0)
    (refused,) = find_handshakes(
        [entry(0, command()), entry(2, StopJob("gpt"), kind=ReportKind.REFUSED, reason="no room")]
    )
    assert (refused["refused"], refused["step"]) == ("no room", None)


def test_what_was_seen_in_s3_before_it_was_reported_has_its_step_too():
    """The supervisor looks for itself while it waits."""
    (asked,) = find_handshakes(
        [entry(0, command()), entry(2, StopJob("gpt"), why="the emergency checkpoint of step 619 is")]
    )
    assert (asked["committed_after_s"], asked["step"]) == (None, 619)


def test_without_a_command_there_is_no_handshake():
    """Other decisions have nothing to do with it."""
    assert not list(find_handshakes([entry(0), entry(1, StopJob("gpt"))]))
