"""List every module of the repository with the first line of its docstring."""

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("lambdas", "stacks", "agent", "container", "cli", "local", "bench", "tools")


def find_modules() -> Iterator[tuple[Path, str]]:
    """Yield the path below the root and the first docstring line of each module, by folder."""
    for folder in FOLDERS:
        for path in sorted(ROOT.glob(f"{folder}/**/*.py")):
            if path.name == "__init__.py" or "__pycache__" in path.parts:
                continue
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            yield path.relative_to(ROOT), docstring.partition("\n")[0]


def make_page() -> str:
    """Return a table for each folder, in Markdown."""
    parts = []
    for folder, modules in groupby(find_modules(), key=lambda module: module[0].parent):
        rows = "\n".join(f"| `{path.name}` | {line.replace('|', chr(92) + '|')} |" for path, line in modules)
        parts.append(f"### {folder}\n\n| module | |\n| --- | --- |\n{rows}\n")
    return "\n".join(parts)
