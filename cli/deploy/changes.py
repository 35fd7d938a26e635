"""What a deployment does to resources, from CloudFormation's own change set, and which of it could lose something."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.deploy.permissions import strip_hash

# What cannot be had back from anywhere else. Queues of dead letters and logs are kept too, but are not worth a refusal.
STATEFUL = {
    "AWS::DynamoDB::Table": "every run, open or ended",
    "AWS::S3::Bucket": "what lies in the bucket",
    "AWS::KMS::Key": "everything that is encrypted or signed with the key",
    "AWS::ECR::Repository": "the images",
}
WORDS = {"Add": "new", "Modify": "changed", "Remove": "gone", "Import": "taken up again"}


@dataclass(frozen=True, slots=True, order=True)
class ResourceChange:
    """One resource of a change set; `replaced` is True, False, or None where only the deployment will show it."""

    action: str
    kind: str
    id: str
    replaced: bool | None = False
    fields: tuple[str, ...] = ()

    @property
    def spoken(self) -> str:
        what = f"{self.kind.removeprefix('AWS::').replace('::', ' ')} {strip_hash(self.id)}"
        if self.action != "Modify":
            return f"{WORDS.get(self.action, self.action)}: {what}"
        how = {True: "REPLACED by a new one", None: "may be replaced", False: "changed"}[self.replaced]
        return f"{how}: {what}" + (f" ({', '.join(self.fields)})" if self.fields else "")

    @property
    def danger(self) -> str:
        """What would be out of reach afterwards; empty where nothing is."""
        endangered = self.action == "Remove" or (self.action == "Modify" and self.replaced is not False)
        return STATEFUL.get(self.kind, "") if endangered else ""


def read(changes: Sequence[Mapping[str, Any]]) -> list[ResourceChange]:
    """Return the changes of a change set from the answer of `describe_change_set`."""
    return sorted(_read(change["ResourceChange"]) for change in changes if "ResourceChange" in change)


def _read(change: Mapping[str, Any]) -> ResourceChange:
    replaced = {"True": True, "Conditional": None}.get(change.get("Replacement", "False"), False)
    fields = {d["Target"].get("Name", d["Target"]["Attribute"]) for d in change.get("Details", [])}
    kind, id = change["ResourceType"], change["LogicalResourceId"]
    return ResourceChange(change["Action"], kind, id, replaced, tuple(sorted(fields)))


def find_refused(changes: Sequence[ResourceChange], allowed: Sequence[str]) -> Iterator[ResourceChange]:
    """Yield the changes that would put data out of reach and are not allowed by name."""
    for change in changes:
        if change.danger and not {change.id, strip_hash(change.id)} & set(allowed):
            yield change
