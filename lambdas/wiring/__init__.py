"""Which adapter answers which port, a module for each function: the only place where the core meets AWS."""

from collections.abc import Callable
from datetime import UTC, datetime

from rerail.aws.clients import client
from rerail.aws.ssm import SsmPolicies, SsmSwitch
from rerail.switch import SwitchedPolicies


def now() -> datetime:
    """The only clock."""
    return datetime.now(UTC)


def switched_policies(prefix: str, switch: str) -> SwitchedPolicies:
    """The policies below the prefix, and the kill switch over them."""
    return SwitchedPolicies(SsmPolicies(prefix, now), SsmSwitch(switch, now))


def clients(*services: str) -> Callable[[], None]:
    """Makes the clients of these services; for `loading.loaded`."""

    def make() -> None:
        for service in services:
            client(service)

    return make
