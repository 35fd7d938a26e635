"""Curves for a run without event files of its own: from its log lines or CloudWatch, by TensorBoard's writer."""

import shutil
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path

from cli.backtest import jobs
from cli.backtest.series import BadInput, LogSeries
from cli.tensorboard.events import find_folder, list_launched
from rerail.model.run import Run
from rerail.model.sample import Sample

METRICS = ("loss", "grad_norm", "tokens_per_s", "nonfinite")
MOST_STEPS = 1 << 63
Read = Callable[[str], Sequence[LogSeries]]


class Curves:
    """The curves of one run, written again where there is something new: one folder an attempt."""

    def __init__(self, run: Run, folder: Path, read: Read) -> None:
        self._folder, self._read = folder, read
        self._written: dict[int, int] = {}
        for attempt in list_launched(run):
            shutil.rmtree(folder / find_folder(attempt.number), ignore_errors=True)

    def write(self, run: Run) -> dict[int, int]:
        """Write the points that are new; return the number of points of each attempt."""
        for attempt in list_launched(run):
            samples = self._samples(attempt.job_name)
            before = self._written.get(attempt.number, 0)
            if samples[before:]:
                _write(self._folder / find_folder(attempt.number), samples[before:], first=before)
            self._written[attempt.number] = len(samples)
        return dict(self._written)

    def _samples(self, job: str) -> tuple[Sample, ...]:
        """The log's rows where there are any: they are exact, CloudWatch has minutes."""
        try:
            found = self._read(job)
        except BadInput:
            return ()
        return found[-1].samples if found else ()


def make_curves(*, local: bool) -> Read:
    """Return the reader of jobs of the account, or of the local AWS."""
    return lambda job: jobs.read(job, local=local)


def _write(folder: Path, samples: Sequence[Sample], *, first: int) -> None:
    from tensorboard.summary import Writer

    writer = Writer(str(folder))
    for number, sample in enumerate(samples, start=first):
        step = number if sample.step is None else int(sample.step)
        if not -MOST_STEPS <= step < MOST_STEPS:
            continue  # the file's format has 64 bits for it
        for metric in METRICS:
            value = getattr(sample, metric)
            if value is not None and (isfinite(value) or metric == "loss"):
                writer.add_scalar(metric, float(value), step, wall_time=sample.at.timestamp() if sample.at else None)
    writer.close()
