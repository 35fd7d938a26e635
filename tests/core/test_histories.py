"""Play histories of one run with several supervisors, faults and people, over the fake store and over DynamoDB in moto.

See tests/core/histories.py, which also replays a history by its seed.
"""

from collections.abc import Iterator

import pytest

from tests.aws.places import our_own_clients
from tests.core.histories import play
from tests.examples import FULL_RUN

pytestmark = pytest.mark.slow  # 50 seconds of one core

HISTORIES, TABLE_HISTORIES = (20_000, 200) if FULL_RUN else (300, 5)
# Histories of one test, so that the workers share them.
CHUNK = 25 if not FULL_RUN else 100


@pytest.fixture(scope="module")
def clients() -> Iterator[None]:
    with our_own_clients():
        yield


@pytest.mark.parametrize("first", range(0, HISTORIES, CHUNK))
def test_the_invariants_hold_at_each_call_of_any_history(first):
    for seed in range(first, first + CHUNK):
        play(seed)


@pytest.mark.parametrize("seed", range(TABLE_HISTORIES))
def test_a_history_over_the_real_table_is_the_same(clients, seed):
    """The same seed gives the same steps, so that the fake store and the adapter cannot differ unnoticed."""
    assert play(seed, on_table=True).steps == play(seed).steps
