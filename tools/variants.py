"""Contexts of the CDK app that together produce every template with every resource."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from local.deploy import LOCAL_SCOPE

# Each option that adds resources.
EVERYTHING: dict[str, Any] = {
    "docsUrl": "https://docs.example.com/rerail/",
    "chat": True,
    "answerLinks": True,
    "pagerDutySecret": "rerail/pagerduty",
    "webhookUrl": "https://hooks.example.com/rerail",
    "webhookSecret": "rerail/webhook",
    "forwardRunEvents": True,
    "orchestration": True,
    "functionSubnets": "subnet-0a1b2c3d,subnet-4e5f6a7b",  # as `-c` passes it
    "functionSecurityGroups": ["sg-0a1b2c3d"],
}
ORGANIZATION: dict[str, Any] = {
    "organizationId": "o-a1b2c3d4e5",
    "organizationalUnits": ["ou-ab12-c3d4e5f6"],
    "organizationRegions": "us-east-1,eu-west-1",  # as `-c` passes it
    "organizationDelegated": True,
}
VIEW: dict[str, Any] = {"organizationView": True}
# Each option that changes statements or values.
CHOICES: dict[str, Any] = {
    "trainingRoleArns": ["arn:aws:iam::111122223333:role/train"],
    "checkpointBuckets": "weights,more-weights",  # as `-c` passes it
    "checkpointKeyArns": ["arn:aws:kms:us-east-1:111122223333:key/1234"],
    "volumeKeyArns": ["arn:aws:kms:us-east-1:111122223333:key/5678"],
    "powertoolsLayerArn": "arn:aws-cn:lambda:cn-north-1:111122223333:layer:Powertools:7",
    "quarantineFolders": '{"arn:${AWS::Partition}:iam::${AWS::AccountId}:role/train": ["s3://weights/teams/a/"]}',
    "supervisorConcurrency": "2",
    "sdkLayer": "false",
    "logRetentionDays": "30",
    "pageEmail": "on-call@example.com",
    "tags": '{"team": "ml"}',
}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "default": LOCAL_SCOPE,
    "full": LOCAL_SCOPE | EVERYTHING,
    "organization": LOCAL_SCOPE | ORGANIZATION | CHOICES,
    "organization_view": LOCAL_SCOPE | ORGANIZATION | CHOICES | VIEW,
}


def find_templates(assembly: Path) -> Iterator[Path]:
    """Yield the templates of a cloud assembly, those of the stages within it too."""
    yield from sorted(assembly.rglob("*.template.json"))
