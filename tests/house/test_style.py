"""The house's habits: docstrings, names, sizes, honest exceptions, and a project that speaks of itself alone."""

import ast
import re
from pathlib import Path

import pytest

from tests.house.sources import ROOT, handlers, modules, ours, shown, tree

VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
HANDLER_LINES = 60
WORDS = ("*.py", "*.md", "*.toml", "*.yml", "*.yaml", "*.sh", "Makefile", "Dockerfile", "cdk.json")
# Assembled here, because this file too must not name such a path.
FOREIGN_PATHS = re.compile("|".join(("/" + "work/", "/" + "root/", "/" + "home/" + r"[a-z]+/", "bash" + "_jobs")))
TREE_ENTRY = re.compile(r"[\w.*-]+/|[\w-]*\.?[\w-]+\.(?:py|md|toml|json|txt|lock|sh|jsonl|csv)|Makefile|Dockerfile")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("path", modules(), ids=shown)
def test_every_module_opens_with_what_it_is_for(path):
    """A module begins with a docstring that says something."""
    text = ast.get_docstring(tree(path))
    assert text and len(text.split()) >= 3


@pytest.mark.parametrize("path", modules(), ids=shown)
def test_no_module_has_a_name_without_meaning(path):
    """No module and no folder is called by one of the names that say nothing."""
    parts = {Path(part).stem for part in path.relative_to(ROOT).parts}
    assert not parts & VAGUE


@pytest.mark.parametrize("path", modules(), ids=shown)
def test_no_error_is_swallowed(path):
    """No bare `except`, and no `except Exception` that does nothing."""
    caught = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ExceptHandler)]
    assert not [node.lineno for node in caught if node.type is None], "name the error"
    assert not [node.lineno for node in caught if _is_wide(node.type) and _does_nothing(node.body)]


def _is_wide(kind: ast.expr | None) -> bool:
    return isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")


def _does_nothing(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(node, ast.Pass | ast.Continue)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in body
    )


@pytest.mark.parametrize("path", handlers(), ids=shown)
def test_a_handler_fits_on_a_screen(path):
    """Over 60 lines, something belongs inside."""
    assert len(path.read_text().splitlines()) <= HANDLER_LINES


def test_there_are_four_functions():
    """The handlers that these rules are asked of are found at all."""
    assert sorted(path.stem for path in handlers()) == ["notify", "report", "supervise", "sweep"]


def words() -> list[Path]:
    """What people read: code, docs and settings; samples of other people's logs are not ours to judge."""
    found = sorted({path for pattern in WORDS for path in ours(pattern)})
    return [path for path in found if not {"data", "corpus"} & set(path.relative_to(ROOT).parts)]


@pytest.mark.parametrize("path", words(), ids=shown)
def test_the_project_speaks_of_itself_alone(path):
    """No file names a path of the machine that it was written on."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert not [(number, line) for number, line in enumerate(lines, 1) if FOREIGN_PATHS.search(line)]


@pytest.mark.parametrize("path", ours("*.md"), ids=shown)
def test_every_link_leads_somewhere(path):
    """A relative link in a page names a file that exists."""
    assert not [target for target in LINK.findall(path.read_text()) if not (path.parent / target).exists()]


def test_the_tree_in_the_readme_is_the_tree_on_disk():
    """Every path in the README's tree exists."""
    readme = ROOT / "README.md"
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", readme.read_text(), re.MULTILINE | re.DOTALL)
    trees = [block for block in blocks if re.search(r"^\W*lambdas/", block, re.MULTILINE)]
    assert trees, "README.md ends with a tree, a line per file"
    assert not [path for block in trees for path in named(block) if not any(ROOT.glob(path))]


def named(block: str) -> list[str]:
    """The paths in a tree drawn by indentation: the words that a line begins with, below the folder above them."""
    folders: list[tuple[int, str]] = []
    paths = []
    for line in block.splitlines():
        drawn = re.sub(r"[│├└─|`]", " ", line)
        depth = len(drawn) - len(drawn.lstrip())
        folders = [(at, folder) for at, folder in folders if at < depth]
        parent = folders[-1][1] if folders else ""
        for word in drawn.split("#")[0].replace(",", " ").split():
            if not TREE_ENTRY.fullmatch(word.strip("`")):
                break
            paths.append(parent + word)
            if word.endswith("/"):
                parent += word  # the rest of the line says what is in it
                folders.append((depth, parent))
    return paths


def test_a_tree_is_read_as_it_is_drawn():
    """Indentation and box characters both say what lies in what, and remarks are no paths."""
    block = (
        "app.py  cdk.json\ndocs/   decisions.md, and more\nlambdas/     the asset\n  sweep.py  notify.py   handlers\n"
        "├── rerail/  THINKS\n│   └── model.py  nouns\n"
    )
    assert named(block) == [
        *("app.py", "cdk.json", "docs/", "docs/decisions.md", "lambdas/", "lambdas/sweep.py", "lambdas/notify.py"),
        *("lambdas/rerail/", "lambdas/rerail/model.py"),
    ]
