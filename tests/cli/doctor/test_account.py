"""`rerail doctor` on a deployment: sound, it says so; each thing that breaks is named, with what to do about it."""

import io
import json
import zipfile
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from cli.doctor import account, code
from cli.doctor.check import Check, CheckStatus, ask, find_worst
from cli.doctor.deployment import Deployment
from cli.place import now
from cli.project import find_policies
from rerail.model.policy import parse_policy, to_toml
from tests.cli.cloud import Cloud, Deployed, denied, refused

ROLE = "arn:aws:iam::1:role/Rerail-Supervise"
TRAINER = "arn:aws:iam::1:role/MySageMakerRole"
TRUST = {"Statement": [{"Principal": {"Service": "sagemaker.amazonaws.com"}}]}
PASSES = {"Effect": "Allow", "Action": "iam:PassRole", "Resource": "arn:aws:iam::1:role/*SageMaker*"}


def resource(kind: str, physical: str) -> dict[str, str]:
    return {"ResourceType": f"AWS::{kind}", "LogicalResourceId": physical, "PhysicalResourceId": physical}


RESOURCES = [
    resource("Events::Rule", "Rerail-JobEvents"),
    resource("Events::Rule", "rerail|Rerail-Commands"),
    resource("Scheduler::Schedule", "default|Rerail-Sweep"),
    resource("SQS::Queue", "https://sqs/1/signals"),
    resource("SQS::Queue", "https://sqs/1/dead"),
    resource("CloudWatch::Alarm", "Rerail-NoSweep"),
    resource("Events::Connection", "Rerail-Pager"),
]


def deployed_texts() -> list[dict[str, str]]:
    return [
        {"Name": f"/rerail/policies/{file.stem}", "Value": to_toml(parse_policy(file.read_text(), name=file.stem))}
        for file in find_policies().glob("*.toml")
    ]


def subscribed(TopicArn: str) -> dict[str, Any]:
    return {"Subscriptions": [{"SubscriptionArn": f"{TopicArn}:1", "Endpoint": "on-call@example.org"}]}


SOUND: dict[str, Any] = {
    "cloudformation.describe_stacks": {
        "Stacks": [{"StackStatus": "UPDATE_COMPLETE", "CreationTime": now() - timedelta(days=9)}]
    },
    "cloudformation.list_stack_resources": {"StackResourceSummaries": RESOURCES},
    "lambda.get_function": {"Configuration": {"Role": ROLE}, "Code": {"Location": "https://here"}},
    "lambda.list_event_source_mappings": {
        "EventSourceMappings": [{"State": "Enabled", "ScalingConfig": {"MaximumConcurrency": most}} for most in (8, 2)]
    },
    "lambda.get_account_settings": {"AccountLimit": {"UnreservedConcurrentExecutions": 1000}},
    "ssm.get_parameters_by_path": {"Parameters": deployed_texts()},
    "ssm.get_parameter": {"Parameter": {"Value": "on"}},
    "dynamodb.describe_table": {"Table": {"TableStatus": "ACTIVE", "DeletionProtectionEnabled": True}},
    "dynamodb.get_item": {"Item": {}},
    "events.describe_event_bus": {},
    "events.put_events": {"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]},
    "events.describe_connection": {"ConnectionState": "AUTHORIZED"},
    "events.list_rules": {
        "Rules": [{"Name": "Rerail-JobEvents", "State": "ENABLED"}, {"Name": "Rerail-Commands", "State": "ENABLED"}]
    },
    "scheduler.get_schedule": {"State": "ENABLED"},
    "s3.head_bucket": {},
    "sqs.get_queue_attributes": {"Attributes": {"ApproximateNumberOfMessages": "0"}},
    "cloudwatch.get_metric_statistics": lambda MetricName, **_: {
        "Datapoints": [{"Sum": 10.0 if MetricName == "Invocations" else 0.0}]
    },
    "cloudwatch.describe_alarms": {"MetricAlarms": [{"AlarmName": "Rerail-NoSweep", "StateValue": "OK"}]},
    "sns.list_subscriptions_by_topic": subscribed,
    "iam.list_roles": {"Roles": [{"RoleName": "MySageMakerRole", "Arn": TRAINER, "AssumeRolePolicyDocument": TRUST}]},
    "iam.list_role_policies": {"PolicyNames": ["Default"]},
    "iam.get_role_policy": {"PolicyDocument": {"Statement": [PASSES]}},
}


@pytest.fixture(autouse=True)
def same_code(monkeypatch):
    """What is deployed is what lies here, unless a test says otherwise."""
    monkeypatch.setattr(code, "read_deployed_files", lambda url: code.list_files())


def asked(changes: Mapping[str, Any] | None = None, **outputs: str) -> dict[str, Check]:
    deployment = Deployment(Deployed(Cloud({**SOUND, **(changes or {})}), **outputs))
    return {check.name: check for check in ask("account", account.QUESTIONS, deployment)}


def test_a_sound_deployment_is_sound_in_every_point():
    answers = asked()
    assert len(answers) == len(account.QUESTIONS)
    assert {name: check.said for name, check in answers.items() if check.verdict is not CheckStatus.OK} == {}
    assert find_worst(list(answers.values())) is CheckStatus.OK


BROKEN = {
    "a_failed_stack": ("stack", {"cloudformation.describe_stacks": {"Stacks": [{"StackStatus": "UPDATE_FAILED"}]}}),
    "a_missing_table": ("table", {"dynamodb.describe_table": refused("ResourceNotFoundException")}),
    "a_missing_bus": ("bus", {"events.describe_event_bus": refused("ResourceNotFoundException")}),
    "a_missing_mailbox": ("mailbox", {"s3.head_bucket": refused("404")}),
    "a_deleted_rule": ("rules", {"events.list_rules": {"Rules": [{"Name": "Rerail-Commands", "State": "ENABLED"}]}}),
    "a_disabled_rule": (
        "rules",
        {
            "events.list_rules": {
                "Rules": [
                    {"Name": "Rerail-JobEvents", "State": "DISABLED"},
                    {"Name": "Rerail-Commands", "State": "ENABLED"},
                ]
            }
        },
    ),
    "a_schedule_that_is_off": ("schedule", {"scheduler.get_schedule": {"State": "DISABLED"}}),
    "no_sweep": ("sweep", {"cloudwatch.get_metric_statistics": {"Datapoints": []}}),
    "only_failing_sweeps": ("sweep", {"cloudwatch.get_metric_statistics": {"Datapoints": [{"Sum": 5.0}]}}),
    "a_bus_that_refuses": (
        "delivery",
        {"events.put_events": {"FailedEntryCount": 1, "Entries": [{"ErrorMessage": "no"}]}},
    ),
    "a_queue_that_nobody_reads": (
        "supervise",
        {"lambda.list_event_source_mappings": {"EventSourceMappings": [{"State": "Disabled"}]}},
    ),
    "a_dead_letter": (
        "dead letters",
        {"sqs.get_queue_attributes": {"Attributes": {"ApproximateNumberOfMessages": "3"}}},
    ),
    "a_pager_that_is_not_let_in": ("receivers", {"events.describe_connection": {"ConnectionState": "DEAUTHORIZED"}}),
    "an_alarm": (
        "alarms",
        {"cloudwatch.describe_alarms": {"MetricAlarms": [{"AlarmName": "Rerail-NoSweep", "StateValue": "ALARM"}]}},
    ),
    "a_pause_that_is_not_valid": ("pause", {"ssm.get_parameter": {"Parameter": {"Value": "maybe"}}}),
    "a_policy_that_cannot_be_read": (
        "deployed policies",
        {"ssm.get_parameters_by_path": {"Parameters": [{"Name": "/rerail/policies/mine", "Value": "mode = 3"}]}},
    ),
    "roles_that_may_not_be_passed": (
        "training roles",
        {"iam.get_role_policy": {"PolicyDocument": {"Statement": [{**PASSES, "Resource": "arn:aws:iam::1:role/E"}]}}},
    ),
}


@pytest.mark.parametrize("name, changes", BROKEN.values(), ids=list(BROKEN))
def test_what_is_broken_is_named_with_its_remedy(name, changes):
    answers = asked(changes)
    assert answers[name].verdict is CheckStatus.BROKEN
    assert answers[name].remedy
    assert find_worst(list(answers.values())) is CheckStatus.BROKEN


def test_the_local_aws_warns_of_nothing_that_its_user_could_not_change():
    """It sends no mails, whatever cdk.json says."""
    cloud = Cloud({**SOUND, "sns.list_subscriptions_by_topic": {"Subscriptions": []}})
    answers = list(ask("account", account.QUESTIONS, Deployment(Deployed(cloud, is_local=True))))
    assert [check.name for check in answers if check.verdict is not CheckStatus.OK] == []


def test_messages_that_are_worked_on_are_no_dead_letters():
    """A queue that gives its messages up to another one may hold some at any moment."""
    attributes = {"ApproximateNumberOfMessages": "3", "RedrivePolicy": "{}"}
    answers = asked({"sqs.get_queue_attributes": {"Attributes": attributes}})
    assert answers["dead letters"].verdict is CheckStatus.OK


WARNED = {
    "an_interrupted_first_deployment": ("table", {"dynamodb.describe_table": {"Table": {"TableStatus": "ACTIVE"}}}),
    "a_pause": ("pause", {"ssm.get_parameter": {"Parameter": {"Value": "off"}}}),
    "nobody_on_call": ("people", {"sns.list_subscriptions_by_topic": {"Subscriptions": []}}),
    "an_unconfirmed_address": (
        "people",
        {
            "sns.list_subscriptions_by_topic": {
                "Subscriptions": [{"SubscriptionArn": "PendingConfirmation", "Endpoint": "a@example.org"}]
            }
        },
    ),
    "policies_that_differ": ("deployed policies", {"ssm.get_parameters_by_path": {"Parameters": deployed_texts()[1:]}}),
    "a_new_account": (
        "concurrency",
        {"lambda.get_account_settings": {"AccountLimit": {"UnreservedConcurrentExecutions": 10}}},
    ),
    "a_deployment_under_way": (
        "stack",
        {"cloudformation.describe_stacks": {"Stacks": [{"StackStatus": "UPDATE_IN_PROGRESS"}]}},
    ),
    "a_stack_without_its_first_sweep": (
        "sweep",
        {
            "cloudwatch.get_metric_statistics": {"Datapoints": []},
            # When it is asked for: the module may have been imported long before.
            "cloudformation.describe_stacks": lambda **_: {
                "Stacks": [{"StackStatus": "CREATE_COMPLETE", "CreationTime": now()}]
            },
        },
    ),
}


@pytest.mark.parametrize("name, changes", WARNED.values(), ids=list(WARNED))
def test_a_questionable_setting_is_a_warning_and_does_not_fail(name, changes):
    answers = asked(changes)
    assert answers[name].verdict is CheckStatus.WARN
    assert answers[name].remedy
    assert find_worst(list(answers.values())) is CheckStatus.WARN


@pytest.mark.parametrize("operation", sorted(SOUND))
def test_a_lacking_permission_is_named_and_ends_nothing(operation):
    """Whatever may not be looked at is unknown, with the permission; the other questions are answered as ever."""
    answers = asked({operation: denied("some:Permission")})
    assert len(answers) == len(account.QUESTIONS)
    unknown = [check for check in answers.values() if check.verdict is CheckStatus.UNKNOWN]
    assert unknown
    assert all("some:Permission" in check.said and "some:Permission" in check.remedy for check in unknown)
    assert all(check.verdict in (CheckStatus.OK, CheckStatus.UNKNOWN) for check in answers.values())


def test_where_nothing_may_be_looked_at_nothing_is_known():
    """Then there is no verdict, which the exit status 2 stands for."""
    answers = asked(dict.fromkeys(SOUND, denied("any:Thing")))
    known = [check for check in answers.values() if check.verdict is not CheckStatus.UNKNOWN]
    assert [check.name for check in known] == ["region"]


def test_a_stack_that_is_older_than_the_command_line_is_named():
    """It lacks an output that is read."""
    assert asked(MailboxBucket="")["stack"].verdict is CheckStatus.BROKEN
    assert "MailboxBucket" in asked(MailboxBucket="")["stack"].said


def archive(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        for name, body in files.items():
            made.writestr(name, body)
    return content.getvalue()


def test_code_of_another_version_is_named_file_by_file(monkeypatch, tmp_path):
    """Files of ours that differ, are new or are gone; what a build adds from elsewhere is no difference."""
    here = {"rerail/a.py": b"1", "rerail/b.py": b"2", "sweep.py": b"3"}
    there = {"rerail/a.py": b"1", "rerail/b.py": b"other", "rerail/gone.py": b"", "aws_lambda_powertools/x.py": b""}
    assert code.find_differences(dict(here), dict(here)) == []
    assert code.find_differences(there, here) == ["rerail/b.py", "rerail/gone.py", "sweep.py"]
    monkeypatch.setattr(code, "read_deployed_files", lambda url: there)
    said = asked()["functions code"]
    assert said.verdict is CheckStatus.WARN and "rerail/decisions/decide.py" not in said.said and "more" in said.said


def test_an_archive_is_read_from_its_link_and_never_run(monkeypatch, tmp_path):
    """Only Python files count; what is no archive cannot be told."""
    file = tmp_path / "code.zip"
    file.write_bytes(archive({"rerail/a.py": b"raise SystemExit", "data.json": json.dumps({}).encode()}))
    monkeypatch.undo()
    assert code.read_deployed_files(file.as_uri()) == {"rerail/a.py": b"raise SystemExit"}
    file.write_bytes(b"no archive")
    answers = asked({"lambda.get_function": {"Configuration": {"Role": ROLE}, "Code": {"Location": file.as_uri()}}})
    assert answers["functions code"].verdict is CheckStatus.UNKNOWN
