"""AWS calls of the deployed functions, noted by the hook `call_worker` in their workers, and where they were made."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from local.emulator import ACCOUNT, REGION
from local.needs import AwsCall, CallPlace
from local.stack import LocalAws
from tests.iam.grants import Granted

WORKER = Path(__file__).parent / "worker"
STACK = "Rerail"


def instrument(aws: LocalAws, file: Path) -> None:
    """Fresh workers, which note their calls in this file."""
    functions = aws.client("lambda")
    for function in functions.list_functions()["Functions"]:
        variables = function.get("Environment", {}).get("Variables", {})
        hook = {"PYTHONPATH": str(WORKER), "CALLS_FILE": str(file)}
        functions.update_function_configuration(
            FunctionName=function["FunctionName"], Environment={"Variables": variables | hook}
        )


def read_calls(file: Path) -> list[AwsCall]:
    """What was noted so far; none where no worker has called anything."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [AwsCall(**json.loads(line)) for line in lines]


def granted_in(aws: LocalAws, stack: str = STACK) -> Granted:
    """The template that is deployed there, with the names that its resources got."""
    cloudformation = aws.client("cloudformation")
    template: Any = cloudformation.get_template(StackName=stack)["TemplateBody"]
    resources = cloudformation.describe_stack_resources(StackName=stack)["StackResources"]
    names = {resource["LogicalResourceId"]: resource["PhysicalResourceId"] for resource in resources}
    read = template if isinstance(template, dict) else json.loads(template)
    return Granted(read, account=ACCOUNT, region=REGION, names=names)


def place_of(granted: Granted, aws: LocalAws, keys: Mapping[str, str] | None = None) -> CallPlace:
    """Where the calls were made; tags are those that the jobs have, `keys` those of buckets."""
    sagemaker = aws.client("sagemaker")

    @cache
    def tags_of(arn: str) -> Mapping[str, str]:
        try:
            return {tag["Key"]: tag["Value"] for tag in sagemaker.list_tags(ResourceArn=arn)["Tags"]}
        except sagemaker.exceptions.ClientError:
            return {}  # it asked for a job that is not there

    return granted.place(tags_of, keys or {})
