"""The synthesized app: its template, why its wildcards are what they are, and its assets where CloudFormation looks."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from cli import place
from cli.deploy.permissions import read_reasons
from cli.deploy.target import Target
from cli.project import IS_CHECKOUT, ROOT, find_policies, read_choices
from local import deploy


@dataclass(frozen=True, slots=True)
class Assembly:
    """One stack of a cloud assembly."""

    folder: Path
    stack: str

    @property
    def template(self) -> Mapping[str, Any]:
        return self._read(f"{self.stack}.template.json")

    @property
    def reasons(self) -> Mapping[str, Mapping[str, str]]:
        return read_reasons(self._read(f"{self.stack}.metadata.json"))

    @property
    def deploy_role(self) -> str:
        return str(self._properties.get("assumeRoleArn", ""))

    @property
    def execution_role(self) -> str:
        return str(self._properties.get("cloudFormationExecutionRoleArn", ""))

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags of the stack, which CloudFormation also gives to what it creates."""
        tags: Mapping[str, str] = self._properties.get("tags", {})
        return tags

    @property
    def _properties(self) -> Mapping[str, Any]:
        properties: Mapping[str, Any] = self._read("manifest.json")["artifacts"][self.stack]["properties"]
        return properties

    def _read(self, name: str) -> Mapping[str, Any]:
        content: Mapping[str, Any] = json.loads((self.folder / name).read_text())
        return content

    def publish(self, target: Target, *, bucket: str = "") -> int:
        """Upload the missing assets to the bootstrap's bucket, or the given one; return how many were uploaded."""
        put = 0
        for asset, destination in self._destinations():
            if bucket:  # the bootstrap's role may write to the bootstrap's bucket only
                destination = {**destination, "bucketName": bucket, "assumeRoleArn": ""}
            source, key = self.folder / asset["source"]["path"], target.fill(destination["objectKey"])
            if not self._is_there(target, destination, key):
                zipped = asset["source"].get("packaging") == "zip"
                self._put(target, destination, key, deploy.zipped(source) if zipped else source.read_bytes())
                put += 1
        return put

    def upload(self, target: Target, template: str) -> str:
        """Upload a template beside the assets; return the URL at which CloudFormation reads it."""
        _, destination = next(self._destinations())
        body = template.encode()
        key = f"{hashlib.sha256(body).hexdigest()}.json"
        s3, bucket = self._put(target, destination, key, body)
        return f"{s3.meta.endpoint_url}/{bucket}/{key}"

    def _destinations(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, str]]]:
        for asset in self._read(f"{self.stack}.assets.json").get("files", {}).values():
            for destination in asset["destinations"].values():
                yield asset, destination

    def _put(self, target: Target, destination: Mapping[str, str], key: str, body: bytes) -> tuple[Any, str]:
        s3, bucket = _bucket(target, destination)
        s3.put_object(Bucket=bucket, Key=key, Body=body, ExpectedBucketOwner=target.account)
        return s3, bucket

    def _is_there(self, target: Target, destination: Mapping[str, str], key: str) -> bool:
        s3, bucket = _bucket(target, destination)
        try:
            s3.head_object(Bucket=bucket, Key=key, ExpectedBucketOwner=target.account)
        except ClientError as error:
            # A role that may not list the bucket is told 403 for what is not there.
            if error.response["Error"]["Code"] in ("404", "NoSuchKey", "403"):
                return False
            raise
        return True


def _bucket(target: Target, destination: Mapping[str, str]) -> tuple[Any, str]:
    role = destination.get("assumeRoleArn", "")
    return target.client("s3", role=role), target.fill(destination["bucketName"])


def synthesize(context: Mapping[str, Any]) -> Path:
    """Return the folder of the assembly, with these values instead of the file's; raise DeployError on failure."""
    chosen = dict(context) if IS_CHECKOUT else {**read_choices(), **context, "policiesFolder": str(find_policies())}
    return deploy.synthesize(ROOT, place.SYNTHESES, context=chosen)
