"""Read and write the choices of an account: the context of its file, values given with -c, and who is paged."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cli import place
from cli.deploy.target import LOOKUP_ROLE, Target
from cli.project import CHOICES, read_choices, write_own_files
from local.deploy import LOCAL_SCOPE
from rerail.model.checkpoints import split_uri
from rerail.requests.relaunch import POLICY_TAG, read_checkpoint_uri

PAGE = "pageEmail"
# What an account has to choose, and what it is asked.
SCOPE = {
    "trainingRoleArns": "Which roles may Rerail pass to jobs (ARNs, by commas)",
    "checkpointBuckets": "In which buckets may Rerail read checkpoints (names, by commas)",
}
# A job may name anything as its bucket, also a pattern for all.
ROLE, BUCKET = re.compile(r"arn:[\w+=.@:/-]+"), re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
ADDRESS = re.compile(r"[^@\s,;]+@[^@\s,;]+\.[^@\s,;]+")


def read(given: Sequence[str], file: Path = CHOICES) -> dict[str, Any]:
    """Return the values given as `name=value`; exit with an error for a name that the file does not have."""
    known = read_choices(file)
    chosen: dict[str, Any] = {}
    for choice in given:
        name, equals, value = choice.partition("=")
        if not equals:
            place.fail(f"-c {choice}: there is no value", f"write -c {choice}=VALUE")
        if name not in known:
            place.fail(f"-c {name}: it is not a choice", f"{file.name} has: {', '.join(sorted(known))}")
        chosen[name] = value
    return chosen


def with_example_scope() -> dict[str, Any]:
    """Return wide values for what cdk.json leaves open, for templates that are looked at and not deployed."""
    written = read_choices()
    return {name: value for name, value in LOCAL_SCOPE.items() if not written.get(name)}


def find_scope(target: Target) -> dict[str, list[str]]:
    """Return the roles and buckets of the newest jobs with Rerail's tag, by the choice that names them."""
    query = {"Filters": [{"Name": f"Tags.{POLICY_TAG}", "Operator": "Exists"}]}
    try:
        answer = target.client("sagemaker", role=LOOKUP_ROLE).search(
            Resource="TrainingJob", SearchExpression=query, SortBy="CreationTime", MaxResults=100
        )
    except (ClientError, BotoCoreError):
        return {name: [] for name in SCOPE}
    jobs = [result.get("TrainingJob", {}) for result in answer.get("Results", [])]
    uris = [read_checkpoint_uri(job) for job in jobs]
    return {
        "trainingRoleArns": sorted(filter(ROLE.fullmatch, {job.get("RoleArn", "") for job in jobs})),
        "checkpointBuckets": sorted(filter(BUCKET.fullmatch, {split_uri(uri)[0] for uri in uris if uri})),
    }


def find_page_address(template: Mapping[str, Any] | None) -> str:
    """Return the address that a deployed template subscribes to the topic `page`; "" if there is none."""
    resources = (template or {}).get("Resources", {})
    for resource in resources.values():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::SNS::Subscription" and properties.get("Protocol") == "email":
            topic = properties.get("TopicArn", {})
            name = topic.get("Ref", "") if isinstance(topic, dict) else ""
            if "somebody is needed" in str(resources.get(name, {}).get("Properties", {}).get("DisplayName")):
                return str(properties["Endpoint"])
    return ""


def check(address: str) -> None:
    """Exit with an error if this is not an e-mail address."""
    if not ADDRESS.fullmatch(address):
        place.fail(f"{address!r} is not an e-mail address", "write one such as on-call@example.com")


def remember(value: str | list[str], file: Path = CHOICES, *, name: str = PAGE) -> None:
    """Write a choice into cdk.json, and leave its other text unchanged."""
    write_own_files()
    text = file.read_text(encoding="utf-8")
    written = json.dumps(value)
    changed, times = re.subn(rf'("{name}"\s*:\s*)("[^"]*"|\[[^\]]*\])', lambda match: match[1] + written, text)
    if times != 1:
        place.fail(f"{file.name} has no place for {name!r}", f'write "{name}": {written} into its context')
    file.write_text(changed, encoding="utf-8")
