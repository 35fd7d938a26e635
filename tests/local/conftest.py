"""One emulator with the sample stack for the whole suite."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from local.stack import ROOT, LocalAws
from tests.local.waiting import Mailbox

SAMPLE = Path(__file__).parent / "sample"
RETRY_SCALE = 600.0


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """The sample app, deployed; retries come after 0.1 s and 0.2 s, and a one-minute schedule every second."""
    local = LocalAws(
        tmp_path_factory.mktemp("aws"), scale=RETRY_SCALE, schedule_scale=60, root=SAMPLE, stack="Sample",
        assemblies=ROOT / ".local" / "test-assemblies",
    )  # fmt: skip
    with local:
        yield local


@pytest.fixture(scope="session")
def seen(aws: LocalAws) -> Mailbox:
    """What the functions were given."""
    return Mailbox(aws, "Seen")
