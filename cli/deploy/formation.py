"""One stack in CloudFormation: what is deployed, change sets, and waiting with an eye on what happens."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from cli.deploy import changes
from cli.deploy.changes import ResourceChange
from local.deploy import INLINE_LIMIT, DeployError, failures, outputs_in

CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]
NOT_THERE = ("", "REVIEW_IN_PROGRESS", "DELETE_COMPLETE")
GOOD = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE", "DELETE_COMPLETE")
NOTHING = ("didn't contain changes", "No updates are to be performed", "no changes")
CHANGE_SET = "rerail"
WITHIN_S = 45 * 60.0
BEGINS_WITHIN_S = 30.0
PAUSE_S, LOCAL_PAUSE_S = 2.0, 0.1
MET = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "DELETE_COMPLETE", "DELETE_SKIPPED", "IMPORT_COMPLETE")

Happened = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Formation:
    """`cloudformation` is its client, `role` the ARN of the role that it works in ("" for the caller's permissions)."""

    cloudformation: Any
    stack: str
    role: str = ""
    pause_s: float = PAUSE_S
    # Without any, the stack keeps those that it has.
    tags: Mapping[str, str] = field(default_factory=dict)

    def read_status(self) -> str:
        """Return the stack's status; "" if there is no stack."""
        described = self._described(self.stack)
        return described["StackStatus"] if described else ""

    def exists(self) -> bool:
        return self.read_status() not in NOT_THERE

    def read_id(self) -> str:
        described = self._described(self.stack)
        return described["StackId"] if described else ""

    def read_template(self) -> Mapping[str, Any] | None:
        """Return the deployed template; None if nothing is deployed."""
        if not self.exists():
            return None
        body = self.cloudformation.get_template(StackName=self.stack, TemplateStage="Original")["TemplateBody"]
        template: Mapping[str, Any] = json.loads(body) if isinstance(body, str) else body
        return template

    def read_outputs(self) -> dict[str, str]:
        return outputs_in(self._described(self.stack) or {})

    def list_names(self) -> dict[str, str]:
        """Return the physical name of each logical id."""
        pages = self.cloudformation.get_paginator("list_stack_resources").paginate(StackName=self.stack)
        found = [resource for page in pages for resource in page["StackResourceSummaries"]]
        return {resource["LogicalResourceId"]: resource.get("PhysicalResourceId", "") for resource in found}

    def propose(
        self, kind: str, template: str, *, url: str = "", imported: Sequence[Mapping[str, Any]] = ()
    ) -> list[ResourceChange]:
        """Create the change set and return its changes; empty if there are none.

        `kind` is CREATE, UPDATE or IMPORT. A template that is too long for a request is read from its `url`.
        """
        self.forget()
        request: dict[str, Any] = {"StackName": self.stack, "ChangeSetName": CHANGE_SET, "ChangeSetType": kind}
        too_long = len(template.encode()) > INLINE_LIMIT
        request |= {"TemplateURL": url} if too_long else {"TemplateBody": template}
        if imported:
            request["ResourcesToImport"] = list(imported)
        if self.tags:
            request["Tags"] = [{"Key": name, "Value": value} for name, value in self.tags.items()]
        if self.role:
            request["RoleARN"] = self.role
        self.cloudformation.create_change_set(**request, Capabilities=CAPABILITIES)
        described = self._made()
        if described["Status"] == "FAILED":
            reason = described.get("StatusReason", "")
            self.forget()
            if any(words in reason for words in NOTHING):
                return []
            raise DeployError(f"CloudFormation made no change set of {self.stack}: {reason}")
        return changes.read(list(self._changes()))

    def forget(self) -> None:
        """Delete the change set, and the stack if it has nothing else."""
        if self.read_status() in ("", "DELETE_COMPLETE"):
            return
        self.cloudformation.delete_change_set(StackName=self.stack, ChangeSetName=CHANGE_SET)
        if self.read_status() == "REVIEW_IN_PROGRESS":
            self.cloudformation.delete_stack(StackName=self.stack)
            self._wait_for(lambda: self.read_status() in ("", "DELETE_COMPLETE"), "the empty stack to go")

    def execute(self, happened: Happened, *, is_import: bool = False) -> None:
        """Execute the change set and wait; raise DeployError with the first cause on failure.

        What a failed change set has created is removed again, whatever its DeletionPolicy: nothing has used it. What
        it has imported stays.
        """
        seen = self._seen()
        self.cloudformation.execute_change_set(
            StackName=self.stack, ChangeSetName=CHANGE_SET, RetainExceptOnCreate=not is_import
        )
        self._follow(self.read_id(), seen, happened)

    def delete(self, happened: Happened) -> None:
        """Delete the stack, and wait for it."""
        seen, id = self._seen(), self.read_id()
        self.cloudformation.delete_stack(StackName=self.stack, **({"RoleARN": self.role} if self.role else {}))
        self._follow(id, seen, happened)

    def _follow(self, id: str, seen: set[str], happened: Happened) -> None:
        began, has_begun = time.monotonic(), False
        while True:
            status = (self._described(id) or {"StackStatus": "DELETE_COMPLETE"})["StackStatus"]
            for event in self._events(id, seen):
                has_begun = has_begun or event["LogicalResourceId"] == event["StackName"]
                happened(event)
            # At first the stack may still have the status of the time before.
            passed = time.monotonic() - began
            if not status.endswith("_IN_PROGRESS") and (has_begun or passed > BEGINS_WITHIN_S):
                break
            if passed > WITHIN_S:
                raise DeployError(f"stack {self.stack} is still {status} after {WITHIN_S / 60:.0f} minutes")
            time.sleep(self.pause_s)
        if status not in GOOD:
            raise DeployError(f"stack {self.stack} is {status}\n{failures(self.cloudformation, id)}")

    def _events(self, id: str, seen: set[str]) -> Iterator[Mapping[str, Any]]:
        """What has happened since, oldest first."""
        fresh = []
        for page in self.cloudformation.get_paginator("describe_stack_events").paginate(StackName=id):
            fresh += [event for event in page["StackEvents"] if event["EventId"] not in seen]
            if len(fresh) < len(page["StackEvents"]):
                break  # the newest come first
        for event in reversed(fresh):
            seen.add(event["EventId"])
            yield event

    def _seen(self) -> set[str]:
        seen: set[str] = set()
        if self.read_status():
            list(self._events(self.stack, seen))
        return seen

    def _made(self) -> Mapping[str, Any]:
        """The change set, once it is made or has failed."""
        made: dict[str, Any] = {}

        def look() -> bool:
            made.update(self.cloudformation.describe_change_set(StackName=self.stack, ChangeSetName=CHANGE_SET))
            return made["Status"] not in ("CREATE_PENDING", "CREATE_IN_PROGRESS")

        self._wait_for(look, "the change set")
        return made

    def _changes(self) -> Iterator[Mapping[str, Any]]:
        asked: dict[str, Any] = {"StackName": self.stack, "ChangeSetName": CHANGE_SET}
        while True:
            page = self.cloudformation.describe_change_set(**asked)
            yield from page["Changes"]
            if not page.get("NextToken"):
                return
            asked["NextToken"] = page["NextToken"]

    def _wait_for(self, look: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not look():
            if time.monotonic() > deadline:
                raise DeployError(f"waited {WITHIN_S / 60:.0f} minutes for {what}")
            time.sleep(self.pause_s)

    def _described(self, name: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = self.cloudformation.describe_stacks(StackName=name)["Stacks"][0]
        except ClientError as error:
            if "does not exist" in str(error):
                return None
            raise
        return found


def is_met(event: Mapping[str, Any]) -> bool:
    """Return whether an event says that a resource (not the stack) has reached its wanted state."""
    of_a_resource = event["LogicalResourceId"] != event["StackName"]
    return of_a_resource and event.get("ResourceStatus", "") in MET
