"""The training scripts of the scenarios: how each is started, and what its log and its checkpoints say of the loss."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from local.sagemaker.images import REPOSITORY_ROOT
from rerail.model.metrics import make_definitions

Request = dict[str, Any]


class LossReader(Protocol):
    """The form in which a script prints its losses."""

    def parse_losses(self, message: str) -> Iterator[tuple[int, float]]:
        """Yield the steps and losses in a line of its log."""


class Script(LossReader, Protocol):
    """A training script that a job can be made of."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the packages that it imports beyond those of every demo."""

    def make_request(self, *, steps: int, save_every: int, keep: int, step_seconds: float) -> Request:
        """Return the members of the job's request that depend on the script, such as AlgorithmSpecification."""

    def read_saved_losses(self, s3: Any, bucket: str, prefix: str) -> Mapping[int, float]:
        """Return the exact losses by step from its checkpoints, if its log rounds them; otherwise nothing."""


@dataclass(frozen=True, slots=True)
class OurScript:
    """container/train.py."""

    line: re.Pattern[str] = re.compile(r"rerail step=(\d+) loss=(\S+)")
    packages: tuple[str, ...] = ()

    def make_request(self, *, steps: int, save_every: int, keep: int, step_seconds: float) -> Request:
        return {
            "AlgorithmSpecification": {"MetricDefinitions": make_definitions()},
            "HyperParameters": {
                "steps": str(steps),
                "checkpoint-every": str(save_every),
                "step-seconds": str(step_seconds),
                "keep": str(keep),
                # The faults are the same in any size, and the demo's processes share few cores.
                "model-size": "tiny",
            },
        }

    def parse_losses(self, message: str) -> Iterator[tuple[int, float]]:
        for step, loss in self.line.findall(message):
            yield int(step), float(loss)

    def read_saved_losses(self, s3: Any, bucket: str, prefix: str) -> Mapping[int, float]:
        return {}


@dataclass(frozen=True, slots=True)
class HuggingFaceScript:
    """local/examples/huggingface/train.py, on a machine that breaks; MetricDefinitions read the Trainer's own lines.

    The progress bar has the step, the line after it the loss: `60/200 [00:05<00:12, 11.2it/s]` and `{'loss': '2.31',`.
    """

    packages: tuple[str, ...] = ("transformers", "accelerate")
    bar: str = r"(?:^|[^\n]*\r) *[0-9]+%\|[^|]*\| ([0-9]+)/[0-9]+ \["
    loss: str = r"'loss': '?([0-9]+\.?[0-9]*(?:e[-+]?[0-9]+)?)'?[,}]"
    environment: Mapping[str, str] = field(default_factory=lambda: {"OMP_NUM_THREADS": "1"})

    def make_request(self, *, steps: int, save_every: int, keep: int, step_seconds: float) -> Request:
        folder = REPOSITORY_ROOT / "local" / "examples" / "huggingface"
        options = {"--max_steps": steps, "--save_steps": save_every}
        return {
            "AlgorithmSpecification": {
                "ContainerEntrypoint": ["python", str(folder / "bad_machine.py"), str(folder / "train.py")],
                "ContainerArguments": [str(part) for option in options.items() for part in option],
                "MetricDefinitions": [{"Name": "step", "Regex": self.bar}, {"Name": "loss", "Regex": self.loss}],
            },
            "Environment": {**self.environment, "STEP_SECONDS": str(step_seconds)},
        }

    def parse_losses(self, message: str) -> Iterator[tuple[int, float]]:
        step, loss = re.match(self.bar, message), re.search(self.loss, message)
        if step and loss:
            yield int(step[1]), float(loss[1])

    def read_saved_losses(self, s3: Any, bucket: str, prefix: str) -> Mapping[int, float]:
        """The Trainer's state has the history of all the jobs that led to it."""
        listed = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        keys = [item["Key"] for page in listed for item in page.get("Contents", [])]
        states = {int(m[1]): key for key in keys if (m := re.search(r"checkpoint-(\d+)/trainer_state\.json$", key))}
        if not states:
            return {}
        state = json.loads(s3.get_object(Bucket=bucket, Key=states[max(states)])["Body"].read())
        return {row["step"]: row["loss"] for row in state["log_history"] if "loss" in row}


OURS, HUGGING_FACE = OurScript(), HuggingFaceScript()
