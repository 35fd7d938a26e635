"""What SageMaker and Rerail told this container: its folders, its run and attempt, and where it may resume."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One attempt of a run, as seen from inside its container.

    `resume_at_most` is the newest step this attempt may resume from: None for any, 0 for a start from scratch.
    """

    base: Path
    run: str
    attempt: int
    resume_at_most: int | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Job":
        """A first job has no RERAIL_ variables; a successor without RERAIL_RESUME_STEP starts from scratch."""
        run = environment.get("RERAIL_RUN") or environment.get("TRAINING_JOB_NAME") or "local"
        attempt = _whole_number(environment, "RERAIL_ATTEMPT")
        step = _whole_number(environment, "RERAIL_RESUME_STEP")
        at_most = step if step is not None or attempt is None else 0
        return cls(base=base_folder(environment), run=run, attempt=attempt or 1, resume_at_most=at_most)

    @property
    def checkpoints(self) -> Path:
        return self.base / "checkpoints"

    @property
    def model(self) -> Path:
        return self.base / "model"

    @property
    def failure_file(self) -> Path:
        return failure_file(self.base)

    def channel(self, name: str) -> Path:
        return self.base / "input" / "data" / name


@dataclass(frozen=True)
class Cluster:
    """The machines of this job, from resourceconfig.json; the first host is the master."""

    hosts: tuple[str, ...]
    current_host: str
    instance_type: str
    network_interface: str

    @classmethod
    def read(cls, base: Path) -> "Cluster":
        """A missing file means one machine that is not on SageMaker."""
        path = base / "input" / "config" / "resourceconfig.json"
        table = read_json(path) if path.exists() else {}
        current = table.get("current_host", "localhost")
        return cls(
            hosts=tuple(sorted(table.get("hosts", [current]), key=_natural_order)),
            current_host=current,
            instance_type=table.get("current_instance_type", ""),
            network_interface=table.get("network_interface_name", ""),
        )

    @property
    def node_rank(self) -> int:
        return self.hosts.index(self.current_host)


def base_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """SageMaker's /opt/ml, or where SAGEMAKER_BASE_DIR says (the variable that AWS's own toolkit honours)."""
    return Path(environment.get("SAGEMAKER_BASE_DIR") or "/opt/ml")


def failure_file(base: Path) -> Path:
    """SageMaker takes the first 1024 characters of this file as the job's FailureReason."""
    return base / "output" / "failure"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of SageMaker's; raises ValueError naming the file."""
    try:
        table = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); SageMaker writes this file, do not edit it") from error
    if not isinstance(table, dict):
        raise ValueError(f"{path}: must be a JSON object; SageMaker writes this file, do not edit it")
    return table


def _whole_number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{name}={text!r}: must be a whole number; unset it to start a fresh run")
    return int(text)


def _natural_order(host: str) -> tuple[tuple[int, str | int], ...]:
    # As plain text algo-10 would come before algo-2.
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in re.findall(r"\d+|\D+", host))
