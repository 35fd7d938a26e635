"""Deploy a stack for the first time in two steps: the second one protects its tables, and pages when no sweep comes.

CloudFormation could not remove a protected table if the first step failed. The alarm on missing sweeps would page
before the first one, and every new alarm would say that it is OK.
"""

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import timedelta
from typing import Any

from cli.place import now
from rerail.messages.service_metrics import COMPLETED

# CloudWatch shows the metric of the first minute after another one or two.
SWEEP_PATIENCE_S = 300.0


def make_first_template(template: Mapping[str, Any], *, is_import: bool) -> dict[str, Any]:
    """Return the template of the first step; the tables that an import has taken up stay protected."""
    changed = deepcopy(dict(template))
    for resource in changed["Resources"].values():
        if resource["Type"] == "AWS::DynamoDB::Table" and not is_import:
            resource["Properties"].pop("DeletionProtectionEnabled", None)
        if resource["Type"] in ("AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm"):
            # A new alarm is evaluated at once, and would say OK to whoever is paged.
            resource["Properties"].pop("OKActions", None)
            if resource["Properties"].get("TreatMissingData") == "breaching":
                resource["Properties"]["TreatMissingData"] = "notBreaching"
    return changed


def wait_for_sweep(
    client: Callable[[str], Any],
    *,
    pause_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Return whether CloudWatch shows a completed sweep in time; raise ClientError where the metric may not be read."""
    cloudwatch, until = client("cloudwatch"), clock() + SWEEP_PATIENCE_S
    while True:
        at = now()
        answer = cloudwatch.get_metric_statistics(
            Namespace="Rerail",
            MetricName=COMPLETED.name,
            Dimensions=[{"Name": "service", "Value": "sweep"}],
            StartTime=at - timedelta(minutes=10),
            EndTime=at + timedelta(minutes=1),
            Period=60,
            Statistics=["Sum"],
        )
        if any(point["Sum"] for point in answer["Datapoints"]):
            return True
        if clock() > until:
            return False
        sleep(pause_s)
