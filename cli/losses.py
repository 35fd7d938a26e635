"""The loss by step, as a log tells it: by Rerail's own metric line, else by what the job's MetricDefinitions find."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cli.logbook import JobLogLine
from cli.training_logs.expressions import compile_expression
from cli.training_logs.numbers import LONGEST, read_number

OURS = re.compile(r"\brerail step=(\d{1,18}) (?:.*?\s)?loss=(\S+)")


@dataclass
class Losses:
    """What one job has printed so far, in the order of its lines; `at` is when each step's line arrived."""

    step: re.Pattern[str] | None = None
    loss: re.Pattern[str] | None = None
    by_step: dict[int, float] = field(default_factory=dict)
    at: dict[int, datetime] = field(default_factory=dict)
    first_step: int | None = None
    last_step: int | None = None

    @classmethod
    def of(cls, definitions: Sequence[Mapping[str, str]], *, step: str = "step", loss: str = "loss") -> "Losses":
        """With the MetricDefinitions of its job, as CloudWatch names the two."""
        found = {definition["Name"]: _pattern(definition["Regex"]) for definition in definitions}
        return cls(found.get(step), found.get(loss))

    def read(self, line: JobLogLine) -> None:
        """Take in one line: a step, a loss, or both; a loss alone belongs to the step before it."""
        text = line.text[-LONGEST:]
        if ours := OURS.search(text):
            self._stepped(int(ours[1]), line)
            self._lost(ours[2])
            return
        if self.step and (step := read_number(self.step, text)) is not None and math.isfinite(step):
            self._stepped(int(step), line)
        if self.loss and (loss := read_number(self.loss, text)) is not None and self.last_step is not None:
            self.by_step.setdefault(self.last_step, loss)

    def _stepped(self, step: int, line: JobLogLine) -> None:
        if self.first_step is None:
            self.first_step = step
        self.last_step = step
        if line.at:
            self.at.setdefault(step, line.at)

    def _lost(self, text: str) -> None:
        try:
            loss = float(text)
        except ValueError:
            return
        if self.last_step is not None:
            self.by_step[self.last_step] = loss


def find_largest_difference(before: Losses, after: Losses, steps: Sequence[int]) -> tuple[int, float, float]:
    """Of these steps the one whose two losses differ most: the step, the difference, and that as a share of the loss;
    a value that is not a number differs by infinity."""
    found = []
    for step in steps:
        old, new = before.by_step[step], after.by_step[step]
        difference = abs(old - new) if math.isfinite(old) and math.isfinite(new) else math.inf
        found.append((difference / abs(old) if old and math.isfinite(difference) else difference, difference, step))
    share, difference, step = max(found)
    return step, difference, share


def _pattern(text: str) -> re.Pattern[str] | None:
    try:
        return compile_expression(text)
    except re.error:
        return None  # SageMaker's dialect is Java's; such a metric is read by CloudWatch alone
