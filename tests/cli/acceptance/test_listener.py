"""Test which messages the acceptance waits for after its last trial."""

from datetime import UTC, datetime

from cli.acceptance.listener import Listener
from cli.acceptance.seen import ReceivedEvent, ReceivedNotice
from cli.place import Place

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def test_it_waits_for_each_end_and_each_relaunch_that_can_be_reported():
    """Not for other states of a job, nor for messages that cannot be received here."""
    listener = Listener(Place("here", {}), "rerail-acceptance-1")

    def is_complete() -> bool:
        return listener.has_received(ended={"one", "two"}, relaunched={"run"})

    listener.events += [
        ReceivedEvent(job, status, "", NOON, NOON) for job, status in (("one", "Failed"), ("two", "Stopping"))
    ]
    listener.notices.append(ReceivedNotice("run", "relaunched", NOON, NOON))
    assert not is_complete()
    listener.events.append(ReceivedEvent("two", "Stopped", "", NOON, NOON))
    assert is_complete()
    listener.notices.clear()
    assert not is_complete()
    listener.unread["notices"] = "no temporary subscription"
    assert is_complete()
