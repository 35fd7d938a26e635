"""The rank that others wait for, by where all ranks stand."""

import json
import pickle
import zlib
from dataclasses import asdict, replace

import pytest

from rerail_agent.stalled_ranks import StalledRank, describe_culprits
from tests.core.test_flight_recorder import BEFORE, RUNNING, WAITING


def position(collective: str = "", *, step: int = 10, script: str = "train at train.py:50", recorded: str = ""):
    return StalledRank(step, "algo-1 GPU 3", "read at data.py:7", script, collective, recorded)


IN, LOADING, ELSEWHERE = position("all_reduce"), position(), position("barrier", script="save at train.py:80")


@pytest.mark.parametrize(
    ("positions", "named"),
    [
        ([IN, IN, LOADING, IN], [2]),
        ([LOADING, IN, IN, IN], [0]),
        ([IN, LOADING], [1]),
        ([IN, None, IN, IN], [1]),
        ([IN, None, LOADING, IN], [1, 2]),
        # Everyone waits in the same collective: its kernel or the network hangs, and no rank stands out.
        ([IN, IN, IN], []),
        # Nobody is in a collective: all wait for their GPUs.
        ([LOADING, LOADING, LOADING], []),
        # Too few wait in one collective to say that the others are late.
        ([IN, LOADING, LOADING, LOADING], []),
        ([IN, ELSEWHERE, position("send"), LOADING], []),
        # A rank of another group waits for the one that is late, and is not late itself.
        ([IN, IN, ELSEWHERE, LOADING], [3]),
        # What a rank wrote in an earlier standstill says nothing about this one.
        ([IN, IN, position(step=7), IN], []),
        ([IN, position("all_reduce", step=7), position("all_reduce", step=7), LOADING], []),
    ],
)
def test_the_culprit_is_in_no_collective_while_most_others_wait_in_one(positions, named):
    by_rank = {rank: there for rank, there in enumerate(positions) if there}
    text, _ = describe_culprits(by_rank, size=len(positions), find_place=lambda rank: f"host of {rank}")
    assert [int(part.split()[1]) for part in text.split("; ") if part.startswith("rank ") and " on " in part] == named


@pytest.mark.parametrize(
    ("moving", "works"),
    [(LOADING, True), (IN, False), (position(step=7), False)],
    ids=["the culprit", "one that waits", "in an earlier standstill"],
)
def test_only_a_culprit_that_works_counts(moving, works):
    positions = {0: IN, 1: IN, 2: IN, 3: LOADING, 4: replace(moving, works=True)}
    assert describe_culprits(positions, size=5, find_place=str).works is works


@pytest.mark.parametrize(
    "change", [{"step": "7"}, {"works": "yes"}, {"place": ["x"]}, {"more": ""}, {"place": "x" * (5 << 20)}]
)
def test_a_position_that_no_rank_has_sent_is_passed_over(change):
    """Anyone who reaches the store can write to it: content may decompress to far more, or to nothing readable."""
    assert StalledRank.read(zlib.compress(json.dumps(asdict(IN)).encode())) == IN
    assert StalledRank.read(zlib.compress(json.dumps({**asdict(IN), **change}).encode())) is None
    assert StalledRank.read(b"x") is None


def test_a_text_names_place_and_function_of_at_most_four_ranks():
    positions = dict(enumerate([IN] * 6 + [LOADING] * 5))
    text, _ = describe_culprits(positions, size=11, find_place=str)
    assert text.startswith(
        "rank 6 on algo-1 GPU 3: it has not entered all_reduce, where rank 0 and 5 more wait;"
        " it is in read at data.py:7, called by train at train.py:50; rank 7 on"
    )
    assert text.endswith("; the same of 1 more; rank 0 waits in train at train.py:50")


def test_the_flight_recorder_decides_where_there_is_one():
    """On GPUs no stack shows the collective: the main threads wait for their devices."""
    dumps = [json.dumps(pickle.loads(dump)) for dump in (WAITING, WAITING, BEFORE, RUNNING)]
    positions = {rank: position(recorded=dump) for rank, dump in enumerate(dumps)}
    text, _ = describe_culprits(positions, size=4, find_place=str)
    assert text.startswith("rank 2 on algo-1 GPU 3: it has not entered nccl:all_reduce 7")
    # Three ranks of four: the fourth is silent, or its record is of another step or cannot be read.
    assert describe_culprits({**positions, 2: position(recorded="{}")}, size=4, find_place=str).text == ""
    assert describe_culprits({**positions, 2: position(recorded=dumps[2], step=7)}, size=4, find_place=str).text == ""
    del positions[2]
    assert describe_culprits(positions, size=4, find_place=str).text.startswith("rank 2 on 2: it left no dump")
