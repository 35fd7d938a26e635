"""The data position is one number: what each rank reads of the samples."""

import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data
from job import TrainingJob, read_ranges
from rerail_agent.failure import DataError

RANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=8).map(
    lambda pairs: read_ranges(",".join(f"{first}-{first + more}" for first, more in pairs))
)


@settings(deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=8), st.integers(0, 500), RANGES)
def test_any_ranks_read_every_sample_once(world_sizes: list[int], start: int, skipped: tuple[range, ...]) -> None:
    consumed, read = start, []
    for world_size in world_sizes:
        ids = data.choose_batch_ids(consumed, 12, skipped=skipped)
        shares = [data.select_for_rank(ids, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert {len(share) for share in shares} == {12 // world_size}
        read += [sample_id for share in shares for sample_id in share]
        consumed = ids[-1] + 1
    unread = {sample_id for gap in skipped for sample_id in gap}
    assert sorted(read) == [sample_id for sample_id in range(start, consumed) if sample_id not in unread]
    assert len(read) == 12 * len(world_sizes)


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 40), st.integers(1, 40), RANGES)
def test_two_batches_are_one_big_one(start: int, first: int, second: int, skipped: tuple[range, ...]) -> None:
    """The position is all there is to know: another batch size from the middle on reads the same ids."""
    one = data.choose_batch_ids(start, first, skipped=skipped)
    other = data.choose_batch_ids(one[-1] + 1, second, skipped=skipped)
    assert one + other == data.choose_batch_ids(start, first + second, skipped=skipped)


def test_skipping_far_ahead_costs_nothing() -> None:
    """Billions of skipped ids are passed over in one stride."""
    skipped = read_ranges("3-9999999999,20000000000-29999999999")
    assert data.choose_batch_ids(0, 5, skipped=skipped) == [0, 1, 2, 10_000_000_000, 10_000_000_001]


def test_ranges_are_put_in_order() -> None:
    assert read_ranges("20-29, 5-9,10-12,25-40,7-8") == (range(5, 13), range(20, 41))
    assert read_ranges("") == read_ranges(" , ") == ()


@pytest.mark.parametrize("text", ["7", "9-8", "a-b", "1-2-3", "1-2;3-4", "-1-2", "1-2,x"])
def test_ranges_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"RERAIL_SKIP_SAMPLES: .* is not a valid range of sample ids; write first-last"
    ):
        TrainingJob.from_environment({"RERAIL_SKIP_SAMPLES": text})


@pytest.mark.parametrize(("text", "rate"), [("", 1.0), ("0.9", 0.9), ("1e-3", 0.001), ("2", 2.0)])
def test_the_factor_on_the_learning_rate_is_a_number(text: str, rate: float) -> None:
    assert TrainingJob.from_environment({"RERAIL_LR_SCALE": text}).rate == rate


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e9", "half"])
def test_a_factor_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"RERAIL_LR_SCALE=.* must be a number above 0, at most 1000, such as 0.9"):
        TrainingJob.from_environment({"RERAIL_LR_SCALE": text})


@settings(deadline=None)
@given(st.integers(20, 400), st.integers(1, 9), st.integers(0, 2**32), st.integers(0, 3))
def test_an_epoch_visits_every_window_once(length: int, context: int, seed: int, epoch: int) -> None:
    corpus = data.TextCorpus(bytes(length), context=context, seed=seed)
    windows = [corpus.window(epoch * corpus.windows + position) for position in range(corpus.windows)]
    assert sorted(windows) == list(range(corpus.windows))


def test_a_batch_does_not_depend_on_what_was_read_before() -> None:
    """A corpus opened again in the middle of the run gives the same batch as one that read its way there."""
    one, other = (data.TextCorpus(data.make_synthetic_text(7, 5000), context=16, seed=7) for _ in range(2))
    for consumed in range(0, 600, 12):
        inputs, targets = one.batch(range(consumed, consumed + 12))
    again_inputs, again_targets = other.batch(range(588, 600))
    assert inputs.equal(again_inputs)
    assert targets.equal(again_targets)
    assert inputs[:, 1:].equal(targets[:, :-1])


def test_epochs_differ_in_order_and_seeds_in_text() -> None:
    """Neither is the same again by accident."""
    corpus = data.TextCorpus(data.make_synthetic_text(7, 5000), context=16, seed=7)
    first, second = (
        [corpus.window(epoch * corpus.windows + position) for position in range(corpus.windows)] for epoch in (0, 1)
    )
    assert first != second
    assert data.make_synthetic_text(7, 5000) != data.make_synthetic_text(8, 5000)
    assert np.frombuffer(data.make_synthetic_text(7, 5000), dtype=np.uint8).max() < 128


def test_the_channels_files_are_the_text(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"first, \xff")
    corpus = data.open_corpus(tmp_path, context=4, seed=1)
    assert corpus.bytes.tobytes() == b"first, \xff\nsecond"


def test_an_empty_channel_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="channel 'train'.*add text"):
        data.open_corpus(tmp_path, context=4, seed=1)


def test_an_unreadable_file_is_a_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, "Input/output error", str(path))

    (tmp_path / "a.txt").write_bytes(b"text")
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(DataError, match="a.txt.*Input/output error"):
        data.open_corpus(tmp_path, context=4, seed=1)
