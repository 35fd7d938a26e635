"""Writes toolkit.json: the arguments and variables that AWS's own training toolkit gives to a script.

    python -m venv toolkit && toolkit/bin/pip install sagemaker-training setuptools
    PYTHONPATH=. toolkit/bin/python -m tests.cli.submit.capture_toolkit

The code lies where the toolkit would unpack it, so that nothing is fetched from anywhere.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HYPERPARAMETERS = {"epochs": "3", "lr": '"1e-3"', "b": '"007"', "flag": '"true"', "empty": '""', "rate": "0.5"}
SCRIPT_MODE = {
    "sagemaker_program": '"train.py"',
    "sagemaker_submit_directory": '"s3://bucket/code/sourcedir.tar.gz"',
    "sagemaker_container_log_level": "20",
    "sagemaker_job_name": '"job"',
    "sagemaker_region": '"eu-west-1"',
}
HOST = "localhost"  # the toolkit waits until it can be resolved
RESOURCES = {
    "current_host": HOST,
    "hosts": [HOST],
    "current_instance_type": "ml.m5.large",
    "current_group_name": "homogeneousCluster",
    "instance_groups": [{"instance_group_name": "homogeneousCluster", "instance_type": "ml.m5.large", "hosts": [HOST]}],
    "network_interface_name": "lo",
}
CHANNEL = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
SHOWS = """
import json, os, sys
variables = {name: value for name, value in os.environ.items() if name.startswith("SM_")}
with open(os.path.join(os.environ["SM_MODEL_DIR"], "told.json"), "w") as file:
    json.dump({"argv": sys.argv[1:], "sm": variables}, file)
"""


def lay_out(base: Path, hyperparameters: Mapping[str, str]) -> None:
    """A host of a job, as SageMaker leaves it."""
    for folder in ("input/config", "input/data/training", "model", "output/data", "code"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    facts = {
        "hyperparameters": {**SCRIPT_MODE, **hyperparameters},
        "inputdataconfig": {"training": CHANNEL},
        "resourceconfig": RESOURCES,
    }
    for name, content in facts.items():
        (base / "input" / "config" / f"{name}.json").write_text(json.dumps(content))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        lay_out(base, HYPERPARAMETERS)
        (base / "code" / "train.py").write_text(SHOWS)
        environment = {"PATH": os.environ["PATH"], "SAGEMAKER_BASE_DIR": folder, "AWS_DEFAULT_REGION": "eu-west-1"}
        subprocess.run([Path(sys.executable).with_name("train")], env=environment, check=True, timeout=1800)
        facts = json.loads((base / "model" / "told.json").read_text().replace(folder, "BASE"))
    Path(__file__).with_name("toolkit.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
