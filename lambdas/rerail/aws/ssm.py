"""Policies and the account's pause as they are deployed: an SSM parameter each, read once and believed for a minute."""

from collections.abc import Callable
from datetime import datetime, timedelta

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.aws.validation import validated
from rerail.model.errors import StateUnknown, UnknownPolicy
from rerail.model.policy import NAME, Policy, parse_policy
from rerail.supervisor.pause import parse_pause

FRESH_FOR = timedelta(minutes=1)


def is_fresh(read_at: datetime, now: datetime) -> bool:
    """Still to be believed; what was read after now was read while the clock was wrong."""
    return timedelta() <= now - read_at < FRESH_FOR


class SsmPolicies:
    """The port `Policies` on parameters below `prefix`."""

    def __init__(self, prefix: str, clock: Callable[[], datetime]) -> None:
        self._prefix, self._clock = prefix.rstrip("/"), clock
        self._read: dict[str, tuple[datetime, Policy]] = {}

    def get(self, name: str) -> Policy:
        known, now = self._read.get(name), self._clock()
        if known and is_fresh(known[0], now):
            return known[1]
        policy = parse_policy(self._text(name), name=name)
        self._read[name] = (now, policy)
        return policy

    def _text(self, name: str) -> str:
        if not NAME.fullmatch(name):
            raise UnknownPolicy(f"{name!r} cannot be the name of a policy")
        try:
            with validated("GetParameter"):
                return str(client("ssm").get_parameter(Name=f"{self._prefix}/{name}")["Parameter"]["Value"])
        except ClientError as error:
            if error.response["Error"]["Code"] == "ParameterNotFound":
                raise UnknownPolicy(f"no policy {name!r} is deployed") from error
            raise StateUnknown(f"GetParameter of policy {name!r}: {error}") from error
        except BotoCoreError as error:
            raise StateUnknown(f"GetParameter of policy {name!r}: {error}") from error


class SsmPause:
    """The port `Pause` on one parameter, which `rerail.supervisor.pause` reads.

    Where nobody can tell, it is as it was known last. Never known counts as paused, which delays and loses nothing, and
    is asked again at once. Without the parameter nobody has ever paused: not paused."""

    def __init__(self, name: str, clock: Callable[[], datetime]) -> None:
        self._name, self._clock = name, clock
        self._asked_at: datetime | None = None
        self._paused = True

    def is_paused(self) -> bool:
        now = self._clock()
        if self._asked_at is None or not is_fresh(self._asked_at, now):
            found = self._look()
            if found is not None or self._asked_at:
                self._paused, self._asked_at = self._paused if found is None else found, now
        return self._paused

    def _look(self) -> bool | None:
        """None where nobody can tell."""
        try:
            with validated("GetParameter"):
                text = str(client("ssm").get_parameter(Name=self._name)["Parameter"]["Value"])
        except ClientError as error:
            return False if error.response["Error"]["Code"] == "ParameterNotFound" else None
        except BotoCoreError:
            return None
        return parse_pause(text)
