"""The jobs of an acceptance as SageMaker is asked for them, and the agent that they are given."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.acceptance.checks import CHECKS
from cli.acceptance.jobs import CORE, pack_code, write_agent
from cli.acceptance.trials import MAX_RUNTIME_S, TRIALS
from cli.submit.request import make_training_request
from rerail.model.policy import Policy
from tests.cli.acceptance.plan import PLAN
from tests.house.sources import ROOT


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_a_job_is_small_short_and_valid_by_sagemakers_model(trial):
    """It is tagged to be found again, writes into one folder, and leaves a relaunch the run time that it needs."""
    request = make_training_request(PLAN.make_request(trial, pack_code()))
    assert request["ResourceConfig"]["InstanceType"] == "ml.m5.large"
    assert request["StoppingCondition"]["MaxRuntimeInSeconds"] == MAX_RUNTIME_S
    assert {"Key": "rerail:acceptance", "Value": PLAN.id} in request["Tags"]
    assert request["CheckpointConfig"]["S3Uri"].startswith(PLAN.store)
    entry = " ".join(request["AlgorithmSpecification"].get("ContainerEntrypoint", []))
    assert ("rerail_agent.init" in entry) is trial.agent
    assert bool(request.get("EnableManagedSpotTraining")) is (trial.name == "spot")
    left = MAX_RUNTIME_S - float(request["Environment"]["ACCEPTANCE_STEP_SECONDS"]) * trial.scenario.fault_step
    assert left > 2 * Policy().limits.least_runtime.total_seconds()


def test_all_jobs_cost_cents():
    assert sum(trial.dollars for trial in TRIALS) < 0.5


@pytest.mark.slow
def test_python_imports_the_agent_from_the_archive(tmp_path: Path):
    """As the job does, with the parts of the core that the wheel has."""
    assert f"CORE = {CORE}".replace("'", '"') in (ROOT / "agent" / "hatch_build.py").read_text()
    archive = write_agent(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); import rerail_agent.init, rerail_agent.manifests, rerail"
    code += "; print(rerail_agent.__file__, rerail.__file__)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert done.stdout.count(str(archive)) == 2, done.stderr


def test_limits_lists_these_assumptions_by_their_ids():
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", (ROOT / "docs" / "limits.md").read_text(), re.MULTILINE)
    assert rows == [(check.id, check.assumption) for check in CHECKS]
