"""A small training for `rerail acceptance`: fits a line by gradient descent, and fails on request.

It runs in a stock image in script mode, on one machine. Its environment says what it does:

ACCEPTANCE_STEPS         the last step
ACCEPTANCE_STEP_SECONDS  the seconds that a step takes
ACCEPTANCE_SAVE_EVERY    the steps between two checkpoints
ACCEPTANCE_FAULT         `error`, `nan` or `stall`, in the first attempt before any restart in place; or nothing
ACCEPTANCE_FAULT_STEP    the step of the fault
ACCEPTANCE_LAYOUT        `manifest`: the agent's checkpoints; `own`: folders of its own, without the agent

After a fault that does not end the process, the first attempt trains on until it is stopped.
"""

import json
import math
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

WEIGHTS, BATCH, RATE = 4, 16, 0.02


class JobSettings:
    """The settings in the environment."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.steps = int(environment["ACCEPTANCE_STEPS"])
        self.step_s = float(environment["ACCEPTANCE_STEP_SECONDS"])
        self.save_every = int(environment["ACCEPTANCE_SAVE_EVERY"])
        first = environment.get("RERAIL_ATTEMPT", "1") == "1" and environment.get("RERAIL_RESTART", "0") == "0"
        self.fault = environment.get("ACCEPTANCE_FAULT", "") if first else ""
        self.fault_step = int(environment.get("ACCEPTANCE_FAULT_STEP", "0"))
        self.has_agent = environment.get("ACCEPTANCE_LAYOUT", "manifest") == "manifest"
        self.folder = Path(environment.get("SAGEMAKER_BASE_DIR", "/opt/ml")) / "checkpoints"

    def is_last(self, step: int) -> bool:
        """Return whether the training ends with this step."""
        return step >= self.steps and self.fault in ("", "error")


def train_step(weights: list[float], step: int) -> float:
    """Take one step of gradient descent on the batch of this step; return the loss before it."""
    draw = random.Random(step)
    gradient, loss = [0.0] * WEIGHTS, 0.0
    for _ in range(BATCH):
        inputs = [draw.gauss(0, 1) for _ in range(WEIGHTS)]
        target = sum((index + 1) * value for index, value in enumerate(inputs)) + draw.gauss(0, 1)
        error = sum(weight * value for weight, value in zip(weights, inputs, strict=True)) - target
        loss += error * error / BATCH
        gradient = [slope + 2 * error * value / BATCH for slope, value in zip(gradient, inputs, strict=True)]
    weights[:] = [weight - RATE * slope for weight, slope in zip(weights, gradient, strict=True)]
    return loss


def cause_fault(fault: str, weights: list[float]) -> None:
    """Cause the fault: raise, damage the weights, or stop making progress."""
    if fault == "error":
        raise RuntimeError("rerail acceptance: the fault that was asked for")
    if fault == "nan":
        weights[0] = math.nan
    while fault == "stall":
        time.sleep(60)


def train_with_agent(settings: JobSettings) -> None:
    """Train with the agent's guard, which saves when it is asked to."""
    from rerail_agent import Guard
    from rerail_agent.manifests import commit, resume_from

    step, saved_step, weights = 0, 0, [0.0] * WEIGHTS
    if found := resume_from(settings.folder):
        step, weights = read_state(found / "state.json")

    def save(reason: str = "periodic") -> Path:
        nonlocal saved_step
        place, saved_step = settings.folder / f"step-{step:09d}", step
        began = time.monotonic()
        write_state(place / "state.json", step, weights)
        commit(place, step=step, reason=reason, health=guard.health, stall_s=time.monotonic() - began)
        return place

    guard = Guard.from_env(save=save)
    while not settings.is_last(step) and not guard.should_stop:
        step += 1
        if step == settings.fault_step:
            cause_fault(settings.fault, weights)
        loss = train_step(weights, step)
        time.sleep(settings.step_s)
        guard.step(step=step, loss=guard.reduce(loss))
        if step % settings.save_every == 0 and saved_step != step:
            save()
    guard.close()


def train_alone(settings: JobSettings) -> None:
    """Train without the agent: own log lines, own folders, resume from the newest one."""
    step, weights = 0, [0.0] * WEIGHTS
    if found := max(settings.folder.glob("step_*/state.pt"), key=parse_step, default=None):
        step, weights = read_state(found)
        print(f"resumed from step {step}", flush=True)
    while not settings.is_last(step):
        step += 1
        if step == settings.fault_step:
            cause_fault(settings.fault, weights)
        loss = train_step(weights, step)
        time.sleep(settings.step_s)
        if step % settings.save_every == 0:
            write_state(settings.folder / f"step_{step}" / "state.pt", step, weights)
        print(f"iter {step} | loss {loss:.6f}", flush=True)


def parse_step(file: Path) -> int:
    """Return the step of a file in a folder `step_N`."""
    return int(file.parent.name.removeprefix("step_"))


def read_state(file: Path) -> tuple[int, list[float]]:
    """Return the step and the weights that a checkpoint holds."""
    state = json.loads(file.read_text())
    return int(state["step"]), [float(weight) for weight in state["weights"]]


def write_state(file: Path, step: int, weights: Sequence[float]) -> None:
    """Write a checkpoint's file completely, under a temporary name first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.tmp")
    partial.write_text(json.dumps({"step": step, "weights": list(weights)}))
    partial.rename(file)


def main() -> None:
    settings = JobSettings(dict(os.environ))
    if settings.has_agent:
        train_with_agent(settings)
    else:
        train_alone(settings)


if __name__ == "__main__":
    main()
