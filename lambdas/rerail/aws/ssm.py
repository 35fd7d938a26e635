"""Policies and the kill switch as they are deployed: one SSM parameter each, read once and believed for a minute."""

from collections.abc import Callable
from datetime import datetime, timedelta

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.aws.legible import legible
from rerail.errors import Blind, UnknownPolicy
from rerail.policy import NAME, Policy, parse_policy
from rerail.switch import read_switch

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
            with legible("GetParameter"):
                return str(client("ssm").get_parameter(Name=f"{self._prefix}/{name}")["Parameter"]["Value"])
        except ClientError as error:
            if error.response["Error"]["Code"] == "ParameterNotFound":
                raise UnknownPolicy(f"no policy {name!r} is deployed") from error
            raise Blind(f"GetParameter of policy {name!r}: {error}") from error
        except BotoCoreError as error:
            raise Blind(f"GetParameter of policy {name!r}: {error}") from error


class SsmSwitch:
    """The port `Switch` on one parameter, "on" or "off".

    Where nobody can tell, it is as it was known last; never known is off, which delays and loses nothing, and is asked
    again at once. A parameter that is not there was never thrown: on."""

    def __init__(self, name: str, clock: Callable[[], datetime]) -> None:
        self._name, self._clock = name, clock
        self._asked_at: datetime | None = None
        self._on = False

    def is_on(self) -> bool:
        now = self._clock()
        if self._asked_at is None or not is_fresh(self._asked_at, now):
            found = self._look()
            if found is not None or self._asked_at:
                self._on, self._asked_at = self._on if found is None else found, now
        return self._on

    def _look(self) -> bool | None:
        """None where nobody can tell."""
        try:
            with legible("GetParameter"):
                text = str(client("ssm").get_parameter(Name=self._name)["Parameter"]["Value"])
        except ClientError as error:
            return True if error.response["Error"]["Code"] == "ParameterNotFound" else None
        except BotoCoreError:
            return None
        return read_switch(text)
