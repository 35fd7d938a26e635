"""The lock files hold what pyproject.toml asks for, and PyTorch's build is looked for in the right places."""

import re
import tomllib
from pathlib import Path

import pytest

from tools import packages
from tools.packages import (
    GROUPS,
    HARDWARE_PACKAGES,
    REQUIREMENTS,
    chain,
    install_torch,
    torch_requirement,
    torch_sources,
)

PROJECT = tomllib.loads((packages.ROOT / "pyproject.toml").read_text())["project"]
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


def test_every_extra_is_installed_by_some_command() -> None:
    assert set(PROJECT["optional-dependencies"]) == {extra for extras in GROUPS.values() for extra in extras}


@pytest.mark.slow
def test_a_wheel_at_hand_wins_over_the_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that pip is configured with counts if a PyTorch lies in it; the default index comes last."""
    full, empty = tmp_path / "full", tmp_path / "empty"
    for folder in (full, empty):
        folder.mkdir()
    (full / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", f"{empty} {full}")
    monkeypatch.setenv("TORCH_BACKEND", "cu130")
    sources = torch_sources(is_uv=True)
    assert ["--find-links", str(full)] in sources
    assert ["--find-links", str(empty)] not in sources
    assert sources[-2:] == [["--torch-backend", "cu130"], []]
    monkeypatch.setenv("TORCH_BACKEND", "")  # as make exports it
    assert torch_sources(is_uv=True)[-2:] == [["--torch-backend", "cpu"], []]
    assert torch_sources(is_uv=False) == [[]]


def test_the_next_source_is_asked_where_one_has_no_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is installed in the pinned version stays, whatever its build."""
    asked: list[list[str]] = []

    class Refused:
        returncode = 1

    monkeypatch.setattr(packages, "_installed_torch", lambda: "")
    monkeypatch.setattr(packages, "torch_sources", lambda is_uv: [["--first"], ["--second"], []])
    monkeypatch.setattr(packages.subprocess, "run", lambda command, **how: asked.append(list(command)) or Refused())
    monkeypatch.setattr(packages, "run", lambda *command: asked.append(list(command)))
    install_torch(["uv", "pip"])
    wanted = torch_requirement()
    assert asked == [["uv", "pip", "--first", wanted], ["uv", "pip", "--second", wanted], ["uv", "pip", wanted]]
    monkeypatch.setattr(packages, "_installed_torch", lambda: wanted.partition("==")[2])
    install_torch(["uv", "pip"])
    assert len(asked) == 3
