"""`rerail metrics`: the metric definitions that a training job needs, ready to paste."""

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from rerail.model.metrics import make_definitions

PURPOSE = {
    "step": "where the run is and how fast it goes: stalls, throughput, and which steps a relaunch repeats",
    "loss": "whether the run learns: spikes, divergence, a frozen or flat loss",
    "grad_norm": "the forerunner of a spike; read only where the policy says `detailed = true`",
    "tokens_per_s": "the speed of a job that names no step, or where the policy says `detailed = true`",
    "nonfinite": "1 for a NaN or an infinity, which CloudWatch itself does not accept",
}
LINE = "rerail step=60 loss=2.34567891 grad_norm=1.2 lr=0.0003 tokens_per_s=12345 nonfinite=0"


class DefinitionFormat(StrEnum):
    boto3 = "boto3"
    sdk = "sdk"
    json = "json"


def metrics(
    format: Annotated[
        DefinitionFormat,
        typer.Option("--format", help="boto3, sdk for the SageMaker Python SDK (v2 and v3), json for the AWS CLI."),
    ] = DefinitionFormat.boto3,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Print the MetricDefinitions for jobs that log Rerail's metric line."""
    if as_json or format is DefinitionFormat.json:
        typer.echo(json.dumps(make_definitions(), indent=2))
        return
    typer.echo("\n".join(_boto3() if format is DefinitionFormat.boto3 else _sdk()))


def _boto3() -> Iterator[str]:
    yield f"# For lines such as: {LINE}"
    yield '# create_training_job(..., AlgorithmSpecification={..., "MetricDefinitions": metric_definitions})'
    yield from _list("metric_definitions", '{{"Name": "{Name}", "Regex": r"{Regex}"}}')


def _sdk() -> Iterator[str]:
    yield f"# For lines such as: {LINE}"
    yield "# SageMaker Python SDK v2: Estimator(..., metric_definitions=metric_definitions)"
    yield from _list("metric_definitions", '{{"Name": "{Name}", "Regex": r"{Regex}"}}')
    yield ""
    yield "# SageMaker Python SDK v3: ModelTrainer(...).with_metric_definitions(metric_definitions)"
    yield "from sagemaker.core.training.configs import MetricDefinition"
    yield ""
    yield from _list("metric_definitions", 'MetricDefinition(name="{Name}", regex=r"{Regex}")')


def _list(name: str, entry: str) -> Iterator[str]:
    yield f"{name} = ["
    for definition in make_definitions():
        yield f"    # {definition['Name']}: {PURPOSE[definition['Name']]}"
        yield f"    {entry.format(**definition)},"
    yield "]"
