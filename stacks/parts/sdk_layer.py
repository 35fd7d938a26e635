"""The Lambda layer with the AWS SDK in the version that Rerail was tested with.

The runtime has the SDK of its month. An older one drops what it does not know from a job's description, and the job's
successor would lack it.
"""

from pathlib import PurePath

from constructs import Construct

from stacks.parts.python_layer import PythonLayer

PACKAGES = ("boto3",)
# The services that the functions call; the SDK describes four hundred.
SERVICES = (
    "cloudwatch",
    "dynamodb",
    "events",
    "kms",
    "lambda",
    "logs",
    "s3",
    "sagemaker",
    "sns",
    "sqs",
    "stepfunctions",
    "ssm",
    "sts",
)


class SdkLayer(PythonLayer):
    """The SDK without the services that the functions do not call."""

    def __init__(self, scope: Construct, id: str) -> None:
        description = "Rerail: the AWS SDK that it was tested with"
        super().__init__(scope, id, packages=PACKAGES, description=description, is_needed=is_needed)


def is_needed(file: PurePath) -> bool:
    """Return whether a file of the SDK is about no service, or about one of SERVICES."""
    package, *rest = file.parts
    if package not in ("boto3", "botocore"):
        return True
    return rest[0] != "data" or len(rest) == 2 or rest[1] in SERVICES
