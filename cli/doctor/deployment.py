"""The deployment as the doctor's questions see it: looked up once, when the first of them wants to know."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from cli import place
from cli.doctor import code
from cli.place import Place

# What the command line reads of the stack's outputs.
OUTPUTS = (
    *("TableName", "BusName", "SignalsQueueUrl", "MailboxBucket", "PolicyPrefix", "PauseParameter"),
    *("PageTopicArn", "InformTopicArn", "SuperviseFunctionName", "SweepFunctionName", "NotifyFunctionName"),
)


class Deployment:
    """One deployed stack."""

    def __init__(self, where: Place) -> None:
        self.where = where

    def client(self, service: str) -> Any:
        return self.where.client(service)

    def output(self, name: str) -> str:
        """Of a stack that has no such output: "", which the question about the stack tells of."""
        return self.where.outputs.get(name, "")

    @cached_property
    def stack(self) -> Mapping[str, Any]:
        described: Mapping[str, Any] = self.client("cloudformation").describe_stacks(StackName=place.STACK)["Stacks"][0]
        return described

    @cached_property
    def resources(self) -> list[Mapping[str, Any]]:
        pages = self.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=place.STACK)
        return [resource for page in pages for resource in page["StackResourceSummaries"]]

    def list_resources(self, kind: str) -> dict[str, str]:
        """The resources of a type: logical id to physical id."""
        found = [resource for resource in self.resources if resource["ResourceType"] == kind]
        return {resource["LogicalResourceId"]: resource.get("PhysicalResourceId", "") for resource in found}

    @cached_property
    def supervise(self) -> Mapping[str, Any]:
        """The configuration and the code's place of the one function that acts."""
        name = self.output("SuperviseFunctionName")
        answer: Mapping[str, Any] = self.client("lambda").get_function(FunctionName=name)
        return answer

    @cached_property
    def differing_files(self) -> list[str]:
        """The files of the function's code that differ from this command line's; raises OSError and ValueError."""
        url = self.supervise.get("Code", {}).get("Location", "")
        return code.find_differences(code.read_deployed_files(url), code.list_files())

    @property
    def supervisor_role(self) -> str:
        """The ARN of the role that creates jobs and hands them their own."""
        return str(self.supervise["Configuration"]["Role"])

    @property
    def region(self) -> str:
        return str(self.client("cloudformation").meta.region_name)
