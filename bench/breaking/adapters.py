"""All call sites that there are, as the source of the adapters has them: what can be met is compared with that."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import botocore.session
from botocore import xform_name

ADAPTERS = Path(__file__).resolve().parents[2] / "lambdas" / "rerail" / "aws"
# What is given the name of the operation that it is to call.
CALLERS = ("get_paginator", "_call")
SERVICES = ("cloudwatch", "dynamodb", "events", "lambda", "logs", "s3", "sagemaker", "sns", "sqs", "ssm")


class Adapter(NamedTuple):
    """One line that asks AWS: the module, the function in it, and the API's operation."""

    module: str
    function: str
    operation: str

    def __str__(self) -> str:
        return f"{self.module}.{self.function}: {self.operation}"


# What no recovery comes to, and why; or comes to only once something else has gone wrong.
ELSEWHERE = {
    Adapter("dynamodb", "all_runs", "Scan"): "only the command line asks",
    Adapter("dynamodb", "ignore", "PutItem"): "a job that nobody asked us to supervise: it has no run",
    Adapter("hyperpod", "recall", "GetItem"): "a HyperPod cluster's event: it is no run's",
    Adapter("hyperpod", "keep", "PutItem"): "a HyperPod cluster's event: it is no run's",
    Adapter("shards", "hand_on", "Invoke"): "a round of more runs than one invocation of the sweep takes",
    Adapter("quarantine", "_find_upload", "ListParts"): "an upload that was begun and not ended: only after a fault",
}


def adapters(folder: Path = ADAPTERS) -> set[Adapter]:
    """Every call of an operation of AWS in these modules."""
    return {found for file in sorted(folder.glob("*.py")) for found in _in_module(file)}


def adapter_of(site: str) -> Adapter:
    """Where in the source a site is that a worker has met."""
    place = site.split()[2]
    module, _, function = place.partition(".")
    return Adapter(module, function, site.split()[1].partition(":")[2])


def _in_module(file: Path) -> Iterator[Adapter]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    nested = {inner for outer in functions for inner in ast.walk(outer) if inner is not outer}
    for function in functions:
        if function in nested:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and (operation := _operation(node)):
                yield Adapter(file.stem, function.name, operation)


def _operation(call: ast.Call) -> str | None:
    """The operation that is called by its method's name, or is named to what calls it."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in CALLERS and call.args and isinstance(call.args[0], ast.Constant):
        return operations().get(str(call.args[0].value))
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_client = isinstance(receiver, ast.Call) and getattr(receiver.func, "id", "") == "client"
    # `search` and the like are words of many interfaces.
    return operations().get(name) if is_client or "_" in name else None


@cache
def operations() -> dict[str, str]:
    """Method name to operation, of the services that the adapters ask."""
    session = botocore.session.Session()
    found = {}
    for service in SERVICES:
        for operation in session.get_service_model(service).operation_names:
            found[xform_name(operation)] = operation
    return found
