"""Name SageMaker's errors in a state machine as Step Functions does: by the classes of the SDK for Java.

MiniStack writes `Sagemaker.` before whatever code the API sent. On AWS an error that the API's model lists is
`SageMaker.<Error>Exception`, and any other, throttling for one, is `SageMaker.SageMakerException`.
"""

from ministack.services import stepfunctions

MODELED = ("ConflictException", "ResourceInUse", "ResourceLimitExceeded", "ResourceNotFound")


def apply() -> None:
    stock = stepfunctions._prefix_sdk_error

    def name_error(service: str, code: str) -> str:
        if service != "sagemaker":
            return str(stock(service, code))
        known = code if code in MODELED else "SageMaker"
        return f"SageMaker.{known.removesuffix('Exception')}Exception"

    stepfunctions._prefix_sdk_error = name_error
