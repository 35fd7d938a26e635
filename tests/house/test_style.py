"""Check module names, the size of handlers, links, and that no file names a path of a machine."""

import re
from pathlib import Path

from tests.house.sources import ROOT, handlers, modules, ours, violations

VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
HANDLER_LINES = 60
READABLE = ("*.py", "*.md", "*.toml", "*.yml", "*.yaml", "*.sh", "Makefile", "Dockerfile", "cdk.json")
# Assembled here, because this file too must not name such a path.
FOREIGN_PATHS = re.compile("|".join(("/" + "work/", "/" + "root/", "/" + "home/" + r"[a-z]+/", "bash" + "_jobs")))
TREE_ENTRY = re.compile(r"[\w.*-]+/|[\w-]*\.?[\w-]+\.(?:py|md|toml|json|txt|lock|sh|jsonl|csv)|Makefile|Dockerfile")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def test_no_module_has_a_vague_name() -> None:
    assert not violations(modules(), lambda path: VAGUE & {Path(part).stem for part in path.relative_to(ROOT).parts})


def test_a_handler_fits_on_a_screen() -> None:
    lines = {path.stem: len(path.read_text().splitlines()) for path in handlers()}
    assert sorted(lines) == ["answer", "notify", "orchestrate", "report", "supervise", "sweep"]
    assert max(lines.values()) <= HANDLER_LINES, "move a part into the package"


def readable() -> list[Path]:
    """Return the files that people read: code, docs and settings, without the logs of other projects."""
    files = sorted({path for pattern in READABLE for path in ours(pattern)})
    return [path for path in files if not {"data", "corpus"} & set(path.relative_to(ROOT).parts)]


def test_no_file_names_a_path_of_a_machine() -> None:
    def find_paths(path: Path) -> list[str]:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if FOREIGN_PATHS.search(line)]

    assert not violations(readable(), find_paths)


def test_every_relative_link_has_a_target() -> None:
    def find_broken(path: Path) -> list[str]:
        return [target for target in LINK.findall(path.read_text()) if not (path.parent / target).exists()]

    assert not violations(ours("*.md"), find_broken)


def test_the_tree_in_the_readme_is_the_tree_on_disk():
    """Every path in the README's tree exists."""
    readme = ROOT / "README.md"
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", readme.read_text(), re.MULTILINE | re.DOTALL)
    trees = [block for block in blocks if re.search(r"^\W*lambdas/", block, re.MULTILINE)]
    assert trees, "README.md ends with a tree, a line per file"
    assert not [path for block in trees for path in named(block) if not any(ROOT.glob(path))]


def named(block: str) -> list[str]:
    """Return the paths in a tree drawn by indentation: the first words of a line, below the folder above them."""
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
