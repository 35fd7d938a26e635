"""The core's packages import one way, without cycles; an import for type checking counts like any other."""

import re
from collections import defaultdict
from pathlib import Path

from tests.house.sources import ROOT, core, imports, shown, violations, within

# Each package imports the standard library, itself and packages above it.
LAYERS = (
    "rerail.model",
    "rerail.diagnosis",
    "rerail.requests",
    "rerail.ports",
    "rerail.detection",
    "rerail.accounting",
    "rerail.decisions",
    "rerail.messages",
    "rerail.notices",
    "rerail.hyperpod",
    "rerail.incident_report",
    "rerail.supervisor",
    "rerail.sweep",
    "rerail.orchestration",
)


def layer_of(module: str) -> int | None:
    """Return the index of the layer that a module belongs to; None for a module outside the core."""
    return next((index for index, layer in enumerate(LAYERS) if within(module, layer)), None)


def name_of(path) -> str:
    """Return the dotted name of a module of the core."""
    parts = path.with_suffix("").parts
    return ".".join(parts[parts.index("lambdas") + 1 :]).removesuffix(".__init__")


def test_a_package_imports_only_packages_above_it() -> None:
    """What two packages need belongs into the upper one."""

    def find_lower(path: Path) -> set[str]:
        own = layer_of(name_of(path))
        assert own is not None or name_of(path) == "rerail", f"add the package of {shown(path)} to LAYERS"
        return {name for name in imports(path) if own is not None and (layer_of(name) or 0) > own}

    assert not violations(core(), find_lower)


def test_the_readme_lists_the_packages_in_this_order():
    """The README's tree has a line for each package, in the order in which they may import each other."""
    listed = re.findall(r"^    (\w+)(?:/|\.py) ", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [f"rerail.{name}" for name in listed if f"rerail.{name}" in LAYERS] == list(LAYERS)


def test_no_modules_import_each_other():
    """No chain of imports within the core comes back to where it began."""
    modules = {name_of(path): path for path in core()}
    imported = {name: {other for other in imports(path) if other in modules} for name, path in modules.items()}
    # Importing a module runs its package's __init__.py, which is empty: no edge of its own.
    edges = {name: {peer for peer in others if not others & _below(peer, modules)} for name, others in imported.items()}
    state: dict[str, int] = defaultdict(int)

    def visit(name: str, chain: tuple[str, ...]) -> None:
        assert state[name] != 1, " -> ".join((*chain, name))
        if state[name] == 0:
            state[name] = 1
            for other in sorted(edges[name]):
                visit(other, (*chain, name))
            state[name] = 2

    for name in sorted(modules):
        visit(name, ())


def _below(package: str, modules: dict) -> set[str]:
    return {name for name in modules if name.startswith(f"{package}.")}
