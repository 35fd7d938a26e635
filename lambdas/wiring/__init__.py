"""Connect the ports of the core with their AWS adapters, one module per function."""

from collections.abc import Callable
from datetime import UTC, datetime

from rerail.aws.clients import client
from rerail.aws.ssm import SsmPause, SsmPolicies
from rerail.supervisor.pause import PausablePolicies
from settings import SuperviseSettings, SweepSettings


def now() -> datetime:
    """Return the current time in UTC; the functions read no other clock."""
    return datetime.now(UTC)


def pausable_policies(settings: SuperviseSettings | SweepSettings) -> PausablePolicies:
    """Return the deployed policies, subject to the account's pause and to what the deployment may do."""
    policies, pause = SsmPolicies(settings.policy_prefix, now), SsmPause(settings.pause_parameter, now)
    return PausablePolicies(policies, pause, observe_only=bool(settings.observe_only))


def clients(*services: str) -> Callable[[], None]:
    """Return a function that makes the clients of these services, for `loading.loaded`."""

    def make() -> None:
        for service in services:
            client(service)

    return make
