"""The published loss rules of `bench.rules` once more, as fast as numpy allows: over whole histories, and for one new
value of each of many series at a time. For a comparison of speed only: the functions load no numpy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bench.rules import axolotl, hyperpod, llm_foundry, megatron, metaseq, olmo, zclip

Floats = np.ndarray[Any, np.dtype[np.float64]]
Calls = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Fast:
    """One rule: `whole` judges histories, a row each, all of finite values and of one length; `fresh` makes what judges
    one new value of each of so many series."""

    name: str
    whole: Callable[[Floats], Calls]
    fresh: Callable[[int], Callable[[Floats], Calls]]


def in_a_row(held: Calls, times: int) -> Calls:
    """Where a condition has held so many times in a row."""
    answer = np.zeros_like(held)
    if held.shape[1] >= times:
        answer[:, times - 1 :] = sliding_window_view(held, times, axis=1).all(axis=2)
    return answer


def rolling(values: Floats, size: int) -> tuple[Floats, Floats]:
    """Mean and squared deviations of each run of `size` values; centred first, for what is summed up loses digits."""
    centre = values.mean(axis=1, keepdims=True)
    padded = np.pad(values - centre, ((0, 0), (1, 0)))
    sums, squares = np.cumsum(padded, axis=1), np.cumsum(padded * padded, axis=1)
    sums, squares = sums[:, size:] - sums[:, :-size], squares[:, size:] - squares[:, :-size]
    return sums / size + centre, np.maximum(0.0, squares - sums * sums / size)


class Counted:
    """How often in a row a condition has held, by series."""

    def __init__(self, series: int, times: int) -> None:
        self._count = np.zeros(series, dtype=np.int32)
        self._times = times

    def __call__(self, held: Calls) -> Calls:
        self._count = (self._count + 1) * held
        answer: Calls = self._count >= self._times
        return answer


class Ring:
    """Sums over the last `size` values of each series."""

    def __init__(self, series: int, size: int) -> None:
        self._values = np.zeros((size, series))
        self.sums, self.squares = np.zeros(series), np.zeros(series)
        self.seen, self._size = 0, size

    @property
    def count(self) -> int:
        return min(self.seen, self._size)

    def add(self, values: Floats) -> None:
        place = self.seen % self._size
        gone = self._values[place]
        self.sums += values - gone
        self.squares += values * values - gone * gone
        self._values[place] = values
        self.seen += 1
        if self.seen % self._size == 0:  # running sums drift
            self.sums, self.squares = self._values.sum(axis=0), (self._values**2).sum(axis=0)


def olmo_whole(values: Floats) -> Calls:
    answer = np.zeros(values.shape, dtype=np.bool_)
    size, least = olmo.WINDOW, olmo.AT_LEAST
    for row in range(least, min(size, values.shape[1])):
        before = values[:, :row]
        answer[:, row] = _outside(values[:, row], before.mean(axis=1), before.std(axis=1, ddof=1))
    if values.shape[1] > size:
        mean, squares = rolling(values[:, :-1], size)
        answer[:, size:] = _outside(values[:, size:], mean, np.sqrt(squares / (size - 1)))
    return answer


def _outside(values: Floats, mean: Floats, std: Floats) -> Calls:
    answer: Calls = (std >= olmo.TINY) & (values > mean + olmo.SIGMAS * std)
    return answer


def olmo_fresh(series: int) -> Callable[[Floats], Calls]:
    ring = Ring(series, olmo.WINDOW)

    def judge(values: Floats) -> Calls:
        answer = np.zeros(series, dtype=np.bool_)
        if (count := ring.count) >= olmo.AT_LEAST:
            variance = np.maximum(0.0, ring.squares - ring.sums * ring.sums / count) / (count - 1)
            answer = _outside(values, ring.sums / count, np.sqrt(variance))
        ring.add(values)
        return answer

    return judge


def llm_foundry_whole(values: Floats) -> Calls:
    held = np.zeros(values.shape, dtype=np.bool_)
    size = llm_foundry.WINDOW
    if values.shape[1] > size:
        mean, _ = rolling(values[:, :-1], size)
        held[:, size:] = values[:, size:] >= llm_foundry.TIMES * mean
    return in_a_row(held, llm_foundry.PATIENCE + 1)


def llm_foundry_fresh(series: int) -> Callable[[Floats], Calls]:
    ring, counted = Ring(series, llm_foundry.WINDOW), Counted(series, llm_foundry.PATIENCE + 1)

    def judge(values: Floats) -> Calls:
        answer = np.zeros(series, dtype=np.bool_)
        if ring.count == llm_foundry.WINDOW:
            answer = counted(values >= llm_foundry.TIMES * ring.sums / llm_foundry.WINDOW)
        ring.add(values)
        return answer

    return judge


def hyperpod_whole(values: Floats) -> Calls:
    first = values[:, : hyperpod.FIRST]
    held = values > _whole_number(first)[:, None]
    held[:, : hyperpod.FIRST] = False
    return in_a_row(held, hyperpod.IN_A_ROW)


def _whole_number(first: Floats) -> Floats:
    answer: Floats = np.maximum(1.0, np.trunc(hyperpod.TIMES * np.median(first, axis=1)))
    return answer


def hyperpod_fresh(series: int) -> Callable[[Floats], Calls]:
    first: list[Floats] = []
    counted = Counted(series, hyperpod.IN_A_ROW)
    threshold: list[Floats] = []

    def judge(values: Floats) -> Calls:
        if threshold:
            return counted(values > threshold[0])
        first.append(values)
        if len(first) == hyperpod.FIRST:
            threshold.append(_whole_number(np.stack(first, axis=1)))
        return np.zeros(series, dtype=np.bool_)

    return judge


def megatron_whole(values: Floats) -> Calls:
    sizes = np.abs(values)
    held: Calls = sizes >= megatron.TIMES * sizes[:, : megatron.FIRST].max(axis=1, keepdims=True)
    held[:, : megatron.FIRST] = False
    return held


def megatron_fresh(series: int) -> Callable[[Floats], Calls]:
    largest, seen = np.zeros(series), [0]

    def judge(values: Floats) -> Calls:
        sizes = np.abs(values)
        seen[0] += 1
        if seen[0] <= megatron.FIRST:
            np.maximum(largest, sizes, out=largest)
            return np.zeros(series, dtype=np.bool_)
        answer: Calls = sizes >= megatron.TIMES * largest
        return answer

    return judge


def axolotl_whole(values: Floats) -> Calls:
    return in_a_row(values > axolotl.TIMES_FIRST * values[:, :1], axolotl.PATIENCE)


def axolotl_fresh(series: int) -> Callable[[Floats], Calls]:
    counted = Counted(series, axolotl.PATIENCE)
    threshold: list[Floats] = []

    def judge(values: Floats) -> Calls:
        if not threshold:
            threshold.append(axolotl.TIMES_FIRST * values)
        return counted(values > threshold[0])

    return judge


def zclip_fresh(series: int) -> Callable[[Floats], Calls]:
    first: list[Floats] = []
    state: list[Floats] = []

    def judge(values: Floats) -> Calls:
        if len(first) < zclip.WARM_UP:
            first.append(values)
            together = np.stack(first, axis=1)
            state[:] = [together.mean(axis=1), together.var(axis=1)]
            return np.zeros(series, dtype=np.bool_)
        centre, variance = state
        std = np.sqrt(variance)
        z = (values - centre) / (std + zclip.TINY)
        answer: Calls = z > zclip.Z
        clipped = np.where(answer, centre + zclip.Z * std / (np.where(answer, z, 1.0) / zclip.Z), values)
        centre = zclip.ALPHA * centre + (1 - zclip.ALPHA) * clipped
        state[:] = [centre, zclip.ALPHA * variance + (1 - zclip.ALPHA) * (clipped - centre) ** 2]
        return answer

    return judge


def metaseq_fresh(series: int) -> Callable[[Floats], Calls]:
    alpha = 2 / (metaseq.SPAN + 1)
    running: list[Floats] = []

    def judge(values: Floats) -> Calls:
        if not running:
            running.append(values)
            return np.zeros(series, dtype=np.bool_)
        answer: Calls = values > metaseq.RATIO * running[0]
        running[0] = np.where(answer, running[0], alpha * values + (1 - alpha) * running[0])
        return answer

    return judge


def step_by_step(fresh: Callable[[int], Callable[[Floats], Calls]]) -> Callable[[Floats], Calls]:
    """For a rule whose memory hangs on what it said itself: no more than a step of all histories at a time."""

    def whole(values: Floats) -> Calls:
        judge = fresh(values.shape[0])
        return np.stack([judge(column) for column in np.ascontiguousarray(values.T)], axis=1)

    return whole


FAST = (
    Fast("OLMo-core", olmo_whole, olmo_fresh),
    Fast("llm-foundry", llm_foundry_whole, llm_foundry_fresh),
    Fast("HyperPod", hyperpod_whole, hyperpod_fresh),
    Fast("Megatron", megatron_whole, megatron_fresh),
    Fast("ZClip on loss", step_by_step(zclip_fresh), zclip_fresh),
    Fast("axolotl", axolotl_whole, axolotl_fresh),
    Fast("metaseq", step_by_step(metaseq_fresh), metaseq_fresh),
)
