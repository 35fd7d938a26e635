"""The ECR repository of the training image, with the command that pushes the image."""

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from constructs import Construct

REPOSITORY = "rerail-training"


class TrainingImageStack(cdk.Stack):
    """Runs refer to their image by tag for weeks, so tags are immutable and tagged images do not expire."""

    def __init__(self, scope: Construct, id: str, **kwargs: Any) -> None:
        super().__init__(scope, id, description="Rerail: the repository of the training image", **kwargs)
        repository = ecr.Repository(
            self,
            "Repository",
            repository_name=REPOSITORY,
            image_scan_on_push=True,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            lifecycle_rules=[
                ecr.LifecycleRule(
                    description="What a failed push left behind",
                    tag_status=ecr.TagStatus.UNTAGGED,
                    max_image_age=cdk.Duration.days(14),
                )
            ],
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )
        uri = repository.repository_uri
        registry = f"{cdk.Aws.ACCOUNT_ID}.dkr.ecr.{cdk.Aws.REGION}.{cdk.Aws.URL_SUFFIX}"
        log_in = f"aws ecr get-login-password | docker login --username AWS --password-stdin {registry}"
        build = (
            "docker build --platform linux/amd64 --provenance=false --file container/Dockerfile --target nccl"
            f" --tag {uri}:$TAG . && docker push {uri}:$TAG"
        )
        cdk.CfnOutput(self, "RepositoryUri", value=uri)
        cdk.CfnOutput(self, "PushCommand", value=f"{log_in} && {build}", description="From the repository's root")
