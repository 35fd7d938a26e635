"""Every call of AWS in the functions' code, found by reading it: no list of them is kept by hand."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ADAPTERS = Path(__file__).resolve().parents[2] / "lambdas" / "rerail" / "aws"
# Functions of adapters that make a call by its name, or a client, and the service that it is of.
BY_NAME, MAKERS = {"_call": "logs"}, {"_signer": "s3"}


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A call in the code: the adapter's module and function, the service, and the method of boto3."""

    module: str
    function: str
    service: str
    method: str


def sites(folder: Path = ADAPTERS) -> list[Site]:
    """All of them: `client("s3").get_object(...)`, also by way of a variable or of a paginator."""
    found = set()
    for file in sorted(folder.glob("*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                found |= {Site(file.stem, *call) for call in _calls(function)}
    return sorted(found)


def _calls(function: ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    clients = dict(_variables(function))
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=whose, attr=method)):
                service = _service(whose) or (clients.get(whose.id) if isinstance(whose, ast.Name) else None)
                if service and method == "get_paginator":
                    yield function.name, service, _text(node.args[0])
                elif service and method != "meta":
                    yield function.name, service, method
            case ast.Call(func=ast.Name(id=maker)) if maker in BY_NAME:
                yield maker, BY_NAME[maker], _text(node.args[0])


def _variables(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Names that a client is given within the function, and its service."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for name, value in _pairs(node.targets[0], node.value):
                if service := _service(value):
                    yield name, service


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target, value:
        case ast.Tuple(elts=names), ast.Tuple(elts=values):
            yield from ((name.id, item) for name, item in zip(names, values, strict=True) if isinstance(name, ast.Name))
        case ast.Name(id=name), _:
            yield name, value


def _service(node: ast.expr) -> str | None:
    match node:
        case ast.Call(func=ast.Name(id="client"), args=[ast.Constant(value=str(service))]):
            return service
        case ast.Call(func=ast.Name(id=maker)) if maker in MAKERS:
            return MAKERS[maker]
    return None


def _text(node: Any) -> str:
    assert isinstance(node, ast.Constant), "a call by a name that is reckoned out cannot be found by reading"
    return str(node.value)
