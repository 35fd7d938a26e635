"""Offers what AWS itself publishes in every account: the Powertools layer, and the parameter that names its version.

The layer is empty: the emulator runs functions with its own interpreter, whose site-packages hold Powertools already.
"""

import base64
import io
import zipfile

POWERTOOLS_PARAMETER = "/aws/service/powertools/python/arm64/python3.13/3.37.0"
POWERTOOLS_LAYER = "AWSLambdaPowertoolsPythonV3-python313-arm64"


def publish() -> str:
    """Make the parameter resolve to a layer that exists; returns the layer version's ARN."""
    from ministack.services import lambda_svc, ssm

    content = {"ZipFile": base64.b64encode(_empty_zip()).decode()}
    lambda_svc._publish_layer_version(POWERTOOLS_LAYER, {"Content": content, "CompatibleRuntimes": ["python3.13"]})
    arn: str = lambda_svc._layers[POWERTOOLS_LAYER]["versions"][-1]["LayerVersionArn"]
    # Not through PutParameter, which refuses names below /aws as AWS does.
    ssm._PUBLIC_AMI_PARAMETERS[POWERTOOLS_PARAMETER] = arn
    return arn


def _empty_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("python/README", "Powertools is installed next to the emulator.\n")
    return buffer.getvalue()
