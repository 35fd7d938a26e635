"""What AWS answers when it does not do what was asked, in one sentence each, with what to do about it."""

import re
from typing import NamedTuple

from botocore.exceptions import (
    ClientError,
    ConnectionError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    InvalidConfigError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSOError,
    TokenRetrievalError,
)

LOG_IN = "log in with `aws sso login`, or set AWS_PROFILE or AWS_ACCESS_KEY_ID; --local needs no credentials"
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
UNKNOWN_KEYS = (
    *("InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId", "SignatureDoesNotMatch"),
    *("AuthFailure", "InvalidSignatureException", "IncompleteSignature"),
)
DENIED = (
    *("AccessDenied", "AccessDeniedException", "403", "Forbidden", "AuthorizationError"),
    *("UnauthorizedOperation", "NotAuthorized", "AuthorizationErrorException"),
)
THROTTLED = ("Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded", "SlowDown")
GONE = ("ResourceNotFoundException", "NoSuchBucket", "AWS.SimpleQueueService.NonExistentQueue", "NotFound")
ACTION = re.compile(r"perform: ([a-zA-Z0-9-]+:[a-zA-Z]+)")
_OUT_OF_REACH = (EndpointConnectionError, ConnectTimeoutError, ReadTimeoutError, ConnectionError, HTTPClientError)
_LOGGED_OUT = (CredentialRetrievalError, SSOError, TokenRetrievalError)


class Trouble(NamedTuple):
    """What is wrong, and what to do about it."""

    what: str
    remedy: str


def get_code(error: Exception) -> str:
    """Return AWS's code of an error; "" if AWS did not answer."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def get_message(error: Exception) -> str:
    """Return the message of AWS or of the SDK."""
    said = error.response.get("Error", {}).get("Message", "") if isinstance(error, ClientError) else ""
    return " ".join(str(said or error).split())


def is_denied(error: Exception) -> bool:
    """Return whether a permission is lacking."""
    return get_code(error) in DENIED


def is_passing(error: Exception) -> bool:
    """Return whether the same call may succeed a little later: a throttle, or a network that is down."""
    return get_code(error) in THROTTLED or isinstance(error, _OUT_OF_REACH)


def is_missing(error: Exception) -> bool:
    """Return whether AWS says that the resource does not exist."""
    code = get_code(error)
    return code in ("404", "NoSuchBucket", "NoSuchEntity", "NotFound") or code.endswith("NotFoundException")


def get_permission(error: Exception) -> str:
    """Return the lacking permission, such as `iam:GetRole`, or the operation's name if AWS does not say."""
    if found := ACTION.search(get_message(error)):
        return found[1]
    return str(getattr(error, "operation_name", "") or "the call")


def explain(error: Exception) -> Trouble:
    """Return any error of the SDK in one sentence, with its remedy."""
    return (
        explain_credentials(error)
        or _of_the_account(error)
        or Trouble(get_message(error), "fix what the message names")
    )


def explain_credentials(error: Exception) -> Trouble | None:
    """Return an error of credentials, profile, region or network with its remedy; None for others."""
    code = get_code(error)
    if isinstance(error, NoCredentialsError):
        return Trouble("there are no AWS credentials", LOG_IN)
    if isinstance(error, PartialCredentialsError | InvalidConfigError):
        return Trouble(f"your AWS configuration is incomplete: {error}", "correct ~/.aws/config, or set AWS_PROFILE")
    if isinstance(error, ProfileNotFound):
        return Trouble(str(error), "`aws configure list-profiles` lists them; set AWS_PROFILE to one of these")
    if isinstance(error, _LOGGED_OUT) or code in EXPIRED:
        return Trouble("your AWS credentials have expired", LOG_IN)
    if code in UNKNOWN_KEYS:
        return Trouble("AWS does not know your credentials", LOG_IN)
    if isinstance(error, NoRegionError):
        return Trouble("no AWS region is set", "set AWS_DEFAULT_REGION, or AWS_PROFILE to a profile that has a region")
    if isinstance(error, _OUT_OF_REACH):
        return Trouble(
            f"AWS cannot be reached: {get_message(error)}", "check the network, the region and AWS_ENDPOINT_URL"
        )
    return None


def _of_the_account(error: Exception) -> Trouble | None:
    """Permissions, quotas, and what is not there."""
    code, message = get_code(error), get_message(error)
    if code in DENIED:
        return Trouble(
            f"you may not do this: {message}", f"ask for {get_permission(error)}, or use another AWS_PROFILE"
        )
    if code in THROTTLED:
        return Trouble("AWS is busy with this account's calls", "try again in a minute")
    if code == "ValidationError" and message.startswith("Stack ") and "does not exist" in message:
        return Trouble(
            "Rerail is not deployed in this account and region",
            "deploy it (`make deploy`), set AWS_DEFAULT_REGION or AWS_PROFILE to where it is, or add --local",
        )
    if code in GONE or code.endswith("NotFoundException"):
        return Trouble(f"what the deployment names is not there: {message}", "`rerail doctor` says what is broken")
    return None
