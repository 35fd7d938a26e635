"""Provide seeded bytes to train on, addressed by absolute sample id, so that the data position is one number.

Sample ids count up from 0 for the whole run. A batch is the next `batch_size` ids that are not skipped, dealt out to
the ranks in turn. Any number of ranks reads each of them exactly once, and a resumed run continues at the next.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from rerail_agent.failure import DataError

SYNTHETIC_BYTES = 1 << 17


def choose_batch_ids(consumed: int, batch_size: int, *, skipped: Sequence[range] = ()) -> list[int]:
    """Return the ids of the batch that begins at `consumed`; the next one begins after the last of them.

    `skipped` is in ascending order. Ids after a skipped range move up, so that every batch is full.
    """
    ids: list[int] = []
    for gap in skipped:
        ids += range(consumed, min(gap.start, consumed + batch_size - len(ids)))
        consumed = max(consumed, gap.stop)
    return ids + list(range(consumed, consumed + batch_size - len(ids)))


def select_for_rank(ids: Sequence[int], *, rank: int, world_size: int) -> Sequence[int]:
    """Return the ids that one of `world_size` ranks reads of a batch."""
    return ids[rank::world_size]


class TextCorpus:
    """A text cut into windows of `context` bytes, each paired with itself shifted by one.

    Every epoch visits all windows in its own order, drawn from the seed and the epoch's number.
    """

    def __init__(self, text: bytes, *, context: int, seed: int) -> None:
        self.bytes = np.frombuffer(text, dtype=np.uint8)
        self.context = context
        self.seed = seed
        self.windows = (len(text) - 1) // context
        if self.windows < 1:
            raise DataError(f"channel 'train': {len(text)} bytes are fewer than one sample of {context + 1}; add text")
        self._order = (-1, np.empty(0, dtype=np.int64))

    def window(self, sample_id: int) -> int:
        """Return the window of a sample id."""
        epoch, position = divmod(sample_id, self.windows)
        if self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self.windows))
        return int(self._order[1][position])

    def batch(self, ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets, both int64 of shape (len(ids), context)."""
        starts = [self.window(sample_id) * self.context for sample_id in ids]
        rows = np.stack([self.bytes[start : start + self.context + 1] for start in starts])
        tokens = torch.from_numpy(rows.astype(np.int64))
        return tokens[:, :-1], tokens[:, 1:]


def open_corpus(channel: Path, *, context: int, seed: int) -> TextCorpus:
    """Return the text of the channel's files, in the order of their names; without a channel, synthetic text."""
    text = read_channel(channel) if channel.exists() else make_synthetic_text(seed)
    return TextCorpus(text, context=context, seed=seed)


def read_channel(channel: Path) -> bytes:
    try:
        return b"\n".join(path.read_bytes() for path in sorted(channel.rglob("*")) if path.is_file())
    except OSError as error:
        reason = f"cannot read {error.filename} ({error.strerror})"
        raise DataError(f"channel 'train': {reason}; check the files and the role") from error


def make_synthetic_text(seed: int, size: int = SYNTHETIC_BYTES) -> bytes:
    """Return sentences of random words, frequent and rare ones as in a language, which a model can learn."""
    rng = np.random.default_rng(seed)
    letters = np.frombuffer(b"etaoinshrdlu", dtype=np.uint8)
    words = [rng.choice(letters, size=rng.integers(2, 8)).tobytes() for _ in range(200)]
    share = 1 / np.arange(1, len(words) + 1)
    picks = rng.choice(len(words), size=size // 3, p=share / share.sum())
    ends = rng.random(len(picks)) < 0.1
    return b"".join(words[pick] + (b". " if end else b" ") for pick, end in zip(picks, ends, strict=True))[:size]
