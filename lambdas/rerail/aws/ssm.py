"""Read policies and the account's pause from SSM parameters, cached for a minute."""

from collections.abc import Callable
from datetime import datetime, timedelta

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.aws.error_codes import find_code
from rerail.aws.validation import validate
from rerail.model.errors import PolicyError, StateUnknown, UnknownPolicy
from rerail.model.measurements import PARAMETER, BadMeasurements, Measurements, parse_measurements, with_measurements
from rerail.model.policy import NAME, Policy, parse_policy
from rerail.supervisor.pause import parse_pause

CACHE_TTL = timedelta(minutes=1)


def is_fresh(read_at: datetime, now: datetime) -> bool:
    """Return whether a cached value is still valid; one read after `now` dates from a wrong clock and is not."""
    return timedelta() <= now - read_at < CACHE_TTL


class SsmPolicies:
    """The port `PausedPolicies` on parameters below `prefix`, without the account's pause.

    What `rerail acceptance` has measured is in a parameter below the same prefix. Without it, or if it cannot be read,
    the policies' own assumptions hold.
    """

    def __init__(self, prefix: str, clock: Callable[[], datetime]) -> None:
        self._prefix, self._clock = prefix.rstrip("/"), clock
        self._read: dict[str, tuple[datetime, Policy | PolicyError]] = {}
        self._measured: tuple[datetime, Measurements | None] | None = None

    def get(self, name: str) -> Policy:
        known, now = self._read.get(name), self._clock()
        if known is None or not is_fresh(known[0], now):
            known = self._read[name] = now, self._parse(name)
        if isinstance(known[1], PolicyError):
            raise type(known[1])(*known[1].args)
        return known[1]

    def _parse(self, name: str) -> Policy | PolicyError:
        """Return the policy, or why there is none: the runs of a removed policy must not exhaust the calls to SSM."""
        try:
            policy = parse_policy(self._text(name), name=name)
        except PolicyError as error:
            return error
        measured = self._read_measurements()
        return with_measurements(policy, measured) if measured else policy

    def _read_measurements(self) -> Measurements | None:
        now = self._clock()
        if self._measured is None or not is_fresh(self._measured[0], now):
            self._measured = now, self._find_measurements()
        return self._measured[1]

    def _find_measurements(self) -> Measurements | None:
        """Return the measurements; None if there are none, or if they cannot be read: only estimates need them."""
        try:
            with validate("GetParameter"):
                text = str(client("ssm").get_parameter(Name=f"{self._prefix}/{PARAMETER}")["Parameter"]["Value"])
            return parse_measurements(text)
        except (ClientError, BotoCoreError, BadMeasurements):
            return None

    def with_pause(self, policy: Policy) -> Policy:
        return policy

    def _text(self, name: str) -> str:
        if not NAME.fullmatch(name):
            raise UnknownPolicy(f"{name!r} is not a valid name of a policy")
        try:
            with validate("GetParameter"):
                return str(client("ssm").get_parameter(Name=f"{self._prefix}/{name}")["Parameter"]["Value"])
        except (ClientError, BotoCoreError) as error:
            if find_code(error) == "ParameterNotFound":
                raise UnknownPolicy(f"no policy {name!r} is deployed") from error
            raise StateUnknown(f"GetParameter of policy {name!r}: {error}") from error


class SsmPause:
    """The port `Pause` on one parameter, which `rerail.supervisor.pause` reads.

    If SSM does not answer, the last known state holds. Without a known state Rerail counts as paused, which delays but
    loses nothing, and the next call reads again. A parameter that is missing or not valid means paused."""

    def __init__(self, name: str, clock: Callable[[], datetime]) -> None:
        self._name, self._clock = name, clock
        self._read_at: datetime | None = None
        self._paused = True

    def is_paused(self) -> bool:
        now = self._clock()
        if self._read_at is None or not is_fresh(self._read_at, now):
            paused = self._read()
            if paused is not None or self._read_at:
                self._paused, self._read_at = self._paused if paused is None else paused, now
        return self._paused

    def _read(self) -> bool | None:
        """Return whether Rerail is paused, or None if the parameter cannot be read."""
        try:
            with validate("GetParameter"):
                text = str(client("ssm").get_parameter(Name=self._name)["Parameter"]["Value"])
        except (ClientError, BotoCoreError) as error:
            return True if find_code(error) == "ParameterNotFound" else None
        return parse_pause(text) is not False
