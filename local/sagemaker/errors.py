"""The errors this fake answers with, named as SageMaker names them."""


class ServiceError(Exception):
    """An answer other than 200; `code` is what boto3 shows as Error.Code."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


def invalid(message: str) -> ServiceError:
    return ServiceError("ValidationException", message)


def not_found() -> ServiceError:
    return ServiceError("ResourceNotFound", "Requested resource not found.")


def in_use(message: str) -> ServiceError:
    return ServiceError("ResourceInUse", message)
