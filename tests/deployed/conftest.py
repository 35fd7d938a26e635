"""One local AWS with the deployed template for the whole suite, on a clock that this machine keeps pace with.

All workers of a run share it. At the end none of the functions' calls was refused by its role, and no dead letter is
left.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.pace import VARIABLE, Pace, measure_pace
from local.stack import LocalAws
from tests.deployed.jobs import HANG_S, Account, apart, refusals
from tests.deployed.shared import joined, locked
from tests.deployed.still import set_still

ASSEMBLIES = Path(__file__).parents[2] / ".local" / "assemblies"
HERE = Path(__file__).parent
# These begin first, for they take longest: the others are done beside them.
LONGEST = (
    *("test_deploying", "test_orchestration", "test_watched", "test_acceptance", "test_documented_commands"),
    *("test_crashes", "test_receivers", "test_submit", "test_chains", "test_remote"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Measure once, before any worker starts: their environment hands the result on to them."""
    if not hasattr(config, "workerinput") and not config.option.collectonly and VARIABLE not in os.environ:
        os.environ[VARIABLE] = str(measure_pace().slowdown)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest files of this folder begin first; the tests of other folders keep their places.

    With --dist loadfile it takes --no-loadscope-reorder, or else the files with the most tests come first.
    """
    ours = [number for number, item in enumerate(items) if HERE in item.path.parents]
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    first = sorted((items[number] for number in ours), key=lambda item: ranks.get(item.path.stem, len(ranks)))
    for number, item in zip(ours, first, strict=True):
        items[number] = item
        if not item.get_closest_marker("time_limit"):
            item.add_marker(pytest.mark.time_limit(HANG_S + 60, reason="`Account.wait` says first what did not come"))


@pytest.fixture(scope="session")
def pace() -> Pace:
    """How fast this machine is, as it was measured when the run began."""
    return measure_pace()


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the suite's local AWS; workers have their own temporary folders in one of the run's."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "deployed"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def account(state_dir: Path, pace: Pace) -> Iterator[Account]:
    """The deployed stack, its policy on the scaled clock, and a bucket."""

    def start() -> LocalAws:
        aws = LocalAws(state_dir, scale=pace.scale, schedule_scale=pace.scale, assemblies=ASSEMBLIES)
        with locked(ASSEMBLIES.parent / "assemblies.lock"):
            aws.start()
        Account(aws, pace).set_up_for_tests()
        return aws

    def check(aws: LocalAws) -> None:
        assert refusals(aws) == []
        assert Account(aws, pace).dead_letters() == []

    with joined(state_dir, start, check) as aws:
        account = Account(aws, pace)
        account.look_here()
        yield account


@pytest.fixture(scope="session")
def environment(account: Account, state_dir: Path) -> dict[str, str]:
    """For a `rerail ... --local` that looks at this account."""
    return {**os.environ, "RERAIL_LOCAL_STATE": str(state_dir), "COLUMNS": "200"}


@pytest.fixture
def undisturbed(state_dir: Path, account: Account) -> Iterator[None]:
    """Nobody disturbs the whole account meanwhile."""
    with locked(state_dir / "disturbance", shared=True):
        yield


@pytest.fixture
def disturbing(state_dir: Path, account: Account) -> Iterator[None]:
    """This test disturbs the whole account: it waits for those that bear no disturbance."""
    with locked(state_dir / "disturbance"):
        yield


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory, pace: Pace) -> Iterator[Account]:
    """A deployment of its own in which nothing moves by itself, but for the sweep's rounds each real minute."""
    with apart(tmp_path_factory.mktemp("still"), scale=pace.scale, assemblies=ASSEMBLIES) as aws:
        account = Account(aws, pace)
        set_still(account)
        yield account
