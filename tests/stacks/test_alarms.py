"""What must not go unnoticed has an alarm, which says what it means and what to do; together they are one state."""

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from local.repairs.queue_metrics import depths
from rerail.messages import service_metrics
from rerail.model.runbooks import Runbook
from tests.stacks.template import Template, target, text
from tests.stacks.test_delivery import dead_letter_queues

ASYNCHRONOUS = ("AsyncEventsDropped", "DeadLetterErrors")
PLACE = re.compile(r"Rerail: .+[.?] Runbook: (?P<place>\S+)")


@pytest.fixture(params=["template", "full"])
def either(request: pytest.FixtureRequest) -> Template:
    """Return the template with the defaults, then the one with everything."""
    found: Template = request.getfixturevalue(request.param)
    return found


def watched(template: Template, metric: str) -> list[str]:
    """The resources whose metric of that name has an alarm."""
    alarms = template.of("CloudWatch::Alarm").values()
    return sorted(target(a["Dimensions"][0]["Value"]) for a in alarms if a["MetricName"] == metric)


def asynchronous(template: Template) -> list[str]:
    """Functions that a rule or the schedule calls, without waiting for them."""
    targets = [t["Arn"] for rule in template.of("Events::Rule").values() for t in rule["Targets"]]
    targets += [schedule["Target"]["Arn"] for schedule in template.of("Scheduler::Schedule").values()]
    functions = template.of("Lambda::Function")
    return sorted({target(arn) for arn in targets if "Fn::GetAtt" in arn} & set(functions))


@pytest.mark.parametrize("metric", ["Errors", "Throttles"])
def test_every_function_is_watched(either, metric):
    assert watched(either, metric) == sorted(either.of("Lambda::Function"))


@pytest.mark.parametrize("metric", ASYNCHRONOUS)
def test_every_event_that_a_function_loses_raises_an_alarm(either, metric):
    """Of each function that is called asynchronously: what was given up on, and what could not even be put aside."""
    called = asynchronous(either)
    assert len(called) >= 2
    assert watched(either, metric) == called
    assert all("DeadLetterConfig" in either.of("Lambda::Function")[name] for name in called)


def test_every_event_that_a_rule_loses_raises_an_alarm(either):
    """It could be sent neither to the target nor to the dead-letter queue: the key or a policy forbids it."""
    alarms = [a for a in either.of("CloudWatch::Alarm").values() if a["MetricName"] == "InvocationsFailedToBeSentToDlq"]
    watched_rules, buses = {}, {}
    for alarm in alarms:
        dimensions = {dimension["Name"]: dimension["Value"] for dimension in alarm["Dimensions"]}
        part, (slash, arn) = (
            dimensions["RuleName"]["Fn::Select"][0],
            dimensions["RuleName"]["Fn::Select"][1]["Fn::Split"],
        )
        assert slash == "/"
        watched_rules[target(arn)] = part
        buses[target(arn)] = dimensions.get("EventBusName")
    rules = either.of("Events::Rule")
    assert set(watched_rules) == set(rules)
    assert buses == {id: rule.get("EventBusName") for id, rule in rules.items()}
    assert watched_rules == {id: 2 if "EventBusName" in rule else 1 for id, rule in rules.items()}


def test_every_dead_letter_queue_is_watched(either):
    letters = watched(either, "ApproximateNumberOfMessagesVisible")
    assert letters == sorted(set(dead_letter_queues(either)))


def test_the_oldest_message_of_every_function_s_queue_is_watched(either):
    queues = {target(mapping["EventSourceArn"]) for mapping in either.of("Lambda::EventSourceMapping").values()}
    assert watched(either, "ApproximateAgeOfOldestMessage") == sorted(queues)


def test_a_message_that_always_fails_pages_until_it_is_a_dead_letter(either):
    """Each minute by the local AWS's metric: a message that was received three times has no age any more."""
    for alarm in either.of("CloudWatch::Alarm").values():
        if alarm["MetricName"] != "ApproximateAgeOfOldestMessage":
            continue
        queue = either.of("SQS::Queue")[target(alarm["Dimensions"][0]["Value"])]
        hidden, tries = queue["VisibilityTimeout"] // 60, queue["RedrivePolicy"]["maxReceiveCount"]
        minutes, looks_back = range(hidden * tries + 1), alarm["EvaluationPeriods"]
        is_old = [find_age(minute, receives=1 + minute // hidden) > alarm["Threshold"] for minute in minutes]
        pages = [any(is_old[max(0, minute + 1 - looks_back) : minute + 1]) for minute in minutes]
        assert alarm["DatapointsToAlarm"] == 1 and find_age(hidden * 2, receives=3) == 0
        assert any(pages), alarm["AlarmDescription"]
        assert all(pages[pages.index(True) :]), alarm["AlarmDescription"]


def find_age(minutes: int, *, receives: int) -> float:
    """Return the age of a queue's only message, which was sent so long ago, in seconds."""
    message = {"sent_at": time.time() - 60 * minutes, "receive_count": receives}
    return depths({"messages": [message]})["ApproximateAgeOfOldestMessage"]


def test_every_topic_is_watched(either):
    assert watched(either, "NumberOfNotificationsFailed") == sorted(either.of("SNS::Topic"))


def of_the_sweep(template: Template, measure: str) -> Mapping[str, Any]:
    """The alarm on what the sweep prints under that name."""
    ours = [a for a in template.of("CloudWatch::Alarm").values() if a["Namespace"] == "Rerail"]
    assert all(alarm["Dimensions"] == [{"Name": "service", "Value": "sweep"}] for alarm in ours)
    (found,) = (alarm for alarm in ours if alarm["MetricName"] == measure)
    return found


@pytest.mark.parametrize("measure", [service_metrics.BLIND, service_metrics.UNREAD])
def test_a_sweep_that_reads_nothing_raises_an_alarm(template, measure):
    """A sweep that is made and learns nothing is not healthy; one minute of it wakes nobody."""
    alarm = of_the_sweep(template, measure.name)
    assert (alarm["DatapointsToAlarm"], alarm["EvaluationPeriods"], alarm["Period"]) == (10, 15, 60)
    assert (alarm["Threshold"], alarm["ComparisonOperator"]) == (0, "GreaterThanThreshold")


def test_the_watcher_is_watched(template):
    """Five minutes in which no sweep was completed page, also when there is no data at all."""
    alarm = of_the_sweep(template, service_metrics.COMPLETED.name)
    assert alarm["TreatMissingData"] == "breaching"
    assert (alarm["Statistic"], alarm["Threshold"], alarm["ComparisonOperator"]) == ("Sum", 1, "LessThanThreshold")
    assert (alarm["Period"], alarm["EvaluationPeriods"], alarm["DatapointsToAlarm"]) == (60, 5, 5)


def test_every_alarm_is_simple_and_pages(either):
    """One metric each, without mathematics, to the page topic, both when it begins and when it is over."""
    page = either.body["Outputs"]["PageTopicArn"]["Value"]
    for alarm in either.of("CloudWatch::Alarm").values():
        assert alarm["MetricName"]
        assert "Metrics" not in alarm
        assert alarm["AlarmActions"] == alarm["OKActions"] == [page]


def described(template: Template) -> Iterable[Mapping[str, Any]]:
    return [*template.of("CloudWatch::Alarm").values(), *template.of("CloudWatch::CompositeAlarm").values()]


def test_every_alarm_has_its_meaning_and_its_runbook(template):
    """The last words are a page that there is a name for."""
    for alarm in described(template):
        said = PLACE.fullmatch(alarm["AlarmDescription"])
        assert said, alarm["AlarmDescription"]
        name = said["place"].removeprefix("docs/runbooks/").removesuffix(".md")
        assert name in list(Runbook), alarm["AlarmDescription"]


def test_all_of_them_are_one_state(either):
    """RerailUnhealthy is over every alarm there is; it informs, and leaves paging to the alarm that it is about."""
    (health,) = either.of("CloudWatch::CompositeAlarm").values()
    alarms = set(either.of("CloudWatch::Alarm"))
    assert health["AlarmName"] == "RerailUnhealthy"
    assert set(re.findall(r'ALARM\("<(\w+)>"\)', text(health["AlarmRule"]))) == alarms
    assert text(health["AlarmRule"]).count(" OR ") == len(alarms) - 1
    assert health["AlarmActions"] == health["OKActions"] == [either.body["Outputs"]["InformTopicArn"]["Value"]]
    assert len(alarms) <= 100  # more a composite alarm does not take


def test_alarms_may_publish_on_their_topics(template):
    """CloudWatch may publish to both, for this account alone."""
    documents = [policy["PolicyDocument"] for policy in template.of("SNS::TopicPolicy").values()]
    said = [s for document in documents for s in document["Statement"] if s["Sid"] == "Alarms"]
    outputs = template.body["Outputs"]
    assert {text(s["Resource"]) for s in said} == {
        text(outputs[name]["Value"]) for name in ("PageTopicArn", "InformTopicArn")
    }
    assert {text(s["Principal"]["Service"]) for s in said} == {"cloudwatch.amazonaws.com"}
    assert all(s["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}} for s in said)


def test_runbooks_are_linked_where_the_docs_are_served(full):
    for alarm in described(full):
        assert re.search(r" https://docs\.example\.com/rerail/runbooks/[a-z-]+/$", alarm["AlarmDescription"])
