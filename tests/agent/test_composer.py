"""Composer's events with Rerail's callback. The library itself is not run: it pins an older PyTorch than ours.

The loop here drives callbacks as Composer's engine does, in the order that its documentation gives.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from rerail.model.mailbox import ReportKind
from rerail_agent.composer import RerailCallback, resume_from, total_loss
from tests.agent.jobs import announced, ask_for_checkpoint, fence
from tests.agent.test_manifests import snippets

STEPS = 12
LEARNING_RATE = 1e-3


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

    epoch: int = 0
    batch: int = 0
    batch_in_epoch: int = 0
    sample: int = 0
    token: int = 0


@dataclass
class State:
    """What Composer's State offers to callbacks, as far as ours looks."""

    model: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    callbacks: list[Any]
    max_duration: int
    dataloader: DataLoader
    timestamp: Timestamp = field(default_factory=Timestamp)
    loss: Any = None
    schedule: Any = None

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
    parts["schedule"] = state.schedule.state_dict()
    torch.save({**parts, "timestamp": vars(state.timestamp), "rng": torch.get_rng_state()}, path)


def make_rows() -> torch.Tensor:
    return torch.randn(32, 8, generator=torch.Generator().manual_seed(1))


def fit(*callbacks: Any, load_path: str | None = None, eval_every: int = 100, steps: int = STEPS, **data: Any) -> Any:
    """Composer's training loop, in short; the losses that it saw."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=data.pop("learning_rate", LEARNING_RATE))
    loader = DataLoader(data.pop("rows", make_rows()), batch_size=4, **data)
    state = State(model, (optimizer,), list(callbacks), max_duration=steps, dataloader=loader)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)
    losses, random_numbers = [], None

    def run_event(event: Event) -> None:
        for callback in state.callbacks:
            callback.run_event(event, state, None)

    run_event(Event.INIT)
    if load_path:
        saved = torch.load(load_path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        state.timestamp = Timestamp(**saved["timestamp"])
        ours = [callback for callback in callbacks if isinstance(callback, RerailCallback)]
        for callback, kept in zip(ours, saved["callbacks"], strict=True):
            callback.load_state_dict(kept)
        random_numbers = saved["rng"]
    run_event(Event.AFTER_LOAD)
    run_event(Event.FIT_START)
    state.schedule, now = schedule, state.timestamp
    while now.batch < state.max_duration:
        if now.batch_in_epoch == 0:
            run_event(Event.EPOCH_START)
        for at, rows in enumerate(loader):
            if at < now.batch_in_epoch:  # to the position of the checkpoint
                if at + 1 == now.batch_in_epoch:
                    torch.set_rng_state(random_numbers)
                continue
            run_event(Event.BATCH_START)
            optimizer.zero_grad()
            microbatches = []
            for microbatch in rows.split(2):
                state.loss = model(microbatch).square().mean()
                run_event(Event.AFTER_LOSS)
                (state.loss / 2).backward()
                microbatches.append(state.loss.item())
            optimizer.step()
            schedule.step()
            losses.append(sum(microbatches) / 2)
            now.batch, now.batch_in_epoch = now.batch + 1, now.batch_in_epoch + 1
            now.sample, now.token = now.sample + 4, now.token + 32
            run_event(Event.BATCH_END)
            if now.batch % eval_every == 0:
                run_event(Event.EVAL_START)
                run_event(Event.EVAL_END)
            run_event(Event.BATCH_CHECKPOINT)
            if now.batch >= state.max_duration:
                break
        else:
            now.epoch, now.batch_in_epoch = now.epoch + 1, 0
            run_event(Event.EPOCH_END)
    run_event(Event.FIT_END)
    return losses


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture
def callback(new_guard, tmp_path):
    """Makes callbacks that save with the loop's own function."""

    def make(*bucket: Any, save_every: int = 0, keep: int = 3, **variables: str) -> RerailCallback:
        guard = new_guard(*bucket, **variables)
        return RerailCallback(tmp_path, guard=guard, write=write, save_every=save_every, keep=keep)

    return make


def test_training_is_what_it_was_and_each_batch_has_its_metric_line(callback, tmp_path, capsys):
    losses = fit(callback())
    assert losses == fit()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rerail step=")]
    assert [float(line.split("loss=")[1].split()[0]) for line in lines] == pytest.approx(losses, rel=1e-6)
    assert "tokens_per_s=" in lines[-1] and "lr=0.001 " in lines[-1]
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_saved_when_the_supervisor_asks(callback, bucket, tmp_path):
    """At the very batch in which the command arrives."""
    ask = partial(ask_for_checkpoint, bucket)
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

    fit(callback(bucket, save_every=4), Each(6, partial(fence, bucket)))
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


def test_skipped_samples_are_as_if_they_had_never_been_there(callback, bucket, tmp_path, monkeypatch):
    """After a rollback to step 4 and after the resume of that attempt; what follows moves up, over the epoch's end."""
    rows = make_rows()
    reference = fit(rows=torch.cat([rows[:20], rows[28:], rows[:8]]), steps=8)
    fit(callback(save_every=4))
    monkeypatch.setenv("RERAIL_SKIP_SAMPLES", "20-27")
    for attempt, step in (("2", 4), ("3", 6)):
        monkeypatch.setenv("RERAIL_ATTEMPT", attempt)
        ours = callback(bucket, save_every=2, RERAIL_ATTEMPT=attempt, RERAIL_RUN="night", RERAIL_RESUME_STEP=str(step))
        losses = fit(ours, load_path=resume_from(tmp_path), steps=8)
        assert losses == reference[step:]
        assert [manifest(tmp_path / f"step-00000000{at}")["consumed_samples"] for at in (6, 8)] == [32, 40]
        bucket.wait_for(partial(announced, bucket, ("rate", "skip"), attempt=int(attempt)))


def test_data_of_unknown_order_is_not_skipped_and_the_log_has_the_reason(callback, bucket, monkeypatch, capsys):
    monkeypatch.setenv("RERAIL_SKIP_SAMPLES", "8-15")
    assert fit(callback(bucket), shuffle=True) == fit(shuffle=True)
    assert capsys.readouterr().err.count("RERAIL_SKIP_SAMPLES is ignored") == 1
    bucket.wait_for(partial(announced, bucket, ("rate",)))


def test_a_lower_rate_is_applied_once_over_resumes(callback, tmp_path, monkeypatch):
    """As a schedule with half the rate."""
    reference = fit(learning_rate=LEARNING_RATE / 2)
    monkeypatch.setenv("RERAIL_LR_SCALE", "0.5")
    losses = fit(callback(save_every=4), steps=4)
    for steps in (8, 12):
        losses += fit(callback(save_every=4), load_path=resume_from(tmp_path), steps=steps)
    assert losses == reference


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
