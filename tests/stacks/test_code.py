"""The same checkout makes the same assets, wherever, whenever and by whom it is synthesized."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from local import deploy
from local.deploy import zipped
from stacks import ROOT
from stacks.parts import code


def test_everyone_may_read_the_code_whatever_the_umask(tmp_path):
    """Lambda runs functions as another user; a hardened laptop makes files that only their owner may read."""
    before = os.umask(0o077)
    try:
        code.fill(tmp_path / "code")
        (tmp_path / "private.py").write_text("")
        (tmp_path / "tool").write_text("")
        (tmp_path / "tool").chmod(0o700)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "code").rglob("*") if path.is_file()} == {0o644}
    with zipfile.ZipFile(io.BytesIO(zipped(tmp_path))) as archive:
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert (modes["private.py"], modes["tool"]) == (0o100644, 0o100755)


def test_another_folder_time_umask_and_python_make_the_same_assets(tmp_path, assembly):
    """Or each deployment by another person would replace all functions. A Python of the runtime's version is at hand
    in the second synthesis, and bytecode of it lies beside the sources."""
    checkout, tools = tmp_path / "checkout", tmp_path / "bin"
    for name in deploy.INPUTS:
        source, place = ROOT / name, checkout / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place) if source.is_file() else shutil.copytree(source, place)
    for path in checkout.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    (checkout / "lambdas" / "rerail" / "__pycache__").mkdir(exist_ok=True)
    (checkout / "lambdas" / "rerail" / "__pycache__" / "ports.cpython-313.pyc").write_bytes(b"bytecode")
    tools.mkdir()
    (tools / "python3.13").write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo 3 13 && exit\nexec {sys.executable} "$@"\n')
    (tools / "python3.13").chmod(0o755)
    context = deploy.LOCAL_SCOPE
    environment = deploy._synth_environment(deploy._context(ROOT) | context, tmp_path / "out", tmp_path, validate=False)
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    run = subprocess.run(
        [sys.executable, "app.py"], cwd=checkout, env=environment, umask=0o077, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    found, made = (assets_of(folder) for folder in (assembly, tmp_path / "out"))
    assert made == found and len(made) == 3


def assets_of(assembly: Path) -> set[tuple[str, int]]:
    """The hash of each asset with the hash of its archive, which is what is uploaded."""
    files = json.loads((assembly / "Rerail.assets.json").read_text())["files"]
    return {
        (key, hash(zipped(assembly / asset["source"]["path"])))
        for key, asset in files.items()
        if asset["source"]["packaging"] == "zip"
    }
