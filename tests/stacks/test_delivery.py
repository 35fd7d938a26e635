"""What is sent arrives, or lies where somebody is told of it."""

import json

import pytest
from ministack.services.eventbridge import _matches_pattern

from rerail.messages import messages
from rerail.model import mailbox
from rerail.notices.notifiers.targets import NOTIFIERS
from stacks import ROOT
from tests.stacks.template import target

STORED = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "tests" / "events").glob("*.json"))}
# Batches as Lambda hands them over are stored there too; a bus never sees those.
SAMPLES = {name: event for name, event in STORED.items() if "detail-type" in event}
GOLDEN = ROOT / "tests" / "notices" / "golden"
for receiver in NOTIFIERS:
    body = json.loads((GOLDEN / f"held.{receiver.name.lower()}.json").read_text())
    SAMPLES[f"to_{receiver.name}"] = {"source": "rerail", "detail-type": receiver.detail_type, "detail": body}
ACCOUNT = "111122223333"
MAILBOX = mailbox.make_bucket_name(ACCOUNT, "eu-west-1")
QUEUE, FUNCTION, ADDRESS = "SQS::Queue", "Lambda::Function", "Events::ApiDestination"
BUS = "the default bus"  # every account has it, so it is no resource of the template
# By the rule's name without its hash: how the files of the samples begin that are for it, and what it sends them to.
# A notice goes to people, and makes the run's report be drawn, at once and later; a change of state, all runs' page.
RULES = {
    "AlarmEventsRule": ("alarm_on_a_job", [QUEUE]),
    "JobEventsRule": ("training_job", [QUEUE]),
    "CommandsRule": ("operator_command", [QUEUE]),
    "ReportsRule": ("report", [QUEUE]),
    "HyperPodEventsRule": ("hyperpod", [QUEUE]),
    "NoticesRule": ("notice", [FUNCTION]),
    "ReportRule": (("notice", "run_"), [QUEUE, QUEUE]),
    "ForwardRule": ("run_", [BUS]),
}
RECEIVER_RULES = {
    f"Notices{receiver}{rule}": (samples, [ADDRESS])
    for receiver in ("PagerDuty", "Webhook")
    for rule, samples in (("AlarmBegun", "own_alarm_begun"), ("AlarmOver", "own_alarm_over"))
} | {"NoticesPagerDutyRule": ("to_PagerDuty", [ADDRESS]), "NoticesWebhookRule": ("to_webhook", [ADDRESS])}
# Events on our bus come from this account: it has no policy that lets another in.
OF_OUR_BUS = {"NoticesRule", "ReportRule", "ForwardRule", "NoticesPagerDutyRule", "NoticesWebhookRule"}


def matches(template, rule, event, account=ACCOUNT):
    """Return whether the rule matches on the bus that the event travels on, by the emulator's matcher of patterns."""
    bus = "aws." if "EventBusName" not in rule else "rerail"
    entry = {"Source": event["source"], "DetailType": event["detail-type"], "Detail": json.dumps(event["detail"])}
    entry |= {"Account": account, "Resources": event.get("resources", [])}
    pattern = json.dumps(rule["EventPattern"])
    mailbox_id = target(template.body["Outputs"]["MailboxBucket"]["Value"])
    stack = {"Fn::Join": ["", [{"Ref": "AWS::StackName"}, "-"]]}
    for reference, value in (({"Ref": mailbox_id}, MAILBOX), ({"Ref": "AWS::AccountId"}, ACCOUNT), (stack, "Rerail-")):
        pattern = pattern.replace(json.dumps(reference), json.dumps(value))
    return event["source"].startswith(bus) and _matches_pattern(pattern, entry)


def find_kind(template, arn):
    """Return what kind of resource a rule sends to."""
    if json.dumps(arn).endswith(':event-bus/default"]]}'):
        return BUS
    return template.resources[target(arn)]["Type"].removeprefix("AWS::")


def rules_of(templates):
    """Yield each rule of every template: which it is, its name without the hash, its properties."""
    for variant, template in templates.items():
        for id, rule in template.of("Events::Rule").items():
            yield f"{variant}: {id}", id[:-8], template, rule


def test_each_rule_matches_the_events_it_is_for_and_no_other(templates):
    """Of every template with every option, among all stored events; and sends them where it is meant to."""
    found, meant = {}, {}
    for which, name, template, rule in rules_of(templates):
        begins, kinds = (RULES | RECEIVER_RULES)[name]
        reached = [find_kind(template, one["Arn"]) for one in rule["Targets"]]
        found[which] = ({sample for sample, event in SAMPLES.items() if matches(template, rule, event)}, reached)
        meant[which] = ({sample for sample in SAMPLES if sample.startswith(begins)}, kinds)
    assert found == meant
    assert all(samples for samples, _ in found.values()), "a rule without an event is not tested"
    names = {which.partition(": ")[2][:-8] for which in found}
    assert names == set(RULES | RECEIVER_RULES)


def test_events_of_another_account_match_no_rule(templates):
    """Buses may be given the events of others: a job or a cluster of the same name is none of ours."""
    matched = {
        name
        for _, name, template, rule in rules_of(templates)
        for event in SAMPLES.values()
        if matches(template, rule, event, account="999988887777")
    }
    assert matched == OF_OUR_BUS


@pytest.mark.parametrize("field", ["source", "detail-type"])
def test_an_event_of_a_similar_name_matches_no_rule(templates, field):
    """Patterns compare whole names: neither a longer nor a shorter one is theirs."""
    for _, _, template, rule in rules_of(templates):
        for event in SAMPLES.values():
            for name in (f"{event[field]}2", event[field][:-1]):
                assert not matches(template, rule, event | {field: name})


def put(key, bucket=MAILBOX):
    """S3's event for a new object, as far as patterns look."""
    detail = {"bucket": {"name": bucket}, "object": {"key": key, "size": 300}, "reason": "PutObject"}
    return {"source": "aws.s3", "detail-type": "Object Created", "detail": detail}


@pytest.mark.parametrize(
    ("event", "matching"),
    [
        (put(mailbox.make_report_key("train-7", "hello-1")), True),
        (put(mailbox.make_heartbeat_key("train-7")), False),
        (put(mailbox.make_command_key("train-7")), False),
        (put(f"{mailbox.make_report_key('train-7', 'hello-1')}.tmp"), False),
        (put(mailbox.make_report_key("train-7", "hello-1"), bucket="sagemaker-eu-west-1-111122223333"), False),
    ],
)
def test_only_reports_in_the_mailbox_reach_the_queue(template, event, matching):
    """A heartbeat a minute for each job would be a message a minute for nothing; our own commands are no news to us."""
    assert [matches(template, rule, event) for rule in template.of("Events::Rule").values()].count(True) == matching


def test_the_rules_match_the_names_in_the_code(template):
    patterns = [rule["EventPattern"] for rule in template.of("Events::Rule").values() if "EventBusName" in rule]
    spoken = {(pattern["source"][0], kind) for pattern in patterns for kind in pattern["detail-type"]}
    of_runs = {(messages.RERAIL, messages.NOTICE), (messages.RERAIL, messages.RUN_STATE_CHANGE)}
    assert spoken == {(messages.OPERATOR, messages.COMMAND), *of_runs}


def dead_letter_queues(template):
    """Logical ids of all queues that something names as its dead-letter queue."""
    rules = [one["DeadLetterConfig"]["Arn"] for r in template.of("Events::Rule").values() for one in r["Targets"]]
    schedules = [s["Target"]["DeadLetterConfig"]["Arn"] for s in template.of("Scheduler::Schedule").values()]
    functions = template.of("Lambda::Function").values()
    asynchronous = [f["DeadLetterConfig"]["TargetArn"] for f in functions if "DeadLetterConfig" in f]
    queues = template.of("SQS::Queue").values()
    redriven = [q["RedrivePolicy"]["deadLetterTargetArn"] for q in queues if "RedrivePolicy" in q]
    return [target(arn) for arn in rules + schedules + asynchronous + redriven]


def test_whatever_can_fail_to_deliver_has_a_queue_of_its_own(template):
    """Rule targets, the schedule, functions that are invoked asynchronously and the signals queue: no two share one,
    except for the two looks of a report at one notice."""
    used = dead_letter_queues(template)
    shared = {queue for queue in used if used.count(queue) > 1}
    assert {queue.partition("Queue")[0] for queue in shared} == {"ReportDeadLetters", "ReportUndelivered"}
    assert (
        len(template.of("SQS::Queue")) == len(set(used)) + 5
    )  # and the supervisor's three queues, and the report's two
    assert [n for n in ("supervise", "sweep", "notify") if "DeadLetterConfig" in template.function(n)] == [
        "sweep",
        "notify",
    ]


def test_every_rule_may_send_dead_letters(template):
    for id, rule in template.of("Events::Rule").items():
        for one in rule["Targets"]:
            queue = target(one["DeadLetterConfig"]["Arn"])
            assert {"Fn::GetAtt": [id, "Arn"]} in allowed_rules(template, queue)


def allowed_rules(template, queue):
    """ARNs of the rules that may send to the queue."""
    documents = [
        p["PolicyDocument"] for p in template.of("SQS::QueuePolicy").values() if target(p["Queues"][0]) == queue
    ]
    statements = [s for document in documents for s in document["Statement"] if s["Effect"] == "Allow"]
    return [s["Condition"]["ArnEquals"]["aws:SourceArn"] for s in statements]


@pytest.mark.threat("T11")
@pytest.mark.parametrize(
    ("name", "count"), [("SignalsQueueUrl", 1), ("FiledReportsQueueUrl", 1), ("CommandQueueUrl", 3)]
)
def test_a_queue_of_signals_hears_its_rules_only(template, name, count):
    """Events of jobs and clusters, alarms and commands, and reports, come by rules; wake-ups from the sweep's role."""
    queue = target(template.body["Outputs"][name]["Value"])
    rules = [id for id, rule in template.of("Events::Rule").items() if target(rule["Targets"][0]["Arn"]) == queue]
    assert sorted(target(arn) for arn in allowed_rules(template, queue)) == sorted(rules)
    assert len(rules) == count


@pytest.mark.threat("T11")
def test_rules_alone_write_commands(template):
    """Whatever IAM allows a user or role: a request without a rule as its source is denied."""
    queue = target(template.body["Outputs"]["CommandQueueUrl"]["Value"])
    (policy,) = (p for p in template.of("SQS::QueuePolicy").values() if target(p["Queues"][0]) == queue)
    (denied,) = (s for s in policy["PolicyDocument"]["Statement"] if "ArnNotLike" in s.get("Condition", {}))
    assert (denied["Effect"], denied["Principal"], denied["Action"]) == ("Deny", {"AWS": "*"}, "sqs:SendMessage")
    assert template.function("supervise")["Environment"]["Variables"]["RERAIL_COMMANDS"]["Fn::GetAtt"][0] == queue
