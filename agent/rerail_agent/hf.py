"""Connect Rerail to the Hugging Face Trainer: `RerailCallback` and `resume_from`.

    trainer = Trainer(..., callbacks=[rerail := RerailCallback()])
    trainer.train(resume_from_checkpoint=resume_from(args.output_dir))

`output_dir` is the folder that SageMaker uploads (/opt/ml/checkpoints), or one on a shared file system. The Trainer
saves to `checkpoint-<n>`. The callback asks for further saves and adds the manifest to each. It applies
`save_total_limit` itself, because the Trainer would delete the checkpoint that a rollback needs. It has the loss only
of the steps that the Trainer logs: with `logging_steps=1`, of all.

It leaves out the samples in RERAIL_SKIP_SAMPLES and scales the learning rate by RERAIL_LR_SCALE. The Trainer makes as
many steps as without a skip. `split_batch(args)` has it compute each batch in RERAIL_MICROBATCHES parts.
"""

import json
import math
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from accelerate.data_loader import (  # type: ignore[import-untyped,unused-ignore]
    BatchSamplerShard,
    DataLoaderShard,
    SeedableRandomSampler,
)
from packaging.version import parse
from torch.utils.data import IterableDataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers import __version__ as VERSION

from rerail.model.finding import Finding, Kind, Level
from rerail.model.skipped_samples import Ranges
from rerail_agent import data_order, manifests
from rerail_agent.checkpoints.manifest import DamagedCheckpoint, read_start
from rerail_agent.data_order import DataOrder, OrderedBatches
from rerail_agent.detection import CLEAN
from rerail_agent.fault_isolation import FaultIsolation, print_line
from rerail_agent.guard import Guard
from rerail_agent.ladder import prepare_rate
from rerail_agent.settings import read_microbatches, read_skipped_samples

# What the detectors have learned, beside the Trainer's files.
DETECTOR_STATE = "rerail.json"
# The attribute with the abilities that split_batch() leaves for the callback.
SPLIT = "rerail_split_abilities"
# Settings with which more, smaller batches would be another training.
FIXED = ("deepspeed", "auto_find_batch_size", "split_batches", "dataloader_drop_last", "gradient_accumulation_kwargs")
# Before it the Trainer takes the size of a batch from the checkpoint, and the accumulation from the arguments.
OLDEST_SPLIT = "5.2"
# Checkpoints that only the automatic interval has asked for, and that stay where the Trainer deletes none itself.
AUTOMATIC_KEPT = 3


def resume_from(output_dir: str | None = None) -> str | None:
    """Return the newest complete checkpoint to resume from, for `train(resume_from_checkpoint=...)`."""
    found = manifests.resume_from(output_dir)
    return None if found is None else str(found)


def split_batch(args: TrainingArguments) -> TrainingArguments:
    """Divide each device's batch into RERAIL_MICROBATCHES parts, for a Trainer that is not made yet; return `args`.

    Every step has the same samples as before. The callback reports `microbatch` while a batch can be divided further.
    """
    if hasattr(args, SPLIT):
        return args
    asked = 1
    obstacle = _find_split_obstacle(args)
    try:
        asked = read_microbatches(os.environ)
    except ValueError as error:
        obstacle = str(error)
    parts = 1 if obstacle else math.gcd(args.per_device_train_batch_size, asked)
    args.per_device_train_batch_size //= parts
    args.gradient_accumulation_steps *= parts
    args.per_device_eval_batch_size = max(1, args.per_device_eval_batch_size // parts)
    setattr(args, SPLIT, () if obstacle or args.per_device_train_batch_size % 2 else ("microbatch",))
    if (obstacle or parts < asked) and manifests.get_rank() == 0:
        why = obstacle or f"a device's batch has {parts * args.per_device_train_batch_size} samples"
        print_line(f"batches can be divided by {parts} only{f' instead of {asked}' if asked > parts else ''}: {why}")
    return args


def _find_split_obstacle(args: TrainingArguments) -> str:
    """Return why batches cannot be divided without another training, or an empty string."""
    if parse(VERSION) < parse(OLDEST_SPLIT):
        return f"transformers {VERSION} would resume with the checkpoint's batches; use {OLDEST_SPLIT} or later"
    settings = vars(args) | vars(getattr(args, "accelerator_config", args))
    return next((f"{name} is set" for name in FIXED if settings.get(name)), "")


class RerailCallback(TrainerCallback):
    """Report each step to the guard; make the Trainer save and stop when the guard asks, on all ranks at one step."""

    def __init__(self, guard: Guard | None = None) -> None:
        self._skipped = read_skipped_samples(os.environ)
        self.guard = Guard.from_env() if guard is None else guard
        self._position: DataPosition | None = None
        self._applied_rate = 1.0
        self._pending_step: int | None = None  # a step whose loss the Trainer is about to log
        self._pending_reason = ""  # why a checkpoint is wanted that is not saved yet
        self._is_automatic = False  # whether nothing but the automatic interval wants it
        self._automatic: list[Path] = []
        self._limit: int | None = None  # the save_total_limit that the Trainer no longer applies itself
        self._tokens = 0
        self._loss: float | None = None
        self._phase, self._is_within = ExitStack(), False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._leave()
        self._take_over_deletion(args, state)
        self._tokens = int(state.num_input_tokens_seen)
        if state.global_step:
            self._read_detector_state(_folder(args, state))
            if args.ignore_data_skip and (state.epoch or 0) % 1:
                self._report_repeated_data(state.global_step)
        can_scale, self._applied_rate = prepare_rate([kwargs.get("optimizer")])
        loader = kwargs.get("train_dataloader")
        can_skip = FaultIsolation().once("skipping data", lambda: self._prepare_data(args, state, loader), False)
        able = {"rate": can_scale, "skip": can_skip}
        self.guard.announce(*(name for name, can in able.items() if can), *getattr(args, SPLIT, ()))

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._position is not None:
            self._position.begin_epoch()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._leave()
        if self._pending_step is not None:  # a Trainer whose log() does not call the callbacks
            self._report_step(state, {})

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        self._pending_step = state.global_step
        if control.should_log:
            return control  # on_log comes before the Trainer saves, and knows the loss
        self._report_step(state, {})
        return self._update_control(control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> TrainerControl:
        if self._pending_step == state.global_step and logs and "loss" in logs:
            self._report_step(state, logs)
            return self._update_control(control)
        return control

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if self.guard.should_stop:  # saved already, and the time is short
            control.should_save = control.should_evaluate = False
        if self._limit is not None and control.should_training_stop and manifests.gather(self.guard.onset)[0] is None:
            args.save_total_limit = self._limit  # for what the Trainer deletes at the end
        self._start_phase(control)
        return control

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not self._is_within:
            self._enter("evaluation")

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._leave()
        self._start_phase(control)

    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any
    ) -> None:
        self._leave()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        reason, self._pending_reason = self._pending_reason or "periodic", ""
        folder = _folder(args, state)
        manifests.gather(None)  # every rank has written its random state and its shards
        try:
            self._write_detector_state(folder)
        except OSError as error:
            print_line(
                f"{folder / DETECTOR_STATE} cannot be written ({error}); after a resume the detectors start empty"
            )
        is_automatic, self._is_automatic = self._is_automatic, False
        is_complete = manifests.finish_checkpoint(
            self.guard,
            folder,
            step=state.global_step,
            reason="final" if reason == "periodic" and state.global_step >= state.max_steps else reason,
            loss=self._loss,
            consumed_samples=self._count_samples(args, state),
        )
        if self._limit is not None:
            self._apply_limit(args, state, self._limit)
        elif is_automatic and args.save_total_limit is None:
            self._delete_outdated(folder, is_clean=is_complete and self.guard.health == CLEAN)
        self._leave()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # The script makes no more steps from here on, which is not a hang.
        self._leave()
        self._enter("evaluation")
        if self._limit is not None:
            args.save_total_limit, self._limit = self._limit, None

    def _take_over_deletion(self, args: TrainingArguments, state: TrainerState) -> None:
        """Keep the Trainer from deleting checkpoints: it does so before on_save, and knows no problem with the loss."""
        limit = args.save_total_limit
        if limit is not None and limit > 0 and not state.is_hyper_param_search:  # its trials have their own folders
            args.save_total_limit, self._limit = None, limit

    def _apply_limit(self, args: TrainingArguments, state: TrainerState, limit: int) -> None:
        """Delete as the Trainer would, but while a problem with the loss is open nothing from before it."""
        root, newest = Path(str(args.output_dir)), state.global_step
        listed = {manifests.parse_step(path): path for path in manifests.list_folders(root)}  # the newest first
        own = {step: path for step, path in listed.items() if step is not None and step <= newest}
        best = None if state.best_model_checkpoint is None else manifests.parse_step(Path(state.best_model_checkpoint))
        # Rank 0 alone writes the manifests, and knows the onset.
        onset = self.guard.onset
        onset, safe = manifests.gather((onset, manifests.find_safe(root, newest=newest, onset=onset)))[0]
        spared = {newest, best} & {*own}
        others = [step for step in own if step not in spared or step == newest]
        keep = max(1, limit - len(spared - {newest}))
        staying = manifests.choose_last(others, keep=keep, onset=onset) | spared | {safe}
        for step in {*own} - staying if args.should_save else ():
            manifests.delete_checkpoint(own[step])

    def _delete_outdated(self, newest: Path, *, is_clean: bool) -> None:
        """Delete automatic checkpoints of this process beyond the newest, where the Trainer would keep them all."""
        self._automatic.append(newest)
        if manifests.gather(is_clean)[0]:  # rank 0 alone writes the manifest, and knows the health
            outdated, self._automatic = self._automatic[:-AUTOMATIC_KEPT], self._automatic[-AUTOMATIC_KEPT:]
            for folder in outdated if manifests.is_host_leader() else ():
                manifests.delete_checkpoint(folder)

    def _report_step(self, state: TrainerState, logs: dict[str, Any]) -> None:
        """Report the pending step with what the Trainer has logged of it.

        The logged loss is the mean over the ranks, and over the steps since the last log.
        """
        step, self._pending_step = self._pending_step, None
        if step is None:
            return
        seen, self._tokens = self._tokens, int(state.num_input_tokens_seen)
        self._loss = logs.get("loss", self._loss)
        self.guard.step(
            step=step,
            loss=logs.get("loss"),
            grad_norm=logs.get("grad_norm"),
            lr=logs["learning_rate"] * self._applied_rate if "learning_rate" in logs else None,
            tokens=self._tokens - seen or None,
            extra={"epoch": logs["epoch"]} if "epoch" in logs else None,
        )
        if self.guard.wants_checkpoint:
            self._pending_reason = self.guard.reason

    def _update_control(self, control: TrainerControl) -> TrainerControl:
        """Set what the Trainer does after this step, as the guard asks."""
        if self.guard.fenced:
            control.should_save, self._pending_reason = False, ""
        elif self._pending_reason:
            self._is_automatic = self._pending_reason == "periodic" and not control.should_save
            control.should_save = True
        if self.guard.should_stop:
            control.should_training_stop = True
            control.should_evaluate = False  # the machine ends in two minutes: save first
        self._start_phase(control)
        return control

    def _start_phase(self, control: TrainerControl) -> None:
        """Enter the next phase: the Trainer has no event before an evaluation or a save, and evaluates first."""
        self._leave()
        if control.should_evaluate or control.should_save:
            self._enter("evaluation" if control.should_evaluate else "save")

    def _enter(self, phase: str) -> None:
        self._phase.enter_context(self.guard.phase(phase))
        self._is_within = True

    def _leave(self) -> None:
        self._phase.close()
        self._is_within = False

    def _prepare_data(self, args: TrainingArguments, state: TrainerState, loader: Any) -> bool:
        """Put the data where the checkpoint's was, without the samples to skip; return whether that is possible."""
        self._position = None
        if obstacle := _find_data_obstacle(args, loader):
            if manifests.get_rank() == 0:
                print_line(data_order.explain(obstacle, self._skipped))
            return False
        consumed = manifests.gather(_read_consumed_samples(_folder(args, state)))[0] if state.global_step else 0
        self._position = DataPosition(args, state, loader, self._skipped, consumed=consumed)
        return True

    def _report_repeated_data(self, step: int) -> None:
        text = (
            "resumed within an epoch with ignore_data_skip: unless the data set itself goes on where it was, its first "
            "samples are trained on again"
        )
        self.guard.report(Finding(Kind.RESUME_MISMATCH, Level.WARN, step, step, text))

    def _count_samples(self, args: TrainingArguments, state: TrainerState) -> int:
        """Return the id of the next sample after the Trainer's step."""
        if self._position is not None:
            return self._position.count_samples(state.global_step)
        return int(state.global_step * args.train_batch_size * args.gradient_accumulation_steps * args.world_size)

    def _write_detector_state(self, folder: Path) -> None:
        if manifests.get_rank() == 0 and folder.is_dir():
            (folder / DETECTOR_STATE).write_text(json.dumps(self.guard.state_dict()))

    def _read_detector_state(self, folder: Path) -> None:
        try:
            self.guard.load_state_dict(json.loads(read_start(folder / DETECTOR_STATE)))
        except FileNotFoundError:
            pass  # saved without the agent
        except (OSError, ValueError, RecursionError) as error:
            print_line(f"{folder / DETECTOR_STATE} cannot be read ({error}); the detectors start empty")


class DataPosition:
    """The position in the data, which the Trainer itself only knows as a number of steps.

    The Trainer resumes at a number of batches in an epoch. They are counted on from the checkpoint's position.
    """

    def __init__(
        self, args: TrainingArguments, state: TrainerState, loader: Any, skipped: Ranges, *, consumed: int | None
    ) -> None:
        batches = loader.batch_sampler
        size = batches.batch_size * getattr(batches, "num_processes", 1)
        self._accumulated = args.gradient_accumulation_steps
        self._epoch_steps = max(1, -(-len(batches) // self._accumulated))
        self._order = DataOrder(len(batches), self._epoch_steps * self._accumulated * size, size, skipped)
        # The Trainer's batches before this attempt, and the number of the first batch of this attempt.
        self._batches = self._count_batches(state.global_step)
        first = self._order.advance(0, self._batches) if consumed is None else self._order.find(consumed)
        self._first = self._order.advance(first, 0)
        self._epoch = state.global_step // self._epoch_steps - 1
        self._ordered: OrderedBatches | None = None
        if self._first != self._batches or self._order.skipped:
            self._ordered = data_order.install(loader.base_dataloader, self._order)

    def begin_epoch(self) -> None:
        self._epoch += 1
        done = self._epoch * self._order.epoch_batches - self._batches
        if self._ordered is not None:
            self._ordered.next_batch = self._order.advance(self._first, max(0, done))
            self._ordered.dropped_by_trainer = max(0, -done)

    def count_samples(self, step: int) -> int:
        """Return the id of the next sample after a step."""
        return self._order.start(self._order.advance(self._first, self._count_batches(step) - self._batches))

    def _count_batches(self, step: int) -> int:
        epoch, steps = divmod(step, self._epoch_steps)
        return epoch * self._order.epoch_batches + min(steps * self._accumulated, self._order.epoch_batches)


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def _find_data_obstacle(args: TrainingArguments, loader: Any) -> str:
    """Return why the order of the Trainer's data is not known, or an empty string."""
    if args.ignore_data_skip:
        return "with ignore_data_skip the position in the data is not known after a resume"
    if isinstance(getattr(loader, "dataset", None), IterableDataset) or type(loader) is not DataLoaderShard:
        return "the order of an iterable dataset or another loader is not known; use a dataset with indices"
    batches = loader.batch_sampler
    if type(batches) is BatchSamplerShard:
        if batches.split_batches or not (batches.even_batches or batches.drop_last):
            return "accelerator_config divides batches among the ranks; leave split_batches and even_batches unset"
        batches = batches.batch_sampler
    return data_order.find_obstacle(
        loader.base_dataloader,
        ranks=1,
        batches=batches,
        samplers=[SeedableRandomSampler],
        remedy='use train_sampling_strategy "random" or "sequential"',
    )


def _read_consumed_samples(folder: Path) -> int | None:
    """Return the position in the data of a checkpoint; None if its manifest does not have it."""
    try:
        return manifests.read(folder).consumed_samples or None
    except DamagedCheckpoint:
        return None
