"""Know which samples a data loader yields in which order, and have it leave out those that a rollback skips.

The id of a sample is its position in the data order: the batches of all ranks, one after the other, epoch after epoch,
skipped ones included. A batch with a sample to skip is left out on all ranks; the batches after it move up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from rerail.model.skipped_samples import Ranges, advance, merge_ranges

REMEDY = "use shuffle=False or a DistributedSampler"


@dataclass(frozen=True, slots=True)
class DataOrder:
    """The batches of a run, numbered from 0 across epochs in the order of its data; those to skip are counted too."""

    # Batches of one epoch on one rank.
    epoch_batches: int
    # Ids of one epoch.
    epoch_samples: int
    # Samples of a full batch over all ranks.
    batch_samples: int
    # The first and last id of each range to skip.
    skipped: Ranges = ()
    # The first and last number of the batches with a sample to skip.
    skipped_batches: Ranges = field(init=False)

    def __post_init__(self) -> None:
        batches = [(self._contain(first), self._contain(last)) for first, last in self.skipped]
        object.__setattr__(self, "skipped_batches", merge_ranges(batches))

    def start(self, number: int) -> int:
        """Return the id of the first sample of a batch."""
        epoch, index = divmod(number, self.epoch_batches)
        return epoch * self.epoch_samples + index * self.batch_samples

    def find(self, sample: int) -> int:
        """Return the number of the first batch that begins at a sample or after it."""
        epoch, offset = divmod(sample, self.epoch_samples)
        return epoch * self.epoch_batches + min(-(-offset // self.batch_samples), self.epoch_batches)

    def advance(self, number: int, count: int) -> int:
        """Return the number of the next batch after training on `count` batches from a number on."""
        return advance(number, count, self.skipped_batches)

    def is_skipped(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.skipped_batches)

    def _contain(self, sample: int) -> int:
        epoch, offset = divmod(sample, self.epoch_samples)
        return epoch * self.epoch_batches + min(offset // self.batch_samples, self.epoch_batches - 1)


class OrderedBatches(BatchSampler):  # type: ignore[misc,unused-ignore]
    """Yield one rank's batches of indices in the data order, without the skipped ones.

    Each iteration yields as many as an epoch has and begins at `next_batch`, so it may end within the next epoch of
    the data.
    """

    def __init__(self, batches: Any, order: DataOrder) -> None:
        self.batch_size, self.drop_last = batches.batch_size, batches.drop_last
        self.next_batch = 0
        # The batches that the trainer itself drops at the beginning of the next iteration, to get to its position.
        self.dropped_by_trainer = 0
        self._batches, self._order = batches, order

    def __len__(self) -> int:
        return self._order.epoch_batches

    def __iter__(self) -> Iterator[list[int]]:
        dropped, self.dropped_by_trainer = self.dropped_by_trainer, 0
        stream = self._stream(self.next_batch)
        if dropped:
            first = next(stream)
            stream = chain(repeat(first, dropped), [first], stream)
        return islice(stream, len(self))

    def _stream(self, number: int) -> Iterator[list[int]]:
        sampler = get_sampler(self._batches)
        while True:
            epoch = number // len(self)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            for at, batch in enumerate(islice(self._batches, len(self)), start=epoch * len(self)):
                if at >= number and not self._order.is_skipped(at):
                    yield batch
            number = (epoch + 1) * len(self)


def get_sampler(batches: Any) -> Any:
    """Return the sampler of single samples inside batch samplers."""
    while hasattr(batches, "batch_sampler"):
        batches = batches.batch_sampler
    return getattr(batches, "sampler", None)


def find_obstacle(
    loader: Any, *, ranks: int, batches: Any = None, samplers: Sequence[type] = (), remedy: str = REMEDY
) -> str:
    """Return why a later attempt cannot repeat the order of a PyTorch loader's samples, or an empty string.

    `samplers` are further types whose order depends on seed and epoch only. `batches` is the batch sampler of all
    ranks, if the loader has that of one rank.
    """
    if type(loader) is not DataLoader:
        return f"it cannot set the position of a {type(loader).__name__}; use torch.utils.data.DataLoader"
    if isinstance(loader.dataset, IterableDataset):
        return "the order of an iterable dataset is not known; use a dataset with indices"
    batches = loader.batch_sampler if batches is None else batches
    sampler = get_sampler(batches)
    if type(batches) is not BatchSampler:
        return f"the order of a {type(batches).__name__} is not known; {remedy}"
    if type(sampler) not in (SequentialSampler, DistributedSampler, *samplers):
        return f"a later attempt cannot repeat the order of a {type(sampler).__name__}; {remedy}"
    shares = sampler.num_replicas if isinstance(sampler, DistributedSampler) else 1
    if shares != ranks:
        return f"{type(sampler).__name__} divides the data among {shares} of {ranks} ranks; {remedy}"
    return ""


def make_order(loader: DataLoader[Any], *, ranks: int, skipped: Ranges, epoch_batches: int) -> DataOrder:
    """Return the order of a loader in which find_obstacle() finds none, limited to some batches of each epoch."""
    batches: Any = loader.batch_sampler
    whole = len(batches)
    count = min(whole, epoch_batches)
    samples = count * batches.batch_size if count < whole or batches.drop_last else len(batches.sampler)
    return DataOrder(count, samples * ranks, batches.batch_size * ranks, skipped)


def explain(obstacle: str, skipped: Ranges) -> str:
    """Return the line for the log that this script cannot skip data."""
    ignored = "RERAIL_SKIP_SAMPLES is ignored" if skipped else "a rollback cannot skip data"
    return f"{ignored}: {obstacle}"


def install(loader: Any, order: DataOrder) -> OrderedBatches:
    """Have a DataLoader read its batches in this order; call it before the loader is iterated."""
    ordered = OrderedBatches(loader.batch_sampler, order)
    # PyTorch refuses the assignment, because it would leave batch_size and sampler as they were: here they stay true.
    object.__setattr__(loader, "batch_sampler", ordered)
    return ordered
