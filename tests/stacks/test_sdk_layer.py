"""The layer with the SDK: complete for the functions' calls, and no larger than it must be."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from stacks import ROOT
from stacks.parts.python_layer import fill
from stacks.parts.sdk_layer import PACKAGES, SERVICES, is_needed

# Pages, waiters and retries are read from files too, and errors from the models.
MAKE_CLIENTS = """
import sys
sys.path = [{layer!r}] + [place for place in sys.path if "site-packages" not in place]
import boto3, boto3.s3.transfer
session = boto3.Session("a", "b", region_name="eu-west-1")
for service in {services!r}:
    client = session.client(service)
    client.exceptions, client.meta.endpoint_url
print(boto3.__version__, client.get_paginator("list_objects_v2"), session.client("sts"))
"""
CALLED = re.compile(r"""\bclient\(\s*"([a-z0-9-]+)\"""")


@pytest.mark.slow
def test_the_functions_need_no_other_sdk(tmp_path: Path) -> None:
    """With nothing else on the path than the layer, every client of the functions can be made."""
    sources = "".join(path.read_text() for path in sorted((ROOT / "lambdas").rglob("*.py")))
    called = set(CALLED.findall(sources))
    assert {"sagemaker", "dynamodb", "s3"} <= called <= set(SERVICES)
    fill(tmp_path / "python", PACKAGES, is_needed)
    code = MAKE_CLIENTS.format(layer=str(tmp_path / "python"), services=sorted(called - {"s3"}) + ["s3"])
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(version("boto3"))
    size = sum(path.stat().st_size for path in tmp_path.rglob("*"))
    assert size < 8_000_000, "the models of other services are in it"
