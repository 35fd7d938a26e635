"""The voice: each notice on the topic of its severity, and an error where it could not be told."""

import pytest

import notify
from tests.functions.account import Context, sample


def told(name: str) -> None:
    notify.handler(sample(name), Context("notify"))


@pytest.mark.parametrize(("severity", "other"), [("page", "inform"), ("inform", "page")])
def test_a_notice_goes_to_the_topic_of_its_severity(account, severity, other):
    """Somebody is woken, or whoever looks is told; never both."""
    told(f"notice_{severity}")
    detail = sample(f"notice_{severity}")["detail"]
    (message,) = account.heard(severity)
    assert message["Subject"] == detail["title"]
    assert message["Message"] == f"{detail['body']}\n\nrerail show {detail['run']}"
    assert message["MessageAttributes"]["key"]["Value"] == detail["key"]
    assert account.heard(other) == []


def test_notices_are_counted_by_severity(account, logged):
    """Pages of a week are a number that people watch."""
    told("notice_page")
    (metric,) = [line for line in logged() if "_aws" in line]
    assert metric["Notices.page"] == [1.0]


def test_a_notice_that_cannot_be_told_raises(account):
    """So that Lambda tries again, and then alarms."""
    account.sns.delete_topic(TopicArn=account.topics["page"])
    with pytest.raises(Exception, match="NotFound"):
        told("notice_page")


@pytest.mark.parametrize("field", ["run", "severity", "title", "body", "key"])
def test_a_notice_without_a_field_is_refused(account, field):
    """The error names the field, and nothing is told by halves."""
    event = sample("notice_page")
    del event["detail"][field]
    with pytest.raises(KeyError, match=field):
        notify.handler(event, Context("notify"))
    assert account.heard("page") == []


@pytest.mark.parametrize("variable", ["RERAIL_PAGE_TOPIC", "RERAIL_INFORM_TOPIC"])
def test_a_missing_variable_is_named(account, monkeypatch, variable):
    """The function fails, and its error is the variable's name."""
    monkeypatch.delenv(variable)
    with pytest.raises(KeyError, match=variable):
        told("notice_page")
