"""`rerail metrics`: the metric definitions that a training job needs, ready to paste."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.console import echo
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
    submit = "submit"


def metrics(
    format: Annotated[
        DefinitionFormat,
        typer.Option(
            "--format",
            help="boto3, sdk for the SageMaker Python SDK (v2 and v3), json for the AWS CLI, submit for its options.",
        ),
    ] = DefinitionFormat.boto3,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    log: Annotated[
        Path | None,
        typer.Option(help="A log of your script, or the folder of `rerail logs --save`: definitions for its lines."),
    ] = None,
) -> None:
    """Print the MetricDefinitions for jobs that log Rerail's metric line, or for the lines of a log."""
    definitions, line = make_definitions(), LINE
    if log:
        definitions, line = _find_in(log)
    if as_json or format is DefinitionFormat.json:
        typer.echo(json.dumps(definitions, indent=2))
        return
    if format is DefinitionFormat.submit:
        pairs = (f"{definition['Name']}={definition['Regex']}" for definition in definitions)
        echo(" \\\n".join(f"--metric {shlex.quote(pair)}" for pair in pairs))
        return
    printed = _boto3(definitions, line) if format is DefinitionFormat.boto3 else _sdk(definitions, line)
    echo("\n".join(printed))


def _find_in(log: Path) -> tuple[list[dict[str, str]], str]:
    """Return the definitions for a log and one of its lines; print what they read to standard error."""
    from cli import place
    from cli.backtest.series import BadInput
    from cli.training_logs.proposal import propose

    try:
        proposal = propose(log)
    except BadInput as error:
        place.fail(" ".join(error.problem.split()), error.remedy)
    for said in proposal.report:
        echo(said, err=True)
    return proposal.definitions, proposal.line


def _boto3(definitions: Sequence[Mapping[str, str]], line: str) -> Iterator[str]:
    yield f"# For lines such as: {line}"
    yield '# create_training_job(..., AlgorithmSpecification={..., "MetricDefinitions": metric_definitions})'
    yield from _list(definitions, "metric_definitions", '{{"Name": "{Name}", "Regex": {quoted}}}')


def _sdk(definitions: Sequence[Mapping[str, str]], line: str) -> Iterator[str]:
    yield f"# For lines such as: {line}"
    yield "# SageMaker Python SDK v2: Estimator(..., metric_definitions=metric_definitions)"
    yield from _list(definitions, "metric_definitions", '{{"Name": "{Name}", "Regex": {quoted}}}')
    yield ""
    yield "# SageMaker Python SDK v3: ModelTrainer(...).with_metric_definitions(metric_definitions)"
    yield "from sagemaker.core.training.configs import MetricDefinition"
    yield ""
    yield from _list(definitions, "metric_definitions", 'MetricDefinition(name="{Name}", regex={quoted})')


def _list(definitions: Sequence[Mapping[str, str]], name: str, entry: str) -> Iterator[str]:
    yield f"{name} = ["
    for definition in definitions:
        regex = definition["Regex"]
        quoted = f'r"{regex}"' if '"' not in regex else repr(regex)
        yield f"    # {definition['Name']}: {PURPOSE[definition['Name']]}"
        yield f"    {entry.format(**definition, quoted=quoted)},"
    yield "]"
