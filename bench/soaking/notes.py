"""Read the notes of the ranks of a run: which process trained which steps on which samples.

A start is one start of the training processes. The final lineage has the steps that led to the final weights: of each
start those up to the checkpoint from which a later one resumed. Other steps are lost."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was trained: the samples that this rank read, the loss as `float.hex` has it, and when it ended."""

    number: int
    ids: tuple[int, ...]
    loss: str
    at: float


@dataclass(slots=True)
class Start:
    """One start: after which step it began, and from the save of which attempt and restart (None: from scratch)."""

    attempt: int
    restart: int
    after: int
    source: tuple[int, int] | None
    at: float
    skipped: tuple[tuple[int, int], ...] = ()
    rate: float = 1.0
    steps: dict[int, Step] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """Return the last step that it has trained, or the one that it began after."""
        return max(self.steps, default=self.after)


@dataclass(slots=True)
class Notes:
    """All that the ranks of one run have noted so far; `read` takes up what is new."""

    folder: Path
    starts: list[Start] = field(default_factory=list)
    injected: list[tuple[str, int, float]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    saved: set[int] = field(default_factory=set)
    weights: str = ""
    last_step: int = 0
    killed_in_save: list[bool] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)
    _here: dict[str, Start] = field(default_factory=dict)
    _others: dict[tuple[int, int, int], list[tuple[int, ...]]] = field(default_factory=dict)

    def read(self, jobs: Sequence[str]) -> None:
        """Read the new lines of these jobs: all of rank 0, of the others the samples that they read."""
        for job in jobs:
            for file in sorted(self.folder.glob(f"{job}.rank*.notes")):
                for line in self._new(file):
                    self.take(json.loads(line), file=file.name, first=file.name.endswith(".rank0.notes"))

    def _new(self, file: Path) -> list[str]:
        with file.open("rb") as notes:
            notes.seek(self._places.get(file.name, 0))
            whole = notes.read().rpartition(b"\n")[0]
        self._places[file.name] = self._places.get(file.name, 0) + (len(whole) + 1 if whole else 0)
        return whole.decode().splitlines()

    def take(self, line: Mapping[str, Any], *, file: str = "", first: bool = True) -> None:
        """Add one line; `first` is whether it is of rank 0."""
        if "violation" in line:
            self.violations.append(line["violation"])
        elif "start" in line:
            self._begin(line, file, first)
        elif "ids" in line:
            self._step(line, file, first)
        elif "injected" in line:
            self.injected.append((line["injected"], line["step"], line["at"]))
        elif "finished" in line:
            self.weights = line["finished"]
        elif "killed_in_save" in line:
            self.killed_in_save.append(line["killed_in_save"])
        elif first and "saved" in line and not line["error"]:
            self.saved.add(line["saved"])

    def _begin(self, line: Mapping[str, Any], file: str, first: bool) -> None:
        attempt, restart = line["start"]
        source = tuple(line["source"]) if line["source"] else None
        skipped = tuple((first_id, last_id) for first_id, last_id in line["skipped"])
        start = Start(attempt, restart, line["after"], source, line["at"], skipped, line["rate"])
        self._here[file] = start
        if first:
            self.starts.append(start)

    def _step(self, line: Mapping[str, Any], file: str, first: bool) -> None:
        number, ids, start = line["step"], tuple(line["ids"]), self._here[file]
        if first:
            start.steps[number] = Step(number, ids, line["loss"], line["at"])
            self.last_step = number
        else:
            self._others.setdefault((start.attempt, start.restart, number), []).append(ids)

    def samples(self, start: Start, step: Step) -> list[int]:
        """Return what all ranks together read for a step of the final lineage.

        What another rank read twice counts once if it is the same: a step is trained again after a kill by SageMaker.
        """
        others = set(self._others.get((start.attempt, start.restart, step.number), []))
        return sorted([*step.ids, *(id for ids in others for id in ids)])


def lineage(starts: Sequence[Start]) -> dict[int, tuple[Start, Step]]:
    """Return the steps that led to the weights of the last start."""
    return _until(starts, len(starts) - 1, starts[-1].last) if starts else {}


def _until(starts: Sequence[Start], index: int, step: int) -> dict[int, tuple[Start, Step]]:
    """Return the steps up to this one that led to the state of that start."""
    start = starts[index]
    before: dict[int, tuple[Start, Step]] = {}
    if start.source is not None:
        before = _until(starts, _parent(starts, index), start.after)
    own = {number: (start, entry) for number, entry in start.steps.items() if number <= step}
    return {number: entry for number, entry in before.items() if number <= start.after} | own


def _parent(starts: Sequence[Start], index: int) -> int:
    """Return the start that saved what this one resumed from; raise ValueError if there is none."""
    start = starts[index]
    for earlier in range(index - 1, -1, -1):
        each = starts[earlier]
        if (each.attempt, each.restart) == start.source and each.after < start.after <= each.last:
            return earlier
    raise ValueError(f"attempt {start.attempt} began after step {start.after}, which no attempt has trained and saved")


def lost_steps(starts: Sequence[Start], final: Mapping[int, tuple[Start, Step]]) -> int:
    """Return the steps that were trained in vain."""
    return sum(len(start.steps) for start in starts) - len(final)


def doubled(ids: Sequence[int]) -> list[int]:
    """Return the ids that occur more than once."""
    seen: set[int] = set()
    return sorted({id for id in ids if id in seen or seen.add(id)})  # type: ignore[func-returns-value]


def uncovered(
    read: Mapping[int, Sequence[int]], *, steps: int, batch: int, skipped: Sequence[tuple[int, int]] = ()
) -> Iterator[str]:
    """Return what is wrong with the samples of the final lineage.

    Every sample of the data order must be read exactly once, in order, without those that were skipped.
    """
    if missing := [step for step in range(1, steps + 1) if step not in read]:
        yield f"{len(missing)} steps are in no lineage, the first is step {missing[0]}"
    if beyond := [step for step in read if not 1 <= step <= steps]:
        yield f"steps that the run does not have: {beyond[:5]}"
    for step in sorted(read):
        if len(read[step]) != batch:
            yield f"step {step} read {len(read[step])} samples, not {batch}"
    ids = [id for step in sorted(read) for id in sorted(read[step])]
    if twice := doubled(ids):
        yield f"{len(twice)} samples were trained twice, the first is {twice[0]}"
    elif ids != sorted(ids):
        yield "samples were trained out of order"
    passed = set(range(max(ids, default=-1) + 1)) - set(ids)
    meant = {id for first, last in skipped for id in range(first, min(last, max(ids, default=-1)) + 1)}
    if lacking := sorted(passed - meant):
        yield f"{len(lacking)} samples were never trained, the first is {lacking[0]}"
    if used := sorted(meant - passed):
        yield f"{len(used)} samples were trained that the timeline calls skipped, the first is {used[0]}"


def different(mine: Mapping[int, str], references: Mapping[int, str]) -> tuple[int, float]:
    """Return the number of losses that differ in any bit from the reference's, and the largest difference."""
    shared = mine.keys() & references.keys()
    other = [step for step in shared if mine[step] != references[step]]
    apart = [abs(float.fromhex(mine[step]) - float.fromhex(references[step])) for step in other]
    return len(other), max(apart, default=0.0)
