"""Asynchronous invocation, dead letters, destinations, concurrency and queues as event sources."""

import io
import json
import zipfile
from itertools import pairwise

import pytest

from local.stack import LocalAws
from tests.local.conftest import SAMPLE
from tests.local.waiting import Mailbox, eventually, put_event

pytestmark = pytest.mark.slow


def test_failed_run_of_a_rule_is_tried_again(aws: LocalAws, seen: Mailbox) -> None:
    """A function that a rule started and that failed once is run again and may succeed."""
    put_event(aws, "Flaky")
    first, second = seen.find(lambda m: m["body"].get("function") == "Flaky", count=2)
    assert first["body"]["event"]["id"] == second["body"]["event"]["id"]


def test_dead_letter_queue_gets_the_event_itself(aws: LocalAws, seen: Mailbox) -> None:
    """After three tries the event, not an envelope, lies in the function's dead-letter queue, with its error.

    A second in which the function runs counts as one second of its greatest age of 15 minutes.
    """
    put_event(aws, "Dead", once="dead", seconds=1)
    [letter] = Mailbox(aws, "DeadLetters").find(lambda m: m["body"]["detail"]["once"] == "dead")
    assert letter["attributes"]["ErrorMessage"] == "no luck"
    assert set(letter["attributes"]) == {"RequestID", "ErrorCode", "ErrorMessage"}
    assert len(seen.find(lambda m: m["body"].get("event", {}).get("detail", {}).get("once") == "dead", count=3)) == 3


def test_a_failure_destination_gets_the_request_and_the_error(aws: LocalAws) -> None:
    """The on-failure destination is told how often the function was run, with one retry allowed: twice."""
    put_event(aws, "Told", once="told")
    [message] = Mailbox(aws, "Failures").find(lambda m: m["body"]["requestPayload"]["detail"] == {"once": "told"})
    assert message["body"]["requestContext"]["condition"] == "RetriesExhausted"
    assert message["body"]["requestContext"]["approximateInvokeCount"] == 2
    assert message["body"]["responsePayload"]["errorMessage"] == "no luck"


def test_no_event_is_lost_to_a_concurrency_limit(aws: LocalAws, seen: Mailbox) -> None:
    """Thirty events for a function with a reserved concurrency of one are all handled, one after another."""
    for number in range(30):
        put_event(aws, "Narrow", number=number)
    handled = seen.find(lambda m: m["body"].get("number", -1) >= 0, count=30)
    assert sorted(m["body"]["number"] for m in handled) == list(range(30))
    reserved = aws.client("lambda").get_function_concurrency(FunctionName=aws.outputs["NarrowName"])
    assert reserved["ReservedConcurrentExecutions"] == 1


def test_an_update_lets_a_running_invocation_end(aws: LocalAws, seen: Mailbox) -> None:
    """It is run once, in the worker of the older version; the next one runs in a new worker."""
    put_event(aws, "Narrow", number=100, seconds=3)
    [running] = seen.find(lambda m: m["body"].get("began") == 100)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.write(SAMPLE / "lambdas" / "probe.py", "probe.py")
    client = aws.client("lambda")
    client.update_function_code(FunctionName=aws.outputs["NarrowName"], ZipFile=archive.getvalue())
    put_event(aws, "Narrow", number=101)
    seen.find(lambda m: m["body"].get("number") == 100)
    [following] = seen.find(lambda m: m["body"].get("began") == 101)
    assert following["body"]["pid"] != running["body"]["pid"]
    assert len([m for m in seen.read() if m["body"].get("began") == 100]) == 1


def test_event_for_a_deleted_function_goes_to_the_dead_letter_queue_of_the_target(aws: LocalAws) -> None:
    """A rule whose function is gone writes the event to the target's dead-letter queue and says why."""
    aws.client("lambda").delete_function(FunctionName=aws.outputs["GoneName"])
    put_event(aws, "Gone", once="gone")
    [letter] = Mailbox(aws, "Undelivered").find(lambda m: m["body"]["detail"] == {"once": "gone"})
    assert letter["attributes"]["ERROR_CODE"] == "NO_RESOURCE"
    assert aws.outputs["GoneName"] in letter["attributes"]["TARGET_ARN"]


def test_only_failed_messages_of_a_batch_come_back(aws: LocalAws, seen: Mailbox) -> None:
    """A message reported in batchItemFailures is received again, then dead-lettered; its neighbours are not."""
    entries = [{"Id": str(n), "MessageBody": json.dumps({"batch": n, "fail": n == 1})} for n in range(3)]
    aws.client("sqs").send_message_batch(QueueUrl=aws.outputs["WorkUrl"], Entries=entries)
    [dead] = Mailbox(aws, "WorkDead").find(lambda m: m["body"].get("batch") == 1)
    assert dead["body"]["fail"] is True

    def received() -> list[int]:
        bodies = [body for m in seen.read() for body in m["body"].get("bodies", [])]
        return sorted(body["batch"] for body in bodies if "batch" in body)

    eventually(lambda: len(received()) >= 4)
    assert received() == [0, 1, 1, 2]


def test_queue_consumer_never_runs_wider_than_its_maximum(aws: LocalAws, seen: Mailbox) -> None:
    """With MaximumConcurrency 2 no more than two batches of a queue are handled at the same moment."""
    sqs = aws.client("sqs")
    for number in range(8):
        sqs.send_message(QueueUrl=aws.outputs["WorkUrl"], MessageBody=json.dumps({"wide": number, "seconds": 0.3}))

    def wide() -> list[dict[str, float]]:
        return [m["body"] for m in seen.read() if any("wide" in body for body in m["body"].get("bodies", []))]

    eventually(lambda: sum(len(run["bodies"]) for run in wide()) >= 8)
    runs = wide()
    assert sum(len(run["bodies"]) for run in runs) == 8
    assert max(sum(other["began"] <= run["began"] < other["ended"] for other in runs) for run in runs) <= 2


def test_schedule_does_not_start_a_round_beside_one_that_runs(aws: LocalAws, seen: Mailbox) -> None:
    """A round of two seconds on a schedule of a minute, here of a second: the next one begins when it has ended."""
    functions = aws.client("lambda").list_functions()["Functions"]
    consume = next(function for function in functions if function["Handler"] == "probe.consume")
    client = aws.client("scheduler")
    [known] = client.list_schedules()["Schedules"]
    role = client.get_schedule(Name=known["Name"])["Target"]["RoleArn"]
    body = json.dumps({"round": True, "seconds": 2})
    client.create_schedule(
        Name="long-rounds",
        ScheduleExpression="rate(1 minute)",
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={
            "Arn": consume["FunctionArn"],
            "RoleArn": role,
            "Input": json.dumps({"Records": [{"messageId": "round", "body": body}]}),
        },
    )
    found = seen.find(lambda m: m["body"].get("bodies") == [json.loads(body)], count=3, within_s=60)
    client.delete_schedule(Name="long-rounds")
    rounds = sorted((message["body"]["began"], message["body"]["ended"]) for message in found)
    assert len(rounds) >= 3
    assert all(ended <= began for (_, ended), (began, _) in pairwise(rounds))


def test_schedule_without_its_function_writes_to_its_dead_letter_queue(aws: LocalAws) -> None:
    """A schedule whose function is gone keeps what it should have delivered."""
    client = aws.client("scheduler")
    [known] = client.list_schedules()["Schedules"]
    schedule = client.get_schedule(Name=known["Name"])
    missing = schedule["Target"]["Arn"].rpartition(":")[0] + ":nobody"
    client.create_schedule(
        Name="to-nobody",
        ScheduleExpression="rate(1 minute)",
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={**schedule["Target"], "Arn": missing, "Input": '{"to": "nobody"}'},
    )
    missed = Mailbox(aws, "Missed").find(lambda m: m["body"] == {"to": "nobody"})
    client.delete_schedule(Name="to-nobody")
    assert missed


def test_a_function_that_cannot_be_imported_reports_the_reason(aws: LocalAws) -> None:
    """The error of a function whose module raises holds the exception's type and the line."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("broken.py", "def handler(event, context): ...\n\nraise KeyError('policy')\n")
    client = aws.client("lambda")
    aws.client("iam").create_role(RoleName="any", AssumeRolePolicyDocument='{"Statement": []}')
    client.create_function(
        FunctionName="broken",
        Runtime="python3.13",
        Handler="broken.handler",
        Role="arn:aws:iam::000000000000:role/any",
        Code={"ZipFile": archive.getvalue()},
    )
    error = json.loads(client.invoke(FunctionName="broken", Payload=b"{}")["Payload"].read())["errorMessage"]
    assert "KeyError: 'policy'" in error
    assert 'broken.py", line 3' in error


def test_function_sees_nothing_of_the_user(aws: LocalAws) -> None:
    """A function's environment holds the credentials of its role and the emulator's endpoint, nothing of the host's."""
    answer = aws.client("lambda").invoke(FunctionName=aws.outputs["SweptName"], Payload=b"{}")
    environment = json.loads(answer["Payload"].read())
    assert environment["AWS_ENDPOINT_URL"] == aws.endpoint_url
    assert environment["AWS_ACCESS_KEY_ID"].startswith("ASIA")
    assert "PYTEST_CURRENT_TEST" not in environment
    assert "PYTHONPATH" not in environment
