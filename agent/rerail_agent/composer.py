"""Connect Rerail to MosaicML Composer: `RerailCallback` and `resume_from`.

    trainer = Trainer(..., callbacks=[RerailCallback(save_every=500)], load_path=resume_from())

Checkpoints are `<checkpoints>/step-<n>/composer.pt` (a folder of shards with FSDP) with a manifest beside it. The step
is Composer's batch count. Written to Composer's documented events and tested with a loop that calls them as its engine
does. The library itself requires an older PyTorch than ours, so this module has not run with it.

It leaves out the samples in RERAIL_SKIP_SAMPLES and scales the learning rate by RERAIL_LR_SCALE. Epochs have as many
batches as without a skip. After a resume Composer drops the batches before its position in the epoch; data is not
skipped if a dataset resumes by itself.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

try:
    from composer import Callback  # type: ignore[import-not-found,unused-ignore]
except ImportError:

    class Callback:  # type: ignore[no-redef]
        """Stand in for Composer's class: one method for each event, found by the event's name."""

        def run_event(self, event: Any, state: Any, logger: Any) -> None:
            hook = getattr(self, event.value, None)
            if hook is not None:
                hook(state, logger)


from rerail_agent import data_order, manifests
from rerail_agent.data_order import DataOrder, OrderedBatches
from rerail_agent.fault_isolation import FaultIsolation, print_line
from rerail_agent.guard import Guard
from rerail_agent.ladder import prepare_rate
from rerail_agent.settings import read_skipped_samples

FILE = "composer.pt"


def resume_from(checkpoints: str | os.PathLike[str] | None = None) -> str | None:
    """Return the newest complete checkpoint that this attempt may resume from, for `Trainer(load_path=...)`."""
    found = manifests.resume_from(checkpoints)
    return None if found is None else str(found / FILE)


def write_with_composer(state: Any, path: Path) -> None:
    """Write the whole training state, with the random states of all ranks. Collective."""
    from composer.utils import save_checkpoint  # type: ignore[import-not-found,unused-ignore]

    save_checkpoint(state, str(path).replace("{", "{{").replace("}", "}}"))  # it takes a format string


class RerailCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Pass each batch to the guard, save every `save_every` batches and when the guard asks, and stop.

    `save_every` 0 turns periodic saves off. `keep` is the number of checkpoints that stay. `loss_every` is the number
    of batches between reads of the loss, each of which waits for the device. `write(state, path)` replaces Composer's
    save.
    """

    def __init__(
        self,
        checkpoints: str | os.PathLike[str] | None = None,
        *,
        save_every: int = 0,
        keep: int = 3,
        loss_every: int = 1,
        write: Callable[[Any, Path], Any] = write_with_composer,
        guard: Guard | None = None,
    ) -> None:
        super().__init__()
        self._skipped = read_skipped_samples(os.environ)
        self.guard = Guard.from_env() if guard is None else guard
        self._checkpoints = manifests.FrameworkCheckpoints(self.guard, manifests.find_root(checkpoints), keep=keep)
        self._save_every, self._loss_every, self._write = save_every, max(1, loss_every), write
        self._saved = self._tokens = 0
        self._losses: list[Any] = []  # of the microbatches of this batch
        self._loss: float | None = None
        self._phase = ExitStack()
        self._applied_rate = 1.0
        # The data position of a checkpoint; None if it has none.
        self._consumed: int | None = None
        # The order of the data, if it is known, and the first batch of this attempt in it.
        self._order: DataOrder | None = None
        self._first = 0
        self._ordered: OrderedBatches | None = None
        self._fit_from = 0  # Composer's batches before this attempt

    def fit_start(self, state: Any, logger: Any) -> None:
        self._phase.close()
        self._saved, self._tokens = int(state.timestamp.batch), int(state.timestamp.token)
        can_scale, self._applied_rate = prepare_rate(state.optimizers)
        can_skip = FaultIsolation().once("skipping data", lambda: self._prepare_data(state), False)
        self.guard.announce(*(("rate",) if can_scale else ()), *(("skip",) if can_skip else ()))

    def epoch_start(self, state: Any, logger: Any) -> None:
        if self._order is not None and self._ordered is not None:
            self._ordered.next_batch = self._find_next_batch(self._order, state)

    def after_loss(self, state: Any, logger: Any) -> None:
        self._losses.append(total_loss(state.loss))

    def batch_end(self, state: Any, logger: Any) -> None:
        step = int(state.timestamp.batch)
        self._report_step(state, step)
        reason = self.guard.reason if self.guard.wants_checkpoint else ""
        if self._save_every and step % self._save_every == 0:
            reason = reason or "periodic"
        if reason:
            self._save(state, reason)
        if self.guard.should_stop:
            stop_training(state)

    def eval_start(self, state: Any, logger: Any) -> None:
        self._phase.close()
        self._phase.enter_context(self.guard.phase("evaluation"))

    def eval_end(self, state: Any, logger: Any) -> None:
        self._phase.close()

    def fit_end(self, state: Any, logger: Any) -> None:
        if self._save_every and int(state.timestamp.batch) > self._saved:
            self._save(state, "final")
        # The script makes no more steps from here on, which is not a hang.
        self._phase.enter_context(self.guard.phase("evaluation"))

    def state_dict(self) -> dict[str, Any]:
        return {"guard": self.guard.state_dict(), "samples": self._consumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.guard.load_state_dict(state.get("guard", {}))
        self._consumed = state.get("samples")

    def _report_step(self, state: Any, step: int) -> None:
        losses, self._losses = self._losses, []
        loss = None
        if losses and step % self._loss_every == 0:
            loss = self._loss = self.guard.reduce(torch.stack(losses).mean())
        seen, self._tokens = self._tokens, int(state.timestamp.token)
        rates = [group["lr"] for optimizer in state.optimizers for group in optimizer.param_groups]
        rate = rates[0] * self._applied_rate if rates else None
        self.guard.step(step=step, loss=loss, lr=rate, tokens=self._tokens - seen or None)

    def _prepare_data(self, state: Any) -> bool:
        """Put the data where the checkpoint's was, without the samples to skip; return whether that is possible."""
        self._order, self._ordered, self._fit_from = None, None, int(state.timestamp.batch)
        loader, ranks = getattr(state, "dataloader", None), manifests.get_world_size()
        obstacle = "the dataset resumes by itself" if getattr(state, "dataset_resumption", None) else ""
        if obstacle := obstacle or data_order.find_obstacle(loader, ranks=ranks):
            if manifests.get_rank() == 0:
                print_line(data_order.explain(obstacle, self._skipped))
            return False
        length = getattr(state, "dataloader_len", None)
        order = self._order = data_order.make_order(
            loader, ranks=ranks, skipped=self._skipped, epoch_batches=None if length is None else int(length)
        )
        done = int(state.timestamp.epoch) * order.epoch_batches + int(state.timestamp.batch_in_epoch)
        first = order.advance(0, done) if self._consumed is None else order.find(self._consumed)
        self._first = order.advance(first, 0)
        if self._skipped or self._first != done:
            self._ordered = data_order.install(loader, order)
            self._ordered.next_batch = self._first
            self._ordered.dropped_by_trainer = int(state.timestamp.batch_in_epoch)
        return True

    def _find_next_batch(self, order: DataOrder, state: Any) -> int:
        return order.advance(self._first, int(state.timestamp.batch) - self._fit_from)

    def _save(self, state: Any, reason: str) -> None:
        self._saved = int(state.timestamp.batch)
        if self._order is not None:
            self._consumed = self._order.start(self._find_next_batch(self._order, state))
        if not self.guard.fenced:
            self._checkpoints.save(
                self._saved,
                lambda folder: self._write(state, folder / FILE),
                reason=reason,
                loss=self._loss,
                consumed_samples=int(state.timestamp.sample) if self._order is None else self._consumed,
            )


def total_loss(loss: Any) -> torch.Tensor:
    """Return the loss of a microbatch: a number, or several by name or in order, which Composer adds up."""
    if isinstance(loss, Mapping):
        return total_loss(loss["total"]) if "total" in loss else total_loss(list(loss.values()))
    if isinstance(loss, Sequence):
        return torch.stack([total_loss(part) for part in loss]).sum()
    return torch.as_tensor(loss).detach().float().mean()


def stop_training(state: Any) -> None:
    """End the training after this batch; older versions have no method for it."""
    if hasattr(state, "stop_training"):
        state.stop_training()
    else:
        state.max_duration = state.timestamp.batch
