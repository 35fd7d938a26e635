"""An event is sent through a deployment and waited for."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cli.doctor import account, code
from cli.doctor.check import Check, CheckStatus
from cli.doctor.delivery import check_delivery
from cli.doctor.deployment import Deployment
from rerail.messages.messages import DeliveryCheck, parse_message
from tests.cli.cloud import OUTPUTS, Client, Cloud, Deployed, denied


class Account:
    """A bus, a rule that loses every event or none, and the supervisor's table, some seconds later."""

    def __init__(self, *, delay_s: float = 3.0, loses: bool = False, **answers: Any) -> None:
        self.now, self.delay_s, self.loses = 0.0, delay_s, loses
        self.sent: list[tuple[float, DeliveryCheck]] = []
        table = {"events.put_events": self.put_events, "dynamodb.get_item": self.get_item, **answers}
        self.cloud = Cloud(table)

    def put_events(self, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        (entry,) = Entries
        body = {"source": entry["Source"], "detail-type": entry["DetailType"], "detail": json.loads(entry["Detail"])}
        message = parse_message(json.dumps(body))
        assert isinstance(message, DeliveryCheck)
        self.sent.append((self.now, message))
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]}

    def get_item(self, TableName: str, Key: dict[str, Any], ConsistentRead: bool = False) -> dict[str, Any]:
        there = [check for at, check in self.sent if not self.loses and self.now >= at + self.delay_s]
        return {"Item": Key} if Key["pk"]["S"] in {f"check#{check.id}" for check in there} else {}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def check(self) -> Check:
        return check_delivery(lambda s: Client(self.cloud, s), OUTPUTS, sleep=self.sleep, clock=lambda: self.now)


def test_an_event_that_arrives_is_waited_for():
    check = Account().check()
    assert (check.verdict, check.said) == (CheckStatus.OK, "an event came through bus, rule and queue in 3 s")


def test_a_lost_event_is_broken_with_the_places_to_look_at():
    check = Account(loses=True).check()
    assert (check.verdict, check.said) == (CheckStatus.BROKEN, "an event did not reach the supervisor within 60 s")
    assert "InvocationsFailedToBeSentToDlq" in check.remedy and "key" in check.remedy


@pytest.mark.parametrize(
    ("operation", "permission"), [("dynamodb.get_item", "dynamodb:GetItem"), ("events.put_events", "events:PutEvents")]
)
def test_without_the_permission_to_wait_nothing_is_sent(operation: str, permission: str):
    place = Account(**{operation: denied(permission)})
    with pytest.raises(ClientError, match=permission):
        place.check()
    assert not place.sent


def test_another_version_of_the_functions_gets_no_event(monkeypatch: pytest.MonkeyPatch):
    """It would take the event for a bad message and page someone."""
    place = Account(**{"lambda.get_function": {"Code": {"Location": "https://here"}}})
    monkeypatch.setattr(code, "read_deployed_files", lambda url: dict.fromkeys(code.list_files(), b""))
    check = account.delivery(Deployment(Deployed(place.cloud)))
    assert (check.verdict, check.said) == (CheckStatus.UNKNOWN, "not tried: the functions run another version")
    assert not place.sent
