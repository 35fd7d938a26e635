"""A whole recovery in the deployed stack of a job that tells its secrets: they are heard nowhere."""

import json
from pathlib import Path

import pytest

from rerail.incident_report.location import make_page_key
from rerail.model.codec import dumps
from rerail.model.signatures import VARIABLE
from tests.deployed.jobs import Account, NotificationQueue, rerail

pytestmark = pytest.mark.slow
TALKATIVE = Path(__file__).parent / "talkative_script.py"
KEY = "5ea1" * 16
PASSWORD = "correct-horse-battery"
SECRETS = {
    "WANDB_API_KEY": "wandb-0123456789abcdef",
    "DATABASE_URL": f"postgres://trainer:{PASSWORD}@db.internal/runs",
    "DEPLOY_PASSWORD": "Tr0ub4dor-and-3",
    VARIABLE: KEY,
}


@pytest.mark.threat("T16")
def test_no_secret_of_a_job_is_published(account: Account, environment: dict[str, str], state_dir: Path):
    """Its environment holds four, its failure quotes them, its log prints them. Neither the functions' logs, nor the
    notices, nor the report, nor the record, nor the command line says one; the successor is handed all of them."""
    queue = NotificationQueue(account, "ears-for-secrets", "PageTopicArn", "InformTopicArn")
    name = account.submit("talkative", script=TALKATIVE, steps=60, **SECRETS)
    run = account.run_in(name, "completed")
    assert account.jobs(name) == [name, f"{name}-a002"]
    handed = account.sagemaker.describe_training_job(TrainingJobName=f"{name}-a002")["Environment"]
    assert {key: handed[key] for key in SECRETS} == SECRETS

    s3, bucket = account.aws.client("s3"), account.aws.outputs["ReportsBucket"]

    def drawn() -> str:
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=make_page_key(name)).get("KeyCount")
        return s3.get_object(Bucket=bucket, Key=make_page_key(name))["Body"].read().decode() if listed else ""

    messages = account.wait("a notice", lambda: [json.dumps(message) for message in queue.received(about=name)])
    record = dumps(run).replace(KEY, "", 1)  # in its own field; whoever may read the table may read the request too
    page = account.wait("the report", drawn)
    assert "NCCL error" in page
    places = {
        "the notices": "\n".join(messages),
        "the record": record,
        "the timeline": "\n".join(map(dumps, account.runs.timeline(name))),
        "the report": page,
        "rerail show": rerail(environment, "show", name, "--local").stdout,
        "rerail show --json": rerail(environment, "show", name, "--local", "--json").stdout,
        "rerail status": rerail(environment, "status", "--local").stdout,
        **logs_of_the_functions(account),
        **{path.name: path.read_text(errors="replace") for path in state_dir.glob("*.log")},
    }
    print({place: len(text) for place, text in places.items()})
    assert all(places.values()), "nothing was looked at"
    assert not [
        (place, secret) for place, text in places.items() for secret in [*SECRETS.values(), PASSWORD] if secret in text
    ]


def logs_of_the_functions(account: Account) -> dict[str, str]:
    """What each function of the stack has logged."""
    logs = account.aws.client("logs")
    groups = [group["logGroupName"] for group in logs.describe_log_groups()["logGroups"]]
    return {
        group: "\n".join(event["message"] for event in logs.filter_log_events(logGroupName=group)["events"])
        for group in groups
        if not group.startswith("/aws/sagemaker/")
    }
