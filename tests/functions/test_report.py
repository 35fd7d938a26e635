"""The report as Lambda calls it: notices in, a page a run out; one that fails keeps no other back."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import report
import supervise
from rerail.aws.clients import client
from rerail.incident_report.location import FLEET_KEY
from rerail.model.run import RunState
from tests.functions.account import REPORTS, Context, sample
from tests.functions.test_supervise import batch


def noticed(*runs: str) -> dict[str, Any]:
    """What the queue hands over: the bus's events as they are."""
    event = sample("notice_page")
    return batch(*(event | {"detail": event["detail"] | {"run": run}} for run in runs))


def page(run: str) -> str:
    body: bytes = client("s3").get_object(Bucket=REPORTS, Key=f"runs/{run}/report.html")["Body"].read()
    return body.decode()


def adopted(account: Any, name: str) -> None:
    """A run that the supervisor knows."""
    account.submit(name)
    event = sample("training_job_state_change")
    event["detail"]["TrainingJobName"] = name
    assert supervise.handler(batch(event), Context()) == {"batchItemFailures": []}


def test_each_run_gets_its_page(account):
    """Two notices of one run and one of another; one about a job that belongs to no run has none."""
    for name in ("gpt-7b", "bert"):
        adopted(account, name)
    answer = report.handler(noticed("gpt-7b", "bert", "gpt-7b", "nobodys"), Context("report"))
    assert answer == {"batchItemFailures": []}
    assert "gpt-7b" in page("gpt-7b")
    assert "https://docs.example.com" not in page("bert"), "nothing is to be done, so no runbook is named"
    assert "sagemaker/home?region=eu-west-1#/jobs/bert" in page("bert")
    assert client("s3").list_objects_v2(Bucket=REPORTS)["KeyCount"] == 2


def test_a_notice_that_cannot_be_drawn_goes_back_alone(account, logged):
    """Its record cannot be read; the other's page is drawn."""
    for name in ("gpt-7b", "broken"):
        adopted(account, name)
    client("dynamodb").update_item(
        TableName="Rerail-Runs",
        Key={"pk": {"S": "run#broken"}, "sk": {"S": "run"}},
        UpdateExpression="SET doc = :doc",
        ExpressionAttributeValues={":doc": {"S": "{}"}},
    )
    event = noticed("broken", "gpt-7b")
    answer = report.handler(event, Context("report"))
    assert answer == {"batchItemFailures": [{"itemIdentifier": event["Records"][0]["messageId"]}]}
    assert "gpt-7b" in page("gpt-7b")
    drawn = [line for line in logged() if line.get("message") == "drawn"]
    assert [line["run"] for line in drawn] == ["gpt-7b"]
    assert drawn[0]["bytes"] == len(page("gpt-7b").encode())


def test_a_message_is_read_as_eventbridge_writes_it():
    """The rule hands the whole event over, with the notice as its detail."""
    body = json.loads(noticed("gpt-7b")["Records"][0]["body"])
    assert (body["source"], body["detail-type"], body["detail"]["run"]) == ("rerail", "Rerail Notice", "gpt-7b")


def changed(after: timedelta) -> dict[str, Any]:
    """Return a state change as its queue delivers it, of so long after now."""
    event = {"source": "rerail", "detail-type": "Rerail Run State Change", "detail": {"run": "gpt-7b"}}
    return batch(event | {"time": f"{datetime.now(UTC) + after:%Y-%m-%dT%H:%M:%SZ}"})


def fleet_page() -> str:
    body: bytes = client("s3").get_object(Bucket=REPORTS, Key=FLEET_KEY)["Body"].read()
    return body.decode()


def test_a_state_change_renews_the_page_of_all_runs(account):
    """Open runs are on it, and ended ones that have a report; each is linked to its report in the console."""
    adopted(account, "gpt-7b")
    adopted(account, "bert")
    report.handler(noticed("bert"), Context("report"))
    run = account.runs.load("bert")
    account.runs.save(replace(run, state=RunState.COMPLETED, version=run.version + 1))
    assert report.handler(changed(timedelta()), Context("report")) == {"batchItemFailures": []}
    page = fleet_page()
    assert "1 run is open, none waiting for a person" in page
    assert page.index("gpt-7b") < page.index("bert") and "completed" in page
    assert "console.aws.amazon.com/s3/object/rerail-reports?region=eu-west-1&amp;prefix=runs/gpt-7b/report.html" in page


def test_the_page_is_not_rendered_twice_in_a_minute(account, logged):
    """A burst of changes renders one page, as does each that the later queue delivers after it."""
    adopted(account, "gpt-7b")
    for after in (timedelta(), timedelta(seconds=1), -timedelta(minutes=3)):
        assert report.handler(changed(after), Context("report")) == {"batchItemFailures": []}
    assert [line["drawn"] for line in logged() if line.get("message") == "fleet"] == [True, False, False]


def test_a_change_without_a_time_goes_back(account):
    event = changed(timedelta())
    event["Records"][0]["body"] = event["Records"][0]["body"].replace('"time"', '"tme"')
    assert len(report.handler(event, Context("report"))["batchItemFailures"]) == 1
