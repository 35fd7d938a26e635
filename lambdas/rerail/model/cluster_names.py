"""Names and ARNs of HyperPod clusters."""

import re

CLUSTER_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


CLUSTER_ARN = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:\d{12}:cluster/[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")


def is_cluster_named(tag: str) -> bool:
    """Return whether a tag's value can be the name or the ARN of a HyperPod cluster."""
    return bool(CLUSTER_NAME.fullmatch(tag) or CLUSTER_ARN.fullmatch(tag))
