"""The code as it is shipped: its own bytecode is what runs, and a Python is believed when it says which one it is."""

import io
import os
import subprocess
import sys
import zipfile
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from local.deploy import zipped
from stacks.parts import code

HERE = (sys.version_info.major, sys.version_info.minor)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory) -> Path:
    """The code with the bytecode of the Python that runs."""
    folder = tmp_path_factory.mktemp("shipped") / "code"
    code.fill(folder, sys.executable)
    return folder


def test_every_module_comes_with_its_bytecode(shipped):
    """None is compiled in Lambda, whatever the zip makes of the files' times."""
    sources = set(shipped.rglob("*.py"))
    for source in sources:
        compiled = Path(cache_from_source(str(source)))
        flags = int.from_bytes(compiled.read_bytes()[4:8], "little")
        assert flags == 0b01, "by hash, and not to be checked"
    assert len(list(shipped.rglob("*.pyc"))) == len(sources) > 50


def test_the_bytecode_is_what_runs(shipped):
    """A source that is newer, and says something else, is not looked at."""
    (shipped / "settings.py").write_text("raise SystemExit('compiled anew')\n")
    look = "import settings; print(settings.Settings.__name__)"
    environment = {"PYTHONPATH": str(shipped), "PATH": os.environ["PATH"]}
    ran = subprocess.run([sys.executable, "-S", "-c", look], env=environment, capture_output=True, text=True)
    assert ran.stdout.strip() == "Settings", ran.stderr


def test_the_same_sources_make_the_same_code(shipped, tmp_path):
    """Or each synthesis would deploy all functions anew."""
    code.fill(tmp_path / "code", sys.executable)
    compiled = [path.relative_to(shipped) for path in shipped.rglob("*.pyc")]
    assert [path for path in compiled if (tmp_path / "code" / path).read_bytes() != (shipped / path).read_bytes()] == []


def test_everyone_may_read_the_code_whatever_the_umask(tmp_path):
    """Lambda runs functions as another user; a hardened laptop makes files that only their owner may read."""
    before = os.umask(0o077)
    try:
        code.fill(tmp_path / "code", None)
        (tmp_path / "private.py").write_text("")
        (tmp_path / "tool").write_text("")
        (tmp_path / "tool").chmod(0o700)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "code").rglob("*") if path.is_file()} == {0o644}
    with zipfile.ZipFile(io.BytesIO(zipped(tmp_path))) as archive:
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert (modes["private.py"], modes["tool"]) == (0o100644, 0o100755)


def test_without_a_python_the_sources_go_alone(tmp_path):
    code.fill(tmp_path / "code", None)
    assert (tmp_path / "code" / "supervise.py").exists()
    assert not [path for path in (tmp_path / "code").rglob("*") if path.suffix == ".pyc" or path.name == "__pycache__"]


def test_the_python_that_runs_is_taken_where_it_is_the_one():
    assert code.interpreter(HERE) == sys.executable


@pytest.mark.parametrize("script", ["echo not installed; exit 127", "echo 2 7", "exit 0"])
def test_what_only_carries_the_name_is_no_python(tmp_path, monkeypatch, script):
    """A stand-in that tells that it is not installed, another version, or something that says nothing."""
    named = tmp_path / "python9.9"
    named.write_text(f"#!/bin/sh\n{script}\n")
    named.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert code.interpreter((9, 9)) is None
