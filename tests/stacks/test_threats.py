"""What the policies of buckets, queues, topics and buses let strangers do: the template's own, evaluated."""

from fnmatch import fnmatchcase
from typing import Any

import pytest

from rerail.incident_report.location import make_page_key
from rerail.model.mailbox import make_bucket_name, make_command_key, make_heartbeat_key, make_report_id, make_report_key
from tests.stacks.template import Template, many, target, text
from tests.stacks.test_delivery import matches

MAILBOX = make_bucket_name("<AWS::AccountId>", "<AWS::Region>")
REPORT, HEARTBEAT, COMMAND = make_report_key("gpt", "r1"), make_heartbeat_key("gpt"), make_command_key("gpt")
TRAINER = "arn:aws:iam::111122223333:role/SageMakerTrainer"


ONCE = make_report_key("gpt", make_report_id("a001-findings-non_finite-intervene-510", "0123456789abcdef"))


def refused(
    template: Template, bucket: str, action: str, key: str, *, by: str = TRAINER, tls: bool = True, once: bool = False
) -> bool:
    """Whether the bucket's own policy refuses the call, whatever the caller's role allows."""
    (document,) = (
        p["PolicyDocument"] for p in template.of("S3::BucketPolicy").values() if target(p["Bucket"]) == bucket
    )
    facts = {"aws:SecureTransport": str(tls).lower(), "aws:PrincipalArn": by}
    facts |= {"s3:if-none-match": "*"} if once else {}
    name = text(template.of("S3::Bucket")[bucket]["BucketName"])
    return any(_refuses(item, action, f"{name}/{key}" if key else name, facts) for item in document["Statement"])


def _refuses(statement: dict[str, Any], action: str, thing: str, facts: dict[str, str]) -> bool:
    actions = any(fnmatchcase(action, each) for each in many(statement["Action"]))
    things = [text(each).rpartition(":::")[2] for each in many(statement["Resource"])]
    things = [each.replace("<MailboxBucket.Arn>", MAILBOX) for each in things]
    here = any(fnmatchcase(thing, each) or each.startswith("<") for each in things)
    return statement["Effect"] == "Deny" and actions and here and _holds(statement.get("Condition", {}), facts)


def _holds(condition: dict[str, Any], facts: dict[str, str]) -> bool:
    """Of the operators, those that the template uses; any other is an error."""
    for operator, wanted in condition.items():
        for fact, value in wanted.items():
            value = f"role {target(value)}" if isinstance(value, dict) else str(value)
            given, absent = facts.get(fact), str(fact not in facts).lower()
            same = {"Bool": given == value, "ArnNotEquals": given != value, "Null": absent == value}[operator]
            if not same:
                return False
    return True


def buckets(template: Template) -> dict[str, str]:
    """Logical ids by the names of their outputs."""
    return {name: target(template.body["Outputs"][name]["Value"]) for name in ("MailboxBucket", "ReportsBucket")}


@pytest.mark.threat("T8")
@pytest.mark.parametrize(
    ("action", "key", "refuses"),
    [
        ("s3:PutObject", COMMAND, True),
        ("s3:DeleteObject", COMMAND, True),
        ("s3:PutObject", REPORT, False),
        ("s3:PutObject", HEARTBEAT, False),
        ("s3:DeleteObject", REPORT, True),
        ("s3:DeleteObjectVersion", HEARTBEAT, True),
        ("s3:DeleteObject", HEARTBEAT, True),
        ("s3:GetObject", COMMAND, False),
    ],
)
def test_a_training_role_can_only_speak_in_the_mailbox(template: Template, action: str, key: str, refuses: bool):
    """However much its own policies allow: commands are not its to write, and what was said is not its to take away."""
    assert refused(template, buckets(template)["MailboxBucket"], action, key) is refuses


@pytest.mark.threat("T8")
def test_no_report_is_overwritten(template: Template):
    """S3 refuses a report that is not written on the condition that there is none of its name."""
    mailbox = buckets(template)["MailboxBucket"]
    assert refused(template, mailbox, "s3:PutObject", ONCE)
    assert not refused(template, mailbox, "s3:PutObject", ONCE, once=True)
    assert not refused(template, mailbox, "s3:PutObject", HEARTBEAT)


@pytest.mark.threat("T8")
def test_the_supervisor_alone_commands(template: Template):
    """Its own role is the one that the refusal leaves out."""
    role = f"role {target(template.function('supervise')['Role'])}"
    assert not refused(template, buckets(template)["MailboxBucket"], "s3:PutObject", COMMAND, by=role)


@pytest.mark.threat("T9")
@pytest.mark.parametrize("name", ["MailboxBucket", "ReportsBucket"])
@pytest.mark.parametrize("action", ["s3:GetObject", "s3:PutObject", "s3:ListBucket", "s3:DeleteObject"])
def test_no_bucket_answers_without_tls(template: Template, name: str, action: str):
    """Whoever asks, and whatever for."""
    key = "" if action == "s3:ListBucket" else REPORT
    role = f"role {target(template.function('supervise')['Role'])}"
    assert refused(template, buckets(template)[name], action, key, by=role, tls=False)


@pytest.mark.threat("T9")
def test_no_bucket_can_be_opened_to_the_public(template: Template):
    """All four blocks, no access lists, no statement that allows anybody anything, and every object goes in time."""
    for id, bucket in template.of("S3::Bucket").items():
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        assert len(bucket["PublicAccessBlockConfiguration"]) == 4
        assert bucket["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
        assert all(rule["Status"] == "Enabled" for rule in bucket["LifecycleConfiguration"]["Rules"]), id
    for policy in template.of("S3::BucketPolicy").values():
        assert {statement["Effect"] for statement in policy["PolicyDocument"]["Statement"]} == {"Deny"}


@pytest.mark.threat("T10")
def test_only_aws_itself_speaks_on_the_default_bus(template: Template):
    """Every rule there asks for a source that begins with `aws.`, which PutEvents refuses to everybody else; so an
    operator's command, put there, reaches nobody."""
    rules = [rule for rule in template.of("Events::Rule").values() if "EventBusName" not in rule]
    assert rules
    for rule in rules:
        assert all(source.startswith("aws.") for source in rule["EventPattern"]["source"])
    forged = {"source": "rerail.operator", "detail-type": "Rerail Command", "detail": {"verb": "stop", "run": "gpt"}}
    assert not any(matches(template, rule, forged) for rule in rules)


@pytest.mark.threat("T10")
def test_on_our_own_bus_nobody_speaks_for_aws(template: Template):
    """Whoever may put events on the bus `rerail` can command and tell, and cannot claim that a job has failed."""
    rules = [rule for rule in template.of("Events::Rule").values() if "EventBusName" in rule]
    sources = {source for rule in rules for source in rule["EventPattern"]["source"]}
    assert sources <= {"rerail.operator", "rerail"}
    assert not template.of("Events::EventBusPolicy"), "no other account is let in"


@pytest.mark.threat("T11")
def test_who_may_send_to_a_queue_is_named(template: Template):
    """By its policy: services, each for one rule, topic or alarm of ours. By a role of ours: its own queue."""
    for policy in template.of("SQS::QueuePolicy").values():
        for statement in policy["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Allow":
                assert set(statement["Principal"]) == {"Service"}
                assert "aws:SourceArn" in str(statement["Condition"])


@pytest.mark.threat("T11")
def test_a_topic_is_closed_to_strangers(template: Template):
    """What a topic allows, it allows to services of AWS for this account's sake."""
    for policy in template.of("SNS::TopicPolicy").values():
        for statement in policy["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Allow":
                assert set(statement["Principal"]) == {"Service"}
                assert "aws:Source" in str(statement.get("Condition"))


@pytest.mark.threat("T8")
def test_the_reports_are_beyond_every_training_role(template: Template):
    """AmazonSageMakerFullAccess reaches buckets whose names hold `sagemaker`: the mailbox's does, for the agents' sake,
    and the reports' does not."""
    names = {name: text(template.of("S3::Bucket")[id]["BucketName"]) for name, id in buckets(template).items()}
    assert "sagemaker" in names["MailboxBucket"]
    assert "sagemaker" not in names["ReportsBucket"].lower()
    assert make_page_key("gpt").startswith("runs/gpt/")


@pytest.mark.threat("T23")
def test_no_role_reaches_a_bucket_of_another_account(template: Template):
    """A bucket's name may belong to any account: each statement of a role about S3 is for this account alone."""
    statements = [
        statement
        for policy in template.of("IAM::Policy").values()
        for statement in policy["PolicyDocument"]["Statement"]
        if any(action.startswith(("s3:", "*")) for action in many(statement["Action"]))
    ]
    assert statements
    for statement in statements:
        assert statement["Condition"]["StringEquals"]["aws:ResourceAccount"] == {"Ref": "AWS::AccountId"}, statement
    assert not [role for role in template.of("IAM::Role").values() if "s3:" in str(role.get("Policies"))]
