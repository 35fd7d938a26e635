"""Connect the ports of the core with their AWS adapters, one module per function."""

from collections.abc import Callable
from datetime import UTC, datetime

from rerail.aws.clients import client
from rerail.aws.ssm import SsmPause, SsmPolicies
from rerail.supervisor.pause import PausablePolicies


def now() -> datetime:
    """Return the current time in UTC; the functions read no other clock."""
    return datetime.now(UTC)


def pausable_policies(prefix: str, pause_parameter: str) -> PausablePolicies:
    """Return the policies below the prefix, subject to the account's pause."""
    return PausablePolicies(SsmPolicies(prefix, now), SsmPause(pause_parameter, now))


def clients(*services: str) -> Callable[[], None]:
    """Return a function that makes the clients of these services, for `loading.loaded`."""

    def make() -> None:
        for service in services:
            client(service)

    return make
