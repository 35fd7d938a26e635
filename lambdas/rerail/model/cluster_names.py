"""Names and ARNs of HyperPod clusters."""

import re

_NAME = r"(?!.{64})[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"
CLUSTER_NAME = re.compile(_NAME)
CLUSTER_ARN = re.compile(rf"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:\d{{12}}:cluster/{_NAME}")


def is_cluster_named(tag: str) -> bool:
    """Return whether a tag's value can be the name or the ARN of a HyperPod cluster."""
    return bool(CLUSTER_NAME.fullmatch(tag) or CLUSTER_ARN.fullmatch(tag))
