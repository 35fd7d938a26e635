"""The lock files hold what pyproject.toml asks for, and PyTorch's build is looked for in the right places."""

import re
import tomllib
from pathlib import Path

import pytest

from tools import packages
from tools.packages import GROUPS, HARDWARE_PACKAGES, REQUIREMENTS, chain

PYPROJECT = tomllib.loads((packages.ROOT / "pyproject.toml").read_text())
PROJECT, DEPENDENCY_GROUPS = PYPROJECT["project"], PYPROJECT["dependency-groups"]
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)


def locked(group: str) -> dict[str, str]:
    """The version of each package that the group installs."""
    texts = [(REQUIREMENTS / f"{name}.txt").read_text() for name in chain(group)]
    return {name.lower(): version for text in texts for name, version in PIN.findall(text)}


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_installs_what_its_extras_pin(group: str) -> None:
    """In exactly that version; `make lock` was run after the last change of a pin."""
    pins = locked(group)
    for extra in [extra for name in chain(group) for extra in GROUPS[name]]:
        for package in (line for line in PROJECT["optional-dependencies"][extra] if not line.startswith("rerail[")):
            name, version = re.sub(r"\[.*\]", "", package).split("==")
            if not HARDWARE_PACKAGES.match(name):
                assert pins[name.lower()] == version


@pytest.mark.parametrize("file", sorted(REQUIREMENTS.glob("*.txt")), ids=lambda file: file.stem)
def test_every_package_has_a_hash_and_no_address(file: Path) -> None:
    """So no index can put another file in its place, and any index will do."""
    text = file.read_text()
    entries = re.findall(r"^[\w].*\n(?: .*\n)*", text, re.MULTILINE)
    assert len(entries) == len(PIN.findall(text)) > 0
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text


def test_a_group_apart_installs_what_it_pins() -> None:
    for group in packages.APART:
        pins = dict(PIN.findall((REQUIREMENTS / f"{group}.txt").read_text()))
        assert all(pins[name] == version for name, version in (line.split("==") for line in DEPENDENCY_GROUPS[group]))


def test_every_extra_is_installed_by_some_command() -> None:
    assert set(PROJECT["optional-dependencies"]) == {extra for extras in GROUPS.values() for extra in extras}
    assert set(DEPENDENCY_GROUPS) == set(packages.APART)
