"""Airflow with a database of its own, and a local AWS with the deployed template in another process.

Airflow reads its settings when it is imported, so they are set here first.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
HOME = tempfile.TemporaryDirectory(prefix="rerail-airflow-")
os.environ |= {
    "AIRFLOW_HOME": HOME.name,
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(HERE / "dags"),
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    "AIRFLOW_CONN_AWS_DEFAULT": '{"conn_type": "aws"}',
    "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("agent", "lambdas", "integrations/airflow")),
}
# Ends a test that hangs, at reference speed: no test waits for so long.
HANG_S = 240.0
T = TypeVar("T")


class LocalAccount:
    """The local AWS and what a test does in it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.facts = self._read()

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of tests.deployed.jobs.Account in the other process."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps([method, arguments, options]) + "\n")
        self._process.stdin.flush()
        return self._read()

    def wait(self, what: str, look: Callable[[], T | None]) -> T:
        """Look again and again until there is something; return it."""
        end = time.monotonic() + HANG_S * self.facts["real_s"]
        while time.monotonic() < end:
            if found := look():
                return found
            time.sleep(0.2)
        raise AssertionError(f"{what}: not in time")

    def _read(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the local AWS has ended; its own error is above"
        return json.loads(line)


@pytest.fixture(scope="session")
def database() -> None:
    """Make the tables of Airflow's database."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(scope="session")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAccount]:
    """One deployment for all tests; the clients of this process look at it."""
    python = Path(sys.prefix).parent / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / name) for name in ("", "lambdas", "agent", "container"))
    process = subprocess.Popen(
        [str(python), str(HERE / "local_aws.py"), str(tmp_path_factory.mktemp("aws"))],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        local = LocalAccount(process)
        os.environ |= {
            "AWS_ENDPOINT_URL": local.facts["endpoint"],
            "AWS_ACCESS_KEY_ID": local.facts["account"],
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_DEFAULT_REGION": local.facts["region"],
        }
        yield local
        assert process.stdin
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
