"""The project's own files, and what each Python module imports: what the house rules are asked of."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("lambdas", "stacks", "agent", "container", "cli", "local", "bench", "tools", "tests")
NOT_OURS = {"cdk.out", ".venv", "__pycache__", "node_modules", ".local", ".hypothesis"}
STANDARD_LIBRARY = frozenset(sys.stdlib_module_names)


def ours(pattern: str, *folders: str) -> list[Path]:
    """Files of the project below these folders (all of them and the root where none is named), in order."""
    places = [ROOT / folder for folder in folders or (*CODE, "policies", "docs")]
    found = [path for place in places for path in place.rglob(pattern) if path.is_file()]
    if not folders:
        found += ROOT.glob(pattern)
    return sorted(path for path in found if not NOT_OURS & set(path.relative_to(ROOT).parts))


def modules(*folders: str) -> list[Path]:
    """Python modules of the project below these folders."""
    return ours("*.py", *folders)


def core() -> list[Path]:
    """The modules that think: lambdas/rerail without its adapters."""
    return [path for path in modules("lambdas/rerail") if path.parent.name != "aws"]


def handlers() -> list[Path]:
    """The modules of the functions themselves."""
    return [path for path in (ROOT / "lambdas").glob("*.py") if "def handler(" in path.read_text()]


@cache
def tree(path: Path) -> ast.Module:
    """The module, parsed."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path) -> str:
    """The path as people say it."""
    return str(path.relative_to(ROOT))


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Every module that the file imports, in full: `from rerail.aws import s3` is `rerail.aws` and `rerail.aws.s3`."""
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
    """The module is one of these packages or lies in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def top(name: str) -> str:
    """The top-level package that a module belongs to."""
    return name.partition(".")[0]
