"""Composer's events with Rerail's callback. The library itself is not run: it pins an older PyTorch than ours.

The loop here drives callbacks as Composer's engine does, in the order that its documentation gives.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rerail.model.mailbox import CommandKind, ReportKind
from rerail_agent.composer import RerailCallback, resume_from, total_loss
from tests.agent.jobs import command
from tests.agent.test_manifests import snippets

STEPS = 12


class Event(StrEnum):
    INIT = "init"
    AFTER_LOAD = "after_load"
    FIT_START = "fit_start"
    EPOCH_START = "epoch_start"
    BATCH_START = "batch_start"
    AFTER_LOSS = "after_loss"
    BATCH_END = "batch_end"
    EVAL_START = "eval_start"
    EVAL_END = "eval_end"
    BATCH_CHECKPOINT = "batch_checkpoint"
    EPOCH_END = "epoch_end"
    FIT_END = "fit_end"


@dataclass
class Timestamp:
    """How far the training has come."""

    batch: int = 0
    sample: int = 0
    token: int = 0


@dataclass
class State:
    """What Composer's State offers to callbacks, as far as ours looks."""

    model: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    callbacks: list[Any]
    max_duration: int
    timestamp: Timestamp = field(default_factory=Timestamp)
    loss: Any = None

    def stop_training(self) -> None:
        self.max_duration = self.timestamp.batch


class Each:
    """Does something before a batch."""

    def __init__(self, step: int, work: Any) -> None:
        self.step, self.work = step, work

    def run_event(self, event: Any, state: State, logger: Any) -> None:
        if event == Event.BATCH_START and state.timestamp.batch + 1 == self.step:
            self.work()


def write(state: State, path: Path) -> None:
    """As composer.utils.save_checkpoint does: the callbacks' states are part of it."""
    kept = [callback.state_dict() for callback in state.callbacks if isinstance(callback, RerailCallback)]
    parts = {"model": state.model.state_dict(), "optimizer": state.optimizers[0].state_dict(), "callbacks": kept}
    torch.save({**parts, "timestamp": vars(state.timestamp), "rng": torch.get_rng_state()}, path)


def fit(*callbacks: Any, load_path: str | None = None, eval_every: int = 100, steps: int = STEPS) -> list[float]:
    """Composer's training loop, in short; the losses that it saw."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    state = State(model, (torch.optim.AdamW(model.parameters()),), list(callbacks), max_duration=steps)
    generator, losses = torch.Generator().manual_seed(1), []
    data = [torch.randn(4, 8, generator=generator) for _ in range(STEPS)]

    def run_event(event: Event) -> None:
        for callback in state.callbacks:
            callback.run_event(event, state, None)

    run_event(Event.INIT)
    if load_path:
        saved = torch.load(load_path)
        model.load_state_dict(saved["model"])
        state.optimizers[0].load_state_dict(saved["optimizer"])
        state.timestamp = Timestamp(**saved["timestamp"])
        ours = [callback for callback in callbacks if isinstance(callback, RerailCallback)]
        for callback, kept in zip(ours, saved["callbacks"], strict=True):
            callback.load_state_dict(kept)
        torch.set_rng_state(saved["rng"])
    run_event(Event.AFTER_LOAD)
    run_event(Event.FIT_START)
    run_event(Event.EPOCH_START)
    while state.timestamp.batch < state.max_duration:
        run_event(Event.BATCH_START)
        state.optimizers[0].zero_grad()
        microbatches = []
        for microbatch in data[state.timestamp.batch].split(2):
            state.loss = model(microbatch).square().mean()
            run_event(Event.AFTER_LOSS)
            (state.loss / 2).backward()
            microbatches.append(state.loss.item())
        state.optimizers[0].step()
        losses.append(sum(microbatches) / 2)
        state.timestamp.batch += 1
        state.timestamp.sample += 4
        state.timestamp.token += 32
        run_event(Event.BATCH_END)
        if state.timestamp.batch % eval_every == 0:
            run_event(Event.EVAL_START)
            run_event(Event.EVAL_END)
        run_event(Event.BATCH_CHECKPOINT)
    run_event(Event.EPOCH_END)
    run_event(Event.FIT_END)
    return losses


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture
def callback(new_guard, tmp_path):
    """Makes callbacks that save with the loop's own function."""
    return lambda *bucket, **settings: RerailCallback(tmp_path, guard=new_guard(*bucket), write=write, **settings)


def test_training_is_what_it_was_and_each_batch_has_its_metric_line(callback, tmp_path, capsys):
    losses = fit(callback())
    assert losses == fit()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rerail step=")]
    assert [float(line.split("loss=")[1].split()[0]) for line in lines] == pytest.approx(losses, rel=1e-6)
    assert "tokens_per_s=" in lines[-1] and "lr=0.001 " in lines[-1]
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_saved_when_the_supervisor_asks(callback, bucket, tmp_path):
    """At the very batch in which the command arrives."""

    def ask():
        bucket.command(command("c1"))
        bucket.wait_for_report(ReportKind.ACKNOWLEDGED)

    fit(callback(bucket), Each(6, ask))
    report = bucket.wait_for_report(ReportKind.CHECKPOINT)
    assert (report.command, report.step, report.path) == ("c1", 6, str(tmp_path / "step-000000006"))
    assert manifest(tmp_path / "step-000000006")["reason"] == "emergency"
    assert manifest(tmp_path / "step-000000006")["consumed_samples"] == 24


def test_sigterm_saves_and_stops_and_the_next_attempt_goes_on(callback, tmp_path):
    """The losses go on bit for bit from there."""
    stopped = fit(callback(), Each(5, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert len(stopped) == 5
    assert manifest(tmp_path / "step-000000005")["reason"] == "sigterm"
    assert stopped + fit(callback(), load_path=resume_from(tmp_path)) == fit()


def test_periodic_and_final_checkpoints_are_kept_in_number(callback, tmp_path):
    """Every five batches and at the end, the last two of them."""
    fit(callback(save_every=5, keep=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000010", "step-000000012"]
    assert manifest(tmp_path / "step-000000012")["reason"] == "final"


def test_a_fenced_attempt_saves_no_more(callback, bucket, tmp_path):
    def fence():
        bucket.command(command("c2", attempt=2, kind=CommandKind.TRAIN))
        bucket.wait_for_report(ReportKind.REFUSED)

    fit(callback(bucket, save_every=4), Each(6, fence))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000004"]


def test_evaluations_are_no_slow_steps(callback):
    """The heartbeat tells them apart, and what comes after the last batch is no hang either."""
    ours, phases = callback(), {}

    class Spy:
        def run_event(self, event, state, logger):
            phases.setdefault(str(event), set()).add(str(ours.guard._progress.phase))

    fit(ours, Spy(), eval_every=4)
    assert phases["eval_start"] == {"evaluation"}
    assert phases["eval_end"] == {"step"}
    assert phases["fit_end"] == {"evaluation"}


def test_a_loss_of_several_parts_is_their_sum():
    """Composer trains on the sum, or on what is called `total`."""
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    assert total_loss({"main": one, "aux": two}) == 3
    assert total_loss({"total": two, "main": one}) == 2
    assert total_loss((one, two)) == 3
    assert total_loss(1.5) == 1.5


def test_the_page_for_users_shows_a_script_that_fits(new_guard, monkeypatch, tmp_path):
    """Run with stand-ins for Composer's Trainer and its save_checkpoint, which take what the page gives them."""
    new_guard().close(within_s=0.2)  # its environment is what Guard.from_env() finds

    class Trainer:
        def __init__(self, *, model: Any, callbacks: list[Any], load_path: str | None, steps: int) -> None:
            self.fit = lambda: losses.append(fit(*callbacks, load_path=load_path, steps=steps))

    def save_checkpoint(state: State, filename: str) -> None:
        write(state, Path(filename.format(rank=0)))

    losses: list[list[float]] = []
    monkeypatch.setitem(sys.modules, "composer", SimpleNamespace(Trainer=Trainer))
    monkeypatch.setitem(sys.modules, "composer.utils", SimpleNamespace(save_checkpoint=save_checkpoint))
    (text,) = snippets("MosaicML Composer")
    for _ in range(2):
        names = {"checkpoints": tmp_path, "model": None, "settings": {"steps": 3}}
        exec(compile(text, "docs/scripts.md", "exec"), names)
        names["callback"].guard.close(within_s=0.2)
    assert losses == [fit(steps=3), []]
