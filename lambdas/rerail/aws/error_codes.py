"""Tell the errors of AWS apart by their codes."""

from botocore.exceptions import ClientError

# Codes of S3.
MISSING = ("404", "NoSuchKey", "NotFound")
THROTTLING = ("SlowDown", "503", "ServiceUnavailable", "Throttling", "ThrottlingException", "RequestLimitExceeded")


def find_code(error: Exception) -> str:
    """Return the code with which AWS answered; "" if there was no answer."""
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def find_object_problem(error: Exception) -> str:
    """Return why S3 refuses to return this object, so that a retry is useless; "" if the error may have another cause.

    The writer of an object chooses its storage class and its encryption key.
    """
    code = find_code(error)
    if code == "InvalidObjectState":
        return "it is archived"
    is_encrypted = code in ("InvalidRequest", "400") or code.startswith("KMS.") or (code and "kms:" in str(error))
    return "it is encrypted with a key that Rerail may not use" if is_encrypted else ""
