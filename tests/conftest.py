"""Settings of every suite: Hypothesis draws the same examples each time, and sets no deadline."""

import gc
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import botocore.loaders
import pytest
from hypothesis import HealthCheck, settings

from tests.examples import count_examples

settings.register_profile(
    "rerail",
    deadline=None,
    max_examples=count_examples(50),
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rerail")
# Threads of torch wait for each other in busy loops: two workers on two cores take longer with more than one each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A module whose tests are all slow.
IS_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow", re.MULTILINE)
# The files that take longest: begun last, one of them would keep a single worker busy at the end.
LONGEST = (
    *("container/test_processes.py", "agent/test_hf.py", "bench/test_programs.py", "container/test_parallel.py"),
    *("container/test_restarts.py", "core/test_histories.py", "container/test_init.py", "house/test_cli_start.py"),
    *("report/test_browser.py", "local/test_repairs_lambda.py", "container/test_resume.py", "agent/test_frameworks.py"),
    *("house/test_cold_start.py", "agent/test_lightning.py", "container/test_snapshots.py", "stacks/test_alarms.py"),
    *("container/test_ranks.py", "container/test_rollback.py", "agent/test_acceptance.py", "container/test_drills.py"),
    *("agent/checkpoints/test_bucket.py", "house/test_recipes.py", "aws/test_quarantine.py"),
)
# Thousands of sessions read the same service models: parse each once per process.
botocore.loaders.create_loader = cache(botocore.loaders.create_loader)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which `-m` deselects every test: importing the CDK and the frameworks takes seconds."""
    markexpr = config.option.markexpr
    if not markexpr.startswith(("slow", "not slow")) or not collection_path.name.startswith("test_"):
        return None
    text, is_stack = collection_path.read_text(), "tests/stacks/" in collection_path.as_posix()
    if markexpr.startswith("not slow"):
        return True if is_stack or IS_SLOW.search(text) else None
    return None if is_stack or "mark.slow" in text else True


def pytest_collection_finish() -> None:
    """Leave what was collected out of garbage collection: ten thousand tests live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class ProcessStarts:
    """The processes that tests without the mark `slow` have started in this process."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.is_forbidden = False
        sys.addaudithook(self.on_event)

    def on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        """Record a started process; an audit hook cannot be removed."""
        if self.is_forbidden and event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"):
            self.commands.append(str(arguments[:2]))


STARTS = ProcessStarts()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a synthesized template, since the CDK runs in Node; let the longest files begin first."""
    for item in items:
        if "tests/stacks/" in item.nodeid:
            item.add_marker(pytest.mark.slow)
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0].removeprefix("tests/"), len(ranks)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that starts a process without the mark `slow`: `make test-fast` runs the others on every save."""
    STARTS.commands.clear()
    STARTS.is_forbidden = item.get_closest_marker("slow") is None
    try:
        result = yield
    finally:
        STARTS.is_forbidden = False
    if STARTS.commands:
        pytest.fail(f"mark the test as slow, because it starts {STARTS.commands[0]}")
    return result
