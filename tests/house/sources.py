"""The project's own files, and what each Python module imports: what the house rules are checked on."""

import ast
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("lambdas", "stacks", "agent", "container", "cli", "local", "bench", "tools", "integrations", "tests")
NOT_OURS = {"cdk.out", ".venv", "__pycache__", "node_modules", ".local", ".hypothesis"}
STANDARD_LIBRARY = frozenset(sys.stdlib_module_names)


def ours(pattern: str, *folders: str) -> list[Path]:
    """Return the project's files below these folders, in order; without folders: below all and in the root."""
    places = [ROOT / folder for folder in folders or (*CODE, "policies", "docs")]
    found = [path for place in places for path in place.rglob(pattern) if path.is_file()]
    if not folders:
        found += ROOT.glob(pattern)
    return sorted(path for path in found if not NOT_OURS & set(path.relative_to(ROOT).parts))


def modules(*folders: str) -> list[Path]:
    """Return the Python modules below these folders."""
    return ours("*.py", *folders)


def core() -> list[Path]:
    """Return the modules of the core: lambdas/rerail without its adapters."""
    return [path for path in modules("lambdas/rerail") if path.parent.name != "aws"]


def handlers() -> list[Path]:
    """Return the modules of the Lambda handlers."""
    return [path for path in (ROOT / "lambdas").glob("*.py") if "def handler(" in path.read_text()]


def violations(paths: list[Path], find: Callable[[Path], Collection[object]]) -> dict[str, Collection[object]]:
    """Return what `find` reports for each file, by the file's path, without the files for which it reports nothing.

    One test checks a rule on all files: a test for each of a thousand files costs more than the rule.
    """
    assert paths, "no file to check"
    return {shown(path): found for path in paths if (found := find(path))}


@cache
def tree(path: Path) -> ast.Module:
    """Return the module, parsed."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path) -> str:
    """Return the path from the repository's root."""
    return str(path.relative_to(ROOT))


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Return the modules that the file imports: `from rerail.aws import s3` is `rerail.aws` and `rerail.aws.s3`."""
    nodes = tree(path).body if top_level_only else ast.walk(tree(path))
    return {name for node in nodes for name in _imported(node)}


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield module
        yield from (f"{module}.{alias.name}" for alias in node.names)


def within(name: str, *packages: str) -> bool:
    """Return whether the module is one of these packages or in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def top(name: str) -> str:
    """Return the top-level package of a module."""
    return name.partition(".")[0]
