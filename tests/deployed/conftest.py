"""One local AWS with the deployed template for the suite, on a clock sixty times as fast. Whatever the tests have the
functions call is held against their roles in the end."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.noted import instrument, read_calls
from bench.permissions import refusals
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
        calls = state_dir / "calls.jsonl"
        instrument(aws, calls)
        yield account
        assert read_calls(calls), "the functions have called nothing, or nobody has noted it"
        assert refusals(aws, calls) == [], "the functions called what their roles do not allow"


@pytest.fixture(scope="session")
def environment(account: Account, state_dir: Path) -> dict[str, str]:
    """For a `rerail ... --local` that looks at this account."""
    return {**os.environ, "RERAIL_LOCAL_STATE": str(state_dir), "COLUMNS": "200"}
