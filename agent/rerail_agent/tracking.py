"""Write a run's attempts and incidents to the script's own W&B or MLflow run; RERAIL_TRACKING=on turns it on.

Create the guard or the callback before `wandb.init()` and `mlflow.start_run()`: it sets WANDB_RUN_ID and
MLFLOW_RUN_ID, unless they are set, so that every attempt continues the same tracking run. A run that is active in this
process gets the id of Rerail's run, the attempt, the resumed step and the cause of the restart, and an event for each
resume, rollback and emergency checkpoint. A thread of its own writes; its faults are reported once and never raised.
"""

import hashlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from rerail.model.errors import BadMailboxObject
from rerail.model.signatures import is_signed, sign
from rerail_agent.checkpoints.manifest import read_start
from rerail_agent.fault_isolation import FaultIsolation, print_line
from rerail_agent.identity import Identity
from rerail_agent.manifests import find_root
from rerail_agent.settings import read_rate, read_skipped_samples

VARIABLE = "RERAIL_TRACKING"
# In the checkpoint folder, which the next attempt gets: MLflow's server chooses the id of a run.
FILE = ".rerail-tracking.json"
REMOTE = ("http://", "https://", "databricks", "arn:")


class TrackingRun(Protocol):
    """The tracking run of a library."""

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Set facts about the current attempt."""

    def log_event(self, kind: str, text: str, *, attempt: int, step: int) -> None:
        """Add an event at a step."""


class WandbRun:
    """The active run of Weights & Biases."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def describe(self, facts: Mapping[str, Any]) -> None:
        self._run.config.update({f"rerail/{name}": value for name, value in facts.items()}, allow_val_change=True)

    def log_event(self, kind: str, text: str, *, attempt: int, step: int) -> None:
        # Part of the script's next row: a row of its own would shift the steps that W&B counts.
        self._run.log({f"rerail/{kind}": text, "rerail/attempt": attempt, "rerail/step": step}, commit=False)


class MlflowRun:
    """The active run of MLflow, by its id: what is active differs from thread to thread."""

    def __init__(self, make_client: Callable[[], Any], run_id: str) -> None:
        self._make_client, self._run_id = make_client, run_id

    @cached_property
    def _client(self) -> Any:
        # Made by the thread that writes, because a client may open its store.
        return self._make_client()

    def describe(self, facts: Mapping[str, Any]) -> None:
        for name, value in facts.items():
            self._client.set_tag(self._run_id, f"rerail.{name}", str(value))

    def log_event(self, kind: str, text: str, *, attempt: int, step: int) -> None:
        self._client.set_tag(self._run_id, f"rerail.{kind}-{attempt:03d}-{step:09d}", text)
        self._client.log_metric(self._run_id, "rerail.attempt", attempt, step=step)


class Tracking:
    """The tracking runs of this process, found when the script has started them."""

    def __init__(self, identity: Identity, environment: Mapping[str, str]) -> None:
        self._identity, self._environment = identity, environment
        self._runs: dict[str, TrackingRun] = {}
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._isolation = FaultIsolation()
        self._first_step: int | None = None
        self._thread = threading.Thread(target=self._write, name="rerail-tracking", daemon=True)
        self._thread.start()

    @classmethod
    def from_environment(cls, identity: Identity, environment: Mapping[str, str]) -> "Tracking | None":
        """Return the tracking of rank 0 and have the libraries continue the runs of earlier attempts; None if off."""
        if environment.get(VARIABLE, "").lower() not in ("on", "1", "true", "yes") or identity.rank not in (None, 0):
            return None
        if not identity.run:
            return cls(identity, environment)
        os.environ.setdefault("WANDB_RUN_ID", make_wandb_id(identity))
        os.environ.setdefault("WANDB_RESUME", "allow")
        if mlflow_id := _read_mlflow_id(identity, environment):
            os.environ.setdefault("MLFLOW_RUN_ID", mlflow_id)
        return cls(identity, environment)

    def on_step(self, step: int) -> None:
        """Look for a tracking run that the script has started, and describe the attempt there."""
        if self._first_step is None:
            self._first_step = step
        wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
        if "wandb" not in self._runs and (run := getattr(wandb, "run", None)) is not None:
            self._start("wandb", WandbRun(run), self._first_step)
        if "mlflow" not in self._runs and mlflow is not None and (active := mlflow.active_run()) is not None:
            uri, run_id = mlflow.get_tracking_uri(), str(active.info.run_id)
            make_client = partial(mlflow.MlflowClient, tracking_uri=uri)
            self._start("mlflow", MlflowRun(make_client, run_id), self._first_step)
            self._isolation.once("tracking", lambda: self._keep_mlflow_id(run_id, uri), None)

    def on_checkpoint(self, step: int, reason: str) -> None:
        """Add an event for a checkpoint that was not a periodic one."""
        text, attempt = f"{reason} checkpoint at step {step}", self._identity.attempt
        for run in self._runs.values():
            self._work.put(partial(run.log_event, "checkpoint", text, attempt=attempt, step=step))

    def close(self, within_s: float) -> None:
        """Wait for what is queued, for no longer than this."""
        self._work.put(None)
        self._thread.join(within_s)

    def _start(self, name: str, run: TrackingRun, first_step: int) -> None:
        self._runs[name] = run
        facts, text = self._describe_attempt(first_step - 1)
        self._work.put(partial(run.describe, facts))
        self._work.put(partial(run.log_event, "start", text, attempt=self._identity.attempt, step=first_step))

    def _describe_attempt(self, resumed_step: int) -> tuple[dict[str, Any], str]:
        """Return the facts about this attempt, and its beginning in words."""
        identity, environment = self._identity, self._environment
        # A restart in place has the environment of its attempt, whose cause is an older one.
        cause = "" if identity.restart else environment.get("RERAIL_PREVIOUS_CAUSE", "")
        facts = {"run": identity.run, "attempt": identity.attempt, "resumed_step": resumed_step}
        if cause:
            facts["previous_cause"] = cause
        restart = f", restart {identity.restart}" if identity.restart else ""
        start = f"resumes from step {resumed_step}" if resumed_step else "starts"
        text = f"attempt {identity.attempt}{restart} {start}" + (f" after {cause}" if cause else "")
        if read_skipped_samples(environment):
            text += f"; samples {environment['RERAIL_SKIP_SAMPLES']} are to be skipped"
        if (rate := read_rate(environment)) != 1.0:
            text += f"; learning rate x {rate:g}"
        return facts, text

    def _write(self) -> None:
        while (work := self._work.get()) is not None:
            self._isolation.once("tracking", work, None)

    def _keep_mlflow_id(self, run_id: str, uri: str) -> None:
        root, key = find_root(environment=self._environment), self._identity.signing_key
        if self._identity.run and key and root.is_dir():
            text = json.dumps({"run": self._identity.run, "mlflow_run_id": run_id, "uri": uri}).encode()
            (root / FILE).write_bytes(sign(text, name=f"{FILE}/{self._identity.run}", key=key))


def make_wandb_id(identity: Identity) -> str:
    """Return the W&B id of a run: runs of two accounts or regions may have the same name."""
    place = hashlib.sha256(f"{identity.account}:{identity.region}".encode()).hexdigest()[:8]
    return f"{identity.run}-{place}"


def _read_mlflow_id(identity: Identity, environment: Mapping[str, str]) -> str:
    """Return the id of the MLflow run of earlier attempts; empty without one, or if its store is not here.

    Others may write to the checkpoint folder: the file is signed with the run's key, and ignored without one.
    """
    try:
        path = find_root(environment=environment) / FILE
        text = read_start(path)
        if not is_signed(text, name=f"{FILE}/{identity.run}", key=identity.signing_key):
            raise BadMailboxObject("it is not signed with the run's key")
        kept = json.loads(text)
        run, run_id, uri = kept["run"], str(kept["mlflow_run_id"]), str(kept["uri"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, BadMailboxObject) as error:
        print_line(f"the MLflow run of earlier attempts is not known ({error}); this attempt gets a run of its own")
        return ""
    # A store on the disk of a machine that is gone: mlflow.start_run() would fail.
    is_reachable = uri.startswith(REMOTE) or Path(_find_local_store(uri)).exists()
    return run_id if run == identity.run and is_reachable else ""


def _find_local_store(uri: str) -> str:
    """Return the path in `file:///path`, `sqlite:///path`, `sqlite:////path` or `path`."""
    scheme, _, path = uri.rpartition("://")
    return path.removeprefix("/") if scheme == "sqlite" else path
