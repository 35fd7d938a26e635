"""Build what the `orchestrate` function needs."""

from functools import cache

from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.eventbridge import EventBus
from rerail.aws.orchestration import AwsCallers, DynamoWaits
from rerail.aws.ssm import SsmPolicies
from rerail.orchestration.orchestrator import Orchestrator
from settings import OrchestrateSettings
from wiring import now


@cache
def make_orchestrator() -> Orchestrator:
    """Return the waits for runs."""
    settings = OrchestrateSettings.from_environment()
    return Orchestrator(
        waits=DynamoWaits(settings.table),
        callers=AwsCallers(),
        runs=DynamoRuns(settings.table),
        policies=SsmPolicies(settings.policy_prefix, now),
        commands=EventBus(settings.bus),
        clock=now,
        reports=settings.reports,
    )
