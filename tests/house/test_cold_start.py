"""What a cold start pays for: no heavy import, no client before the first call, and a bounded share of CPU."""

import json
import os
import subprocess
import sys

import pytest

from tests.house.sources import ROOT

HANDLERS = ("supervise", "sweep", "notify", "report")
HEAVY = ("pydantic", "numpy", "torch", "jsonschema", "aws_cdk", "typer", "rich", "moto", "jinja2", "pygal")
# boto3 is about half of a cold start; the rest (Powertools, the core) may cost as much again, with room for noise.
MOST_TIMES_BOTO3 = 3.0

LOOK = """
import json, sys, time
sys.path.insert(0, {lambdas!r})
import botocore.session
made = []
create = botocore.session.Session.create_client
botocore.session.Session.create_client = lambda *a, **k: made.append(a[1:]) or create(*a, **k)
import {module}
print(json.dumps({{"modules": sorted({{name.partition(".")[0] for name in sys.modules}}), "clients": made}}))
"""
COST = "import sys, time; sys.path.insert(0, {lambdas!r}); import {module}; print(time.process_time())"


def fresh(code: str, module: str) -> str:
    """What the code prints in a new interpreter."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {"POWERTOOLS_SERVICE_NAME": module, "POWERTOOLS_METRICS_NAMESPACE": "Rerail"}
    environment |= {"LAMBDA_TASK_ROOT": "/var/task"}  # elsewhere than in Lambda the tracer asks for its sampling rules
    script = code.format(lambdas=str(ROOT / "lambdas"), module=module)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("module", HANDLERS)
def test_a_cold_start_loads_nothing_heavy_and_calls_nobody(module):
    """Importing a handler needs no region, no credentials and no setting, loads no heavy package, makes no client."""
    seen = json.loads(fresh(LOOK, module))
    assert not set(HEAVY) & set(seen["modules"])
    assert seen["clients"] == []


def test_a_cold_start_costs_little_more_than_the_sdk():
    """Each handler's import takes at most a few times the CPU of boto3's, measured side by side."""
    cost = {name: min(float(fresh(COST, name)) for _ in range(2)) for name in ("boto3", *HANDLERS)}
    times = {name: cost[name] / cost["boto3"] for name in HANDLERS}
    print({name: f"{seconds * 1000:.0f} ms" for name, seconds in cost.items()}, times)
    assert max(times.values()) <= MOST_TIMES_BOTO3, f"CPU seconds: {cost}"
