"""Test what the command stores for the deployment, and how it reads unexpected messages."""

from datetime import UTC, datetime
from typing import Any

import pytest
import typer

from cli.acceptance.cleanup import Cleanup
from cli.acceptance.command import _check_role, _store
from cli.acceptance.listener import Listener
from cli.acceptance.session import DENIED_TEXTS
from local.repairs.log_filters import compile_pattern
from rerail.model.run import Attempt, Run, RunState
from tests.cli.acceptance.plan import PLAN
from tests.cli.cloud import Cloud, Deployed, denied, refused

ID = "rerail-acceptance-20261123120000"
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
SENT = {"SentTimestamp": "1795435210000"}
EVENT = (
    '{"detail-type": "SageMaker Training Job State Change", "detail": {"TrainingJobName": "x", '
    '"TrainingJobStatus": "Failed", "SecondaryStatus": null, "LastModifiedTime": %s}}'
)
NOTICE = '{"MessageAttributes": {"run": {"Value": "%s"}}, "Timestamp": "2026-11-23T12:00:00.000Z", "Subject": "held"}'


@pytest.mark.parametrize("error", ["AccessDeniedException", "AccessDenied", "AuthorizationError"])
def test_a_denied_call_is_found_in_the_logs_however_its_service_calls_it(error):
    line = f"An error occurred ({error}) when calling Describe: User: arn:aws:sts::1:x is not authorized to perform: y"
    finds = [compile_pattern(text)(line) for text in DENIED_TEXTS]
    assert finds == ["AccessDenied" in error, True] and compile_pattern("AccessDenied")(line) == (
        error == "AccessDenied"
    )


def test_the_measurements_are_stored_below_the_policies_or_the_assumed_times_hold():
    cloud, said = Cloud({"ssm.put_parameter": {}}), list[str]()
    _store(Deployed(cloud), "{}", said.append)
    ((name, request),) = cloud.asked
    assert request["Name"] == "/rerail/policies/acceptance/measured" and "estimates" in said[0]
    _store(Deployed(Cloud({"ssm.put_parameter": denied("ssm:PutParameter")})), "{}", said.append)
    assert "goes on with assumed times" in said[1] and "ssm:PutParameter" in said[1]


def test_a_role_that_sagemaker_may_not_take_on_stops_it_before_anything_is_started(capsys):
    """The doctor's questions about the roles are asked first; what cannot be told stops nothing."""
    cloud = Cloud({"iam.get_role": denied("iam:GetRole"), "lambda.get_function": denied("lambda:GetFunction")})
    cloud.answers |= {
        "iam.simulate_principal_policy": denied("iam:SimulatePrincipalPolicy"),
        "s3.get_bucket_encryption": denied("s3:GetEncryptionConfiguration"),
    }
    _check_role(Deployed(cloud), PLAN)
    cloud.answers["iam.get_role"] = {"Role": {"AssumeRolePolicyDocument": "{}"}}
    with pytest.raises(typer.Exit):
        _check_role(Deployed(cloud), PLAN)
    assert "role: SageMaker may not take on MySageMakerRole" in capsys.readouterr().err


class AcceptanceCloud(Deployed):
    """A deployment whose only run is held until it is told to stop, and where one job cannot be stopped any more."""

    @property
    def runs(self) -> Any:
        return self

    def load(self, name: str) -> Run | None:
        asked = any(call == "events.put_events" for call, _ in self.cloud.asked)  # type: ignore[attr-defined]
        state = RunState.STOPPED if asked else RunState.HELD
        return Run(name, "default", state, NOON, (Attempt(1, name),)) if name == f"{ID}-nan" else None


def test_a_clean_up_goes_on_after_what_it_may_not_do():
    """A held run is ended too, since its page would be repeated; each failure is named."""
    live = iter([[f"{ID}-nan"], []])
    cloud = Cloud(
        {
            "events.put_events": {"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]},
            "events.list_targets_by_rule": denied("events:ListTargetsByRule"),
            "sns.list_subscriptions_by_topic": {"Subscriptions": []},
            "sqs.get_queue_url": {"QueueUrl": "https://sqs/1/q"},
            "sqs.delete_queue": {},
            "sagemaker.list_training_jobs": lambda **request: {
                "TrainingJobSummaries": [
                    {"TrainingJobName": name}
                    for name in (next(live, []) if request.get("StatusEquals") == "InProgress" else [])
                    or ([f"{ID}-nan"] if "StatusEquals" not in request else [])
                ]
            },
            "sagemaker.stop_training_job": refused("ValidationException", "the job is in status Stopped."),
            "sagemaker.describe_training_job": {"TrainingJobArn": "arn", "WarmPoolStatus": {"Status": "Available"}},
            "sagemaker.update_training_job": {},
            "sagemaker.delete_tags": denied("sagemaker:DeleteTags"),
            "s3.list_objects_v2": lambda Bucket, Prefix: {"Contents": [{"Key": f"{Prefix}x"}]},
            "s3.delete_objects": {},
        }
    )
    cleanup = Cleanup(AcceptanceCloud(cloud, BusName="rerail"), "bucket", ID, sleep=lambda seconds: None)
    cleanup.remove_all()
    calls = [name for name, _ in cloud.asked]
    assert "sagemaker.update_training_job" in calls and calls.count("events.put_events") == 1
    assert {f"run {ID}-nan", f"warm pool of {ID}-nan", "9 objects", f"queue {ID}"} <= set(cleanup.removed)
    assert [problem.partition(":")[0] for problem in cleanup.problems] == ["remove rule", "remove tags"]


@pytest.mark.parametrize("time", ["1795435205000", '"1795435205000"', "null", '"yesterday"'])
def test_messages_of_any_form_are_taken_in(time: str):
    """Times are numbers or text; another run's notice and a stranger's message are left out."""
    bodies = [EVENT % time, NOTICE % f"{ID}-crash", NOTICE % "other", "[]", "{}"]
    messages = [{"Body": body, "ReceiptHandle": "x", "Attributes": SENT} for body in bodies]
    answers = iter([{"Messages": messages}, {}])
    cloud = Cloud(
        {
            "sqs.create_queue": {"QueueUrl": "https://sqs/1/q"},
            "sqs.get_queue_attributes": {"Attributes": {"QueueArn": f"arn:aws:sqs:eu-west-1:1:{ID}"}},
            "sqs.set_queue_attributes": {},
            "events.put_rule": denied("events:PutRule"),
            "sns.subscribe": {},
            "sqs.receive_message": lambda **request: next(answers),
            "sqs.delete_message": {},
        }
    )
    listener = Listener(Deployed(cloud), ID)
    listener.start()
    listener.read()
    (event,) = listener.events
    assert event.arrived_at == datetime(2026, 11, 23, 12, 0, 10, tzinfo=UTC)
    assert (event.changed_at is not None) is ("1795" in time)
    assert [notice.run for notice in listener.notices] == [f"{ID}-crash"]
    assert "events:PutRule" in listener.unread["events"]
