"""Describe this package to Airflow; the entry point `apache_airflow_provider` names it."""

from importlib.metadata import version
from typing import Any

PACKAGE = "rerail-airflow"


def get_provider_info() -> dict[str, Any]:
    """Return the description of this provider."""
    return {
        "package-name": PACKAGE,
        "name": "Rerail",
        "description": "Supervised SageMaker training runs.",
        "versions": [version(PACKAGE)],
        "operators": [{"integration-name": "Rerail", "python-modules": ["rerail_airflow.operators"]}],
        "sensors": [{"integration-name": "Rerail", "python-modules": ["rerail_airflow.sensors"]}],
        "triggers": [{"integration-name": "Rerail", "python-modules": ["rerail_airflow.triggers"]}],
        "extra-links": ["rerail_airflow.links.TrainingJobLink", "rerail_airflow.links.IncidentReportLink"],
    }
