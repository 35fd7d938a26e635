"""A rank of a job of the soak: container/train.py, which notes what it trains on, and injects faults of its own.

Below `SOAK_FOLDER` each rank writes `<job>.rank<n>.notes`, a JSON object a line and each line at once, so that a kill
leaves all but the last: its starts, its steps with the samples that were read and the loss to the last bit, what it has
saved, what broke. `<job>.json` holds what it is to break, `drill` as container/faults.py reads it and `own` as faults
joined by `;`, each `kind:step`; what is added to it while the rank trains is broken too, and nothing is taken back."""

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import data
import faults
import train
from job import TrainingJob
from rerail_agent.checkpoints.store import SAVING
from rerail_agent.failure import DataError

FOLDER, RANK = Path(os.environ["SOAK_FOLDER"]), os.environ.get("RANK", "0")
SAVE_WITHIN_S = 2.0
stock = {name: getattr(train, name) for name in ("take_step", "resume", "restore", "save", "report_saves", "log")}
break_down, read_batch, plan_of = faults.inject, data.TextCorpus.batch, faults.FaultPlan.of


class Rank:
    """The notes of this rank, and the faults that it still has to cause."""

    def __init__(self) -> None:
        job = os.environ["TRAINING_JOB_NAME"]
        self.file = os.open(FOLDER / f"{job}.rank{RANK}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.read: list[int] = []
        self.source: tuple[int, int] | None = None
        self.injected: set[str] = set()
        self.orders, self.read_at = FOLDER / f"{job}.json", 0
        self.breaks: dict[str, int] = {}
        self.plan: faults.FaultPlan | None = None
        self.here: dict[str, int] = {}
        # One process may train this rank of the run at a time, whichever attempt it is of.
        self.lock = os.open(FOLDER / f"{TrainingJob.from_environment().run}.rank{RANK}.live", os.O_WRONLY | os.O_CREAT)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.note(violation=f"{job} trains while another process of its run is alive")

    def note(self, **what: Any) -> None:
        """Write one line with a single write, which a SIGKILL does not cut."""
        os.write(self.file, (json.dumps({**what, "at": time.time()}) + "\n").encode())

    def plan_of(self, drills: tuple[faults.FaultDrill, ...], **here: int) -> faults.FaultPlan:
        """Return the training's own plan, to which orders are added."""
        self.plan, self.here = plan_of(drills, **here), here
        self.obey()
        return self.plan

    def obey(self) -> None:
        """Take up what was ordered since the last look."""
        try:
            at = self.orders.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if at == self.read_at or self.plan is None:
            return
        self.read_at = at
        orders = json.loads(self.orders.read_text())
        self.breaks |= {
            kind: int(step) for kind, step in (part.split(":") for part in orders["own"].split(";") if part)
        }
        new = [
            drill
            for drill in plan_of(faults.parse(orders["drill"]), **self.here).drills
            if drill not in self.plan.drills
        ]
        object.__setattr__(self.plan, "drills", (*self.plan.drills, *new))

    def note_injection(self, kind: str, step: int) -> None:
        """Note a fault once, before it takes effect."""
        if kind not in self.injected:
            self.injected.add(kind)
            self.note(injected=kind, step=step)

    def batch(self, corpus: data.TextCorpus, ids: Sequence[int]) -> Any:
        """Return the input of the model."""
        self.read += ids
        return read_batch(corpus, ids)

    def take_step(self, run: train.TrainingRun, ids: Sequence[int], **how: Any) -> Any:
        step = run.step + 1
        if self.breaks.get("ecc") == step:
            self.note_injection("ecc", step)
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        if self.breaks.get("data") == step:
            self.note_injection("data", step)
            raise DataError("channel 'train': shard 7 ends in the middle of a sample; upload it again")
        writer = run.saver._writer.pid if run.saver._writer else None
        if self.breaks.get("writer") == step and writer:
            self.note_injection("writer", step)
            os.kill(writer, signal.SIGKILL)
        if self.breaks.get("deaf") == step and run.guard._mailbox_client is not None:
            self.note_injection("deaf", step)
            run.guard._mailbox_client.stop(0.0)
        self.read.clear()
        norm = stock["take_step"](run, ids, **how)
        self.note(step=step, ids=list(self.read), loss=float(run.loss).hex())
        self.obey()
        return norm

    def break_down(self, drill: faults.FaultDrill, **how: Any) -> None:
        self.note_injection(drill.kind.value, drill.step)
        break_down(drill, **how)

    def restore(self, run: train.TrainingRun, manifest: Any, state: dict[str, Any]) -> None:
        self.source = (manifest.attempt, manifest.restart)
        stock["restore"](run, manifest, state)

    def resume(self, run: train.TrainingRun) -> None:
        stock["resume"](run)
        job = run.job
        self.note(
            start=[job.attempt, job.restart],
            after=run.step,
            source=self.source,
            consumed=run.consumed_samples,
            skipped=[[samples.start, samples.stop - 1] for samples in job.skipped],
            rate=job.rate,
        )

    def save(self, run: train.TrainingRun, *, reason: str) -> None:
        """Save; with the fault `in-save`, kill the node when the save has begun and has no manifest yet."""
        if not 0 < self.breaks.get("in-save", 0) <= run.step:
            stock["save"](run, reason=reason)
            return
        self.note_injection("in-save", run.step)
        threading.Thread(target=self._kill_in_save, args=(Path(run.job.checkpoints),), daemon=True).start()
        stock["save"](run, reason=reason)
        time.sleep(SAVE_WITHIN_S)

    def _kill_in_save(self, folder: Path) -> None:
        end = time.monotonic() + SAVE_WITHIN_S
        while time.monotonic() < end and not any(name.startswith(SAVING) for name in os.listdir(folder)):
            time.sleep(0)
        self.note(killed_in_save=time.monotonic() < end)
        faults.kill_this_node()

    def report_saves(self, run: train.TrainingRun, ended: Any) -> None:
        known = list(ended)
        for drill in known:
            self.note(saved=drill.step, error=str(drill.error or ""))
        stock["report_saves"](run, known)

    def log(self, message: str) -> None:
        if message.startswith("finished after step"):
            self.note(finished=message.rpartition(" ")[2])
        stock["log"](message)


if __name__ == "__main__":
    rank = Rank()
    for name in stock:
        setattr(train, name, getattr(rank, name))
    faults.inject, faults.FaultPlan.of = rank.break_down, rank.plan_of  # type: ignore[method-assign]
    data.TextCorpus.batch = lambda corpus, ids: rank.batch(corpus, ids)  # type: ignore[method-assign,assignment]
    train.main()
