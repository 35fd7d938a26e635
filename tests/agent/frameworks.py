"""Tiny trainings with Rerail's callback, one class for each framework, for the tests that both callbacks share."""

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import lightning.pytorch as pl
import torch
import transformers
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from rerail_agent import hf, lightning, manifests

STEPS = 12
LINE = re.compile(r"^rerail step=(\d+) loss=(\S+) .*?lr=(\S+) (?:tokens_per_s=(\d+) )?nonfinite=0", re.M)
Work = Callable[[], Any]
Record = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """The result of a training: the loss of each step of this process, the weights, and how it ended."""

    losses: list[float]
    weights: dict[str, torch.Tensor]
    # The steps after which the Trainer of Hugging Face evaluated it.
    evaluated: list[int]
    # The status of a callback that ends the process; None where the framework returns.
    status: int | None = None


def make_callback(kind: type, **events: Callable[..., Any]) -> Any:
    """Make a callback of a framework's class that calls these functions at its events."""
    return type("Recorder", (kind,), {name: staticmethod(work) for name, work in events.items()})()


def read_manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


# ---------------------------------------------------------------------- Hugging Face


def trainer_in(
    folder: Path, *callbacks: transformers.TrainerCallback, data: Any = None, splits: bool = False, **changes: Any
) -> transformers.Trainer:
    """Make a model with dropout, unless its batches may be split, and forty samples; the seed is always the same."""
    torch.manual_seed(0)
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0 if splits else 0.1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, **dropout))
    ids = torch.randint(0, 32, (40, 8), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": row, "labels": row} for row in ids] if data is None else data
    settings = {"max_steps": STEPS, "save_steps": 4, "logging_steps": 1, "per_device_train_batch_size": 4, **changes}
    settings |= {"use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 3, "dataloader_pin_memory": False}
    args = TrainingArguments(output_dir=str(folder), **settings)
    args = hf.split_batch(args) if splits else args
    return transformers.Trainer(
        model=model, args=args, train_dataset=rows, eval_dataset=list(rows)[:4], callbacks=list(callbacks)
    )


def losses_of(trainer: transformers.Trainer, *, after: int = 0) -> dict[int, float]:
    """Return the logged losses by step; a resumed Trainer also knows those of its checkpoint."""
    history = trainer.state.log_history
    return {row["step"]: row["loss"] for row in history if "loss" in row and row["step"] > after}


class Stream(torch.utils.data.IterableDataset):
    """Samples in an unknown order."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


class HuggingFace:
    """The Trainer with `rerail_agent.hf`."""

    key = "hf"
    broken_save = (manifests, "commit")
    first_rate, sigterm_status = 5e-5, None
    # Settings that would have it do something after step 5.
    after_step_5: Any = {"eval_strategy": "steps", "eval_steps": 5}
    evaluating: Any = {"eval_strategy": "steps", "eval_steps": 6, "gradient_accumulation_steps": 2}

    def before_step(self, step: int, work: Work) -> Any:
        return make_callback(
            transformers.TrainerCallback,
            on_step_begin=lambda args, state, *_, **__: (work(), None)[1] if state.global_step + 1 == step else None,
        )

    def phases(self, record: Record) -> Any:
        return make_callback(
            transformers.TrainerCallback,
            on_prediction_step=lambda *_, **__: record("evaluating"),
            on_save=lambda *_, **__: record("saving"),
            on_substep_end=lambda args, state, *_, **__: record("stepping") if state.global_step else None,
        )

    def checkpoint(self, folder: Path, step: int) -> Path:
        return folder / f"checkpoint-{step}"

    def checkpoints(self, folder: Path) -> list[Path]:
        return sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))

    def resume_path(self, folder: Path, step: int) -> str:
        return str(self.checkpoint(folder, step))

    resume_from = staticmethod(hf.resume_from)

    def unordered(self, folder: Path) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield settings with data in an unknown order, and the words of the log line about it."""
        yield {"data": Stream(trainer_in(folder).train_dataset)}, "iterable dataset"
        yield {"train_sampling_strategy": "group_by_length"}, "LengthGroupedSampler"

    def train(
        self,
        folder: Path,
        guard: Any = None,
        *hooks: Any,
        spies: Sequence[Any] = (),
        save_every: int = 0,
        keep: int | None = None,
        rate: float = 5e-5,
        resume: str | None = None,
        **changes: Any,
    ) -> Trained:
        """Train to the last step, without a guard also without the callback; `spies` see each event before it."""
        saving = {"save_steps": save_every, "save_total_limit": keep} if save_every else {"save_strategy": "no"}
        callbacks = [hf.RerailCallback(guard)] if guard else []
        trainer = trainer_in(folder, *spies, *callbacks, *hooks, learning_rate=rate, **saving, **changes)
        trainer.train(resume_from_checkpoint=resume)
        began = int(Path(resume).name.split("-")[1]) if resume else 0
        evaluated = [row["step"] for row in trainer.state.log_history if "eval_loss" in row]
        weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        return Trained(list(losses_of(trainer, after=began).values()), weights, evaluated)


# ---------------------------------------------------------------------- Lightning


class Model(pl.LightningModule):
    """A layer with dropout, and a learning rate that moves."""

    def __init__(self, *, grad_norm: float | None = None, rate: float = 1e-2) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
        self.seen: list[float] = []
        self.inputs: list[Any] = []
        self.logged_norm, self.rate = grad_norm, rate

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.seen.append(loss.item())
        self.inputs.append(x.tolist())
        if self.logged_norm is not None:
            self.log("grad_norm", self.logged_norm)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.net(batch[0]).mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Batches:
    """Eight batches an epoch, with a state as that of torchdata's StatefulDataLoader."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.data = [(torch.randn(4, 8, generator=generator), torch.randn(4, 1, generator=generator)) for _ in range(8)]
        self.next = 0

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        start, self.next = self.next, 0
        for number in range(start, len(self.data)):
            self.next = (number + 1) % len(self.data)
            yield self.data[number]

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def fit(
    *callbacks: pl.Callback,
    ckpt_path: str | None = None,
    model: Model | None = None,
    loader: Any = None,
    **changes: Any,
) -> Model:
    """Train the same model with the same data and dropout every time."""
    torch.manual_seed(0)
    model = model or Model()
    defaults = {"max_steps": STEPS, "max_epochs": -1, "limit_val_batches": 0, "devices": 1}
    defaults |= {"use_distributed_sampler": False, "enable_checkpointing": False}
    settings = {**defaults, **changes, "accelerator": "cpu", "logger": False}
    settings |= {"enable_progress_bar": False, "enable_model_summary": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(callbacks=list(callbacks), **settings)
        trainer.fit(model, Batches() if loader is None else loader, Batches(), ckpt_path=ckpt_path)
    return model


class Lightning:
    """Lightning's Trainer with `rerail_agent.lightning`."""

    key = "lightning"
    broken_save = (pl.Trainer, "save_checkpoint")
    first_rate, sigterm_status = 1e-2 / 3, 0
    after_step_5: Any = {"min_steps": 11}
    evaluating: Any = {"limit_val_batches": 2, "val_check_interval": 4, "num_sanity_val_steps": 1}

    def before_step(self, step: int, work: Work) -> Any:
        return make_callback(
            pl.Callback, on_train_batch_start=lambda trainer, *_: trainer.global_step + 1 == step and work()
        )

    def phases(self, record: Record) -> Any:
        return make_callback(
            pl.Callback,
            on_validation_batch_end=lambda *_: record("evaluating"),
            on_save_checkpoint=lambda *_: record("saving"),
            on_train_batch_start=lambda trainer, *_: trainer.global_step and record("stepping"),
        )

    def checkpoint(self, folder: Path, step: int) -> Path:
        return folder / f"step-{step:09d}"

    def checkpoints(self, folder: Path) -> list[Path]:
        return sorted(folder.glob("step-*"))

    def resume_path(self, folder: Path, step: int) -> str:
        return str(self.checkpoint(folder, step) / "lightning.ckpt")

    resume_from = staticmethod(lightning.resume_from)

    def unordered(self, folder: Path) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield settings with data in an unknown order, and the words of the log line about it."""
        rows = [(x, y) for xs, ys in Batches().data for x, y in zip(xs, ys, strict=True)]
        yield {"loader": Batches()}, "Batches"
        yield {"loader": torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)}, "RandomSampler"

    def train(
        self,
        folder: Path,
        guard: Any = None,
        *hooks: Any,
        spies: Sequence[Any] = (),
        save_every: int = 0,
        keep: int = 9,
        rate: float = 1e-2,
        resume: str | None = None,
        **changes: Any,
    ) -> Trained:
        """Train to the last step, without a guard also without the callback; `spies` see each event before it."""
        callbacks = [lightning.RerailCallback(folder, guard=guard, save_every=save_every, keep=keep)] if guard else []
        torch.manual_seed(0)
        model, status = Model(rate=rate), None
        try:
            fit(*spies, *callbacks, *hooks, model=model, ckpt_path=resume, **changes)
        except SystemExit as ending:
            status = ending.code
        return Trained(model.seen, dict(model.state_dict()), [], status)  # type: ignore[arg-type]
