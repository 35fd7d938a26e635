"""An acceptance in an account."""

from cli.acceptance.jobs import JobPlan
from cli.submit.images import find_aws_image

PLAN = JobPlan(
    id="rerail-acceptance-20261123120000",
    role="arn:aws:iam::123456789012:role/MySageMakerRole",
    bucket="sagemaker-eu-west-1-123456789012",
    image=find_aws_image("pytorch", "2.8", "ml.m5.large", "eu-west-1"),
    policy="default",
    region="eu-west-1",
    scale=1.0,
    is_local=False,
)
