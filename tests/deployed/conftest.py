"""One local AWS with the deployed template for the suite, on a clock sixty times as fast."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.stack import LocalAws
from tests.deployed.jobs import Account

ASSEMBLIES = Path(__file__).parents[2] / ".local" / "assemblies"


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deployed")


@pytest.fixture(scope="session")
def account(state_dir: Path) -> Iterator[Account]:
    """The deployed stack, its policy on the fast clock, and a bucket."""
    with LocalAws(state_dir, scale=60, schedule_scale=60, assemblies=ASSEMBLIES) as aws:
        account = Account(aws)
        account.set_up()
        yield account


@pytest.fixture(scope="session")
def environment(account: Account, state_dir: Path) -> dict[str, str]:
    """For a `rerail ... --local` that looks at this account."""
    return {**os.environ, "RERAIL_LOCAL_STATE": str(state_dir), "COLUMNS": "200"}
