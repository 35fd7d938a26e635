"""Connect Rerail to PyTorch Lightning: `RerailCallback` and `resume_from`.

    trainer = Trainer(..., callbacks=[RerailCallback(save_every=500)])
    trainer.fit(model, loader, ckpt_path=resume_from())

Checkpoints are `<checkpoints>/step-<n>/lightning.ckpt` with a manifest beside it; the step is Lightning's
`global_step`. They hold the random state of every rank, which Lightning's own do not. A SIGTERM ends fit() with
SystemExit, as Lightning does, but after a save, and at a step that all ranks have agreed on.
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

from rerail_agent import manifests
from rerail_agent.guard import Guard
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
        self.guard = Guard.from_env() if guard is None else guard
        self._handler = signal.getsignal(signal.SIGTERM)
        self._checkpoints = manifests.FrameworkCheckpoints(self.guard, manifests.find_root(checkpoints), keep=keep)
        self._save_every, self._loss_every, self._tokens_of = save_every, max(1, loss_every), tokens
        self._step, self._saved = 0, 0
        self._losses: list[Any] = []  # of the batches since the last step
        self._loss: float | None = None
        self._tokens = self._count_samples = 0
        self._rate: float | None = None
        self._random: list[dict[str, Any]] = []  # of each rank, to be put back before the first batch
        self._phase = ExitStack()

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

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._rate = _learning_rate(trainer)
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
