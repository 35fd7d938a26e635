"""A class of the shipped code has a name of its own, so that the name alone says which class is meant."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.house.sources import ROOT, modules, shown, tree

SHIPPED = ("lambdas", "agent", "container", "cli", "local", "stacks", "tools", "bench")
# Names that several modules may define, with the number of modules.
ALLOWED: Mapping[str, int] = {
    # One for each training framework, under the name that the documentation gives its users.
    "RerailCallback": 2
}


def find_duplicates(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Return the class names that several modules define, each with the paths of the modules."""
    definitions = defaultdict[str, list[str]](list)
    for path in paths:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                definitions[node.name].append(shown(path))
    return {name: paths for name, paths in definitions.items() if len(paths) > 1}


def test_no_two_classes_share_a_name() -> None:
    duplicates = find_duplicates(modules(*SHIPPED))
    rejected = {name: paths for name, paths in duplicates.items() if len(paths) != ALLOWED.get(name, 1)}
    assert not rejected, "give each class a name of its own"


def test_each_allowed_name_is_still_shared() -> None:
    duplicates = find_duplicates(modules(*SHIPPED))
    assert {name: len(duplicates.get(name, ())) for name in ALLOWED} == dict(ALLOWED)


def test_a_shared_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {ROOT / "a.py": "class Plan: ...\nclass Run: ...", ROOT / "b.py": "class Plan: ...\ndef run(): ..."}
    monkeypatch.setattr("tests.house.test_class_names.tree", lambda path: ast.parse(sources[path]))
    assert find_duplicates(sources) == {"Plan": ["a.py", "b.py"]}
