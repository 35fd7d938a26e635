"""Read the settings of SageMaker and Rerail for this container: folders, run, attempt, resume step, skips."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Saved(Protocol):
    """The fields of a checkpoint's manifest that say where it comes from."""

    @property
    def run(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def restart(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def health(self) -> str: ...


@dataclass(frozen=True)
class TrainingJob:
    """One attempt of a run, as its container reads it from the environment."""

    base: Path
    run: str
    attempt: int
    # The newest step this attempt may resume from: None for any, 0 for a start from scratch.
    resume_at_most: int | None
    # The samples that this attempt omits, in ascending order.
    skipped: tuple[range, ...] = ()
    # A folder or an `s3://` prefix, in place of the folder that SageMaker copies to S3.
    checkpoint_location: str = ""
    # The factor on the scheduled learning rate.
    rate: float = 1.0
    # The restart in place within the attempt, 0 for the job's own start.
    restart: int = 0
    # The last restart in place that went back to `resume_at_most`.
    rolled_back: int = 0
    # Whether other attempts' checkpoints after `resume_at_most` are as good as those before.
    keeps_newer: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "TrainingJob":
        """Read the job from the environment.

        A first job has no RERAIL_ variables. A successor without RERAIL_RESUME_STEP saves where Rerail cannot read, and
        resumes from what it finds there.
        """
        from rerail_agent.settings import read_rate  # plan.py works without the agent

        run = environment.get("RERAIL_RUN") or environment.get("TRAINING_JOB_NAME") or "local"
        attempt = _whole_number(environment, "RERAIL_ATTEMPT")
        return cls(
            base=find_base_folder(environment),
            run=run,
            attempt=attempt or 1,
            resume_at_most=_whole_number(environment, "RERAIL_RESUME_STEP"),
            skipped=read_ranges(environment.get("RERAIL_SKIP_SAMPLES", "")),
            checkpoint_location=environment.get("RERAIL_CHECKPOINTS", ""),
            rate=read_rate(environment),
            restart=_whole_number(environment, "RERAIL_RESTART") or 0,
            rolled_back=_whole_number(environment, "RERAIL_ROLLED_BACK") or 0,
            keeps_newer=environment.get("RERAIL_KEEP_NEWER") == "1",
        )

    @property
    def checkpoints(self) -> str:
        return self.checkpoint_location or str(self.base / "checkpoints")

    def may_resume_from(self, saved: "Saved") -> bool:
        """Return whether a checkpoint is not too new for this attempt."""
        # SageMaker restarts a job in place after a hardware repair, with the environment of its first start: what this
        # same attempt has saved since then is newer than the step named there.
        is_own = (saved.run, saved.attempt) == (self.run, self.attempt) and saved.restart >= self.rolled_back
        return self.resume_at_most is None or saved.step <= self.resume_at_most or is_own

    def trusts(self, saved: "Saved") -> bool:
        """Return whether this attempt may resume from it, and nothing was wrong with the loss when it was saved.

        The checkpoint of `resume_at_most` counts as sound: the supervisor may know by now that the loss has recovered.
        """
        sound = saved.health == "clean" or saved.step == self.resume_at_most
        return sound and self.may_resume_from(saved)

    def must_quarantine(self, saved: "Saved") -> bool:
        """Return whether the checkpoint must not be resumed from after a rollback.

        That is so for what earlier attempts saved after that step, and for what this attempt saved before the restart
        in place that went back. The rest of its own stays, for the next restart.
        """
        return saved.run != self.run or (saved.attempt, saved.restart) < (self.attempt, self.rolled_back)

    @property
    def is_rollback(self) -> bool:
        """Return whether the attempt was told to resume from before the last checkpoint of earlier processes.

        A restart drill, which only shows that a resume works, does not count.
        """
        is_later = self.attempt > 1 and not self.keeps_newer
        return self.resume_at_most is not None and (is_later or self.rolled_back > 0)

    @property
    def model(self) -> Path:
        return self.base / "model"

    @property
    def failure_file(self) -> Path:
        return find_failure_file(self.base)

    def channel(self, name: str) -> Path:
        return self.base / "input" / "data" / name


@dataclass(frozen=True)
class TrainingCluster:
    """The machines of this job, from resourceconfig.json; the first host is the master."""

    hosts: tuple[str, ...]
    current_host: str
    instance_type: str
    network_interface: str

    @classmethod
    def read(cls, base: Path) -> "TrainingCluster":
        """Read the file; a missing file means one machine that is not on SageMaker."""
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


def read_ranges(text: str) -> tuple[range, ...]:
    """Parse `10240-10495,20000-20015`, each with its last sample, into ascending ranges that do not overlap."""
    from rerail_agent.settings import read_skipped_samples

    return tuple(range(first, last + 1) for first, last in read_skipped_samples({"RERAIL_SKIP_SAMPLES": text}))


def find_base_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return SageMaker's /opt/ml, or SAGEMAKER_BASE_DIR (the variable that AWS's own toolkit uses)."""
    return Path(environment.get("SAGEMAKER_BASE_DIR") or "/opt/ml")


def find_failure_file(base: Path) -> Path:
    """Return the file whose first 1024 characters become the job's FailureReason."""
    return base / "output" / "failure"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of SageMaker's; raise ValueError naming the file."""
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
