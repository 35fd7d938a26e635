"""Connect Rerail to PyTorch Lightning: `RerailCallback` and `resume_from`.

    trainer = Trainer(..., callbacks=[RerailCallback(save_every=500)])
    trainer.fit(model, loader, ckpt_path=resume_from())

Checkpoints are `<checkpoints>/step-<n>/lightning.ckpt` with a manifest beside it; the step is Lightning's
`global_step`. They hold the random state of every rank, which Lightning's own do not. A SIGTERM ends fit() with
SystemExit, as Lightning does, but after a save, and at a step that all ranks have agreed on.

It leaves out the samples in RERAIL_SKIP_SAMPLES and scales the learning rate by RERAIL_LR_SCALE. Epochs have as many
batches as without a skip. If a later attempt can repeat the data's order, it also resumes within an epoch.

While a problem with the loss is open, a ModelCheckpoint deletes all but the newest checkpoint from before the problem.
"""

import os
import random
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

try:
    from lightning.pytorch import Callback
except ImportError:  # the package's older name
    from pytorch_lightning import Callback  # type: ignore[assignment,unused-ignore]

from rerail_agent import data_order, manifests
from rerail_agent.data_order import DataOrder, OrderedBatches
from rerail_agent.fault_isolation import FaultIsolation, print_line
from rerail_agent.guard import Guard
from rerail_agent.ladder import prepare_rate
from rerail_agent.settings import read_skipped_samples
from rerail_agent.sigterm import SigtermHandler

FILE = "lightning.ckpt"


def resume_from(checkpoints: str | os.PathLike[str] | None = None) -> str | None:
    """Return the newest complete checkpoint that this attempt may resume from, for `fit(ckpt_path=...)`."""
    found = manifests.resume_from(checkpoints)
    return None if found is None else str(found / FILE)


class RerailCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Pass each step to the guard, save every `save_every` steps and when the guard asks, and stop.

    `save_every` 0 turns periodic saves off. `keep` is the number of checkpoints that stay. `loss_every` is the number
    of steps between reads of the loss, each of which waits for the device. `tokens(batch)` returns the tokens of one
    batch of one rank. The value that the module logs as `grad_norm` is passed on.
    """

    def __init__(
        self,
        checkpoints: str | os.PathLike[str] | None = None,
        *,
        save_every: int = 0,
        keep: int = 3,
        loss_every: int = 1,
        tokens: Callable[[Any], int] | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._skipped = read_skipped_samples(os.environ)
        self.guard = Guard.from_env() if guard is None else guard
        self._handler = signal.getsignal(signal.SIGTERM)
        self._checkpoints = manifests.FrameworkCheckpoints(self.guard, manifests.find_root(checkpoints), keep=keep)
        self._save_every, self._loss_every, self._tokens_of = save_every, max(1, loss_every), tokens
        self._step, self._saved = 0, 0
        self._losses: list[Any] = []  # of the batches since the last step
        self._loss: float | None = None
        self._tokens = self._count_samples = 0
        self._rate: float | None = None
        self._applied_rate = 1.0
        # The order of the data, if it is known, the first batch of this attempt in it, and its batches since then.
        self._order: DataOrder | None = None
        self._first = self._batches = 0
        self._ordered: OrderedBatches | None = None
        self._random: list[dict[str, Any]] = []  # of each rank, to be put back before the first batch
        self._phase = ExitStack()
        self._deletion: DelayedDeletion | None = None

    # ------------------------------------------------------------------ hooks

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._restore_handler()
        self._phase.enter_context(self.guard.phase("evaluation"))

    def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
        self._phase.close()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._restore_handler()
        self._phase.close()
        self._step = self._saved = trainer.global_step
        if self._deletion is None or self._deletion.strategy is not trainer.strategy:
            self._deletion = DelayedDeletion(trainer.strategy, self.guard)
        can_scale, self._applied_rate = prepare_rate(trainer.optimizers)
        can_skip = FaultIsolation().once("skipping data", lambda: self._prepare_data(trainer), False)
        self.guard.announce(*(("rate",) if can_scale else ()), *(("skip",) if can_skip else ()))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._order is not None and self._ordered is not None:
            self._ordered.next_batch = self._order.advance(self._first, self._batches)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        rate = _learning_rate(trainer)
        self._rate = None if rate is None else rate * self._applied_rate
        if self._random:
            if len(self._random) == trainer.world_size:
                restore_random_state(self._random[trainer.global_rank])
            self._random = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._count(trainer, pl_module, outputs, batch)
        if trainer.global_step == self._step:
            return  # gradients are being accumulated
        self._step = trainer.global_step
        self._report_step(trainer)
        if self._deletion is not None:
            self._deletion.finish()
        reason = self.guard.reason if self.guard.wants_checkpoint else ""
        if self._save_every and self._step // self._save_every > self._saved // self._save_every:
            reason = reason or "periodic"
        if reason:
            self._save(trainer, reason)
        if self.guard.should_stop:
            raise SystemExit(0)  # as Lightning ends after a SIGTERM, whatever min_epochs says

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._phase.close()
        self._phase.enter_context(self.guard.phase("evaluation"))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._phase.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._save_every and self._step > self._saved:
            self._save(trainer, "final")
        # The script makes no more steps from here on, which is not a hang.
        self._phase.enter_context(self.guard.phase("evaluation"))

    def state_dict(self) -> dict[str, Any]:
        """Return the callback's state. Collective, like every save of Lightning's."""
        return {
            "guard": self.guard.state_dict(),
            "samples": self._count_samples,
            "random": manifests.gather(random_state()),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.guard.load_state_dict(state_dict.get("guard", {}))
        self._count_samples = int(state_dict.get("samples", 0))
        self._random = list(state_dict.get("random", ()))

    # ------------------------------------------------------------------ inside

    def _prepare_data(self, trainer: Any) -> bool:
        """Put the data where the checkpoint's was, without the samples to skip; return whether that is possible."""
        self._order, self._ordered, self._batches = None, None, 0
        if obstacle := _find_data_obstacle(trainer):
            if manifests.get_rank() == 0:
                print_line(data_order.explain(obstacle, self._skipped))
            return False
        loader = trainer.fit_loop._combined_loader.flattened[0]
        self._order = data_order.make_order(
            loader, ranks=trainer.world_size, skipped=self._skipped, epoch_batches=int(trainer.num_training_batches)
        )
        self._first = self._order.advance(self._order.find(self._count_samples), 0)
        if self._skipped or trainer.global_step:
            self._ordered = data_order.install(loader, self._order)
            self._ordered.next_batch = self._first
            random_numbers = random_state()
            trainer.fit_loop._combined_loader.reset()  # Lightning has begun to read
            iter(trainer.fit_loop._data_fetcher)
            restore_random_state(random_numbers)
        return True

    def _restore_handler(self) -> None:
        # Lightning puts its own handler for SIGTERM before the guard's: it raises in the middle of a step, unsaved, and
        # with several ranks it begins a collective in the handler, which meets those of the training loop.
        if isinstance(self._handler, SigtermHandler):
            signal.signal(signal.SIGTERM, self._handler)

    def _count(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):
            # Lightning passes the batch's share of the step's loss.
            share = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self._losses.append(loss.detach() * share)
        self._batches += 1
        if self._order is not None:
            self._count_samples = self._order.start(self._order.advance(self._first, self._batches))
        else:
            self._count_samples += _count_samples(batch) * trainer.world_size
        if self._tokens_of is not None:
            self._tokens += self._tokens_of(batch) * trainer.world_size

    def _report_step(self, trainer: Any) -> None:
        losses, self._losses = self._losses, []
        tokens, self._tokens = self._tokens, 0
        loss = None
        if losses and self._step % self._loss_every == 0:
            loss = self._loss = self.guard.reduce(
                torch.stack([batch_loss.float().mean() for batch_loss in losses]).mean()
            )
        self.guard.step(
            step=self._step,
            loss=loss,
            grad_norm=trainer.callback_metrics.get("grad_norm"),
            lr=self._rate,
            tokens=tokens if self._tokens_of is not None else None,
        )

    def _save(self, trainer: Any, reason: str) -> None:
        self._saved = self._step
        if not self.guard.fenced:
            self._checkpoints.save(
                self._step,
                lambda folder: trainer.save_checkpoint(folder / FILE),
                reason=reason,
                loss=self._loss,
                consumed_samples=self._count_samples,
            )


class DelayedDeletion:
    """Delays the deletion of the newest checkpoint from before an open problem with the loss, until that is over.

    Every rank deletes through its strategy, where only rank 0 does anything. It alone knows of the problem.
    """

    def __init__(self, strategy: Any, guard: Guard) -> None:
        self.strategy, self._guard = strategy, guard
        self._save, self._delete = strategy.save_checkpoint, strategy.remove_checkpoint
        self._steps: dict[str, int] = {}  # of the files; those from before this fit() are older than all others
        self._delayed: Any = None
        strategy.save_checkpoint, strategy.remove_checkpoint = self.save, self.delete

    def save(self, checkpoint: Mapping[str, Any], filepath: Any, **options: Any) -> None:
        self._save(checkpoint, filepath, **options)
        self._steps[str(filepath)] = int(checkpoint.get("global_step", 0))
        if str(filepath) == str(self._delayed):
            self._delayed = None

    def delete(self, filepath: Any) -> None:
        """Delete the checkpoint as Lightning asks, now or later."""
        onset, step = self._guard.onset, self._steps.pop(str(filepath), 0)
        if onset is None or step >= onset or any(step <= other < onset for other in self._steps.values()):
            self._delete(filepath)
            return
        self.finish(now=True)
        self._delayed, self._steps[str(filepath)] = filepath, step

    def finish(self, *, now: bool = False) -> None:
        """Delete what was delayed if the problem is over, or now."""
        if self._delayed is None or not (now or self._guard.onset is None):
            return
        delayed, self._delayed = self._delayed, None
        self._steps.pop(str(delayed), None)
        self._delete(delayed)


def _find_data_obstacle(trainer: Any) -> str:
    """Return why the order of Lightning's data is not known, or an empty string."""
    combined = getattr(trainer.fit_loop, "_combined_loader", None)
    loaders: list[Any] = getattr(combined, "flattened", [])
    if len(loaders) != 1 or getattr(trainer.fit_loop, "_data_fetcher", None) is None:
        return "only a single training loader can be set to a position"
    if trainer.reload_dataloaders_every_n_epochs:
        return "reload_dataloaders_every_n_epochs replaces the loader"
    return data_order.find_obstacle(loaders[0], ranks=trainer.world_size)


def random_state() -> dict[str, Any]:
    """Return the state of every generator that a training script may use, in types that torch.load takes without
    pickle."""
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (str(name), np.asarray(keys).tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore_random_state(saved: Mapping[str, Any]) -> None:
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["torch"])
    if saved["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])


def _learning_rate(trainer: Any) -> float | None:
    groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
    return float(groups[0]["lr"]) if groups else None


def _count_samples(batch: Any) -> int:
    """Return the length of the first tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((samples for part in parts if (samples := _count_samples(part))), 0)
