"""The Hugging Face Trainer with Rerail's callback: the real library, a tiny model, one process."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from rerail.model.mailbox import ReportKind
from rerail_agent import hf, manifests
from rerail_agent.hf import SPLIT, RerailCallback, resume_from, split_batch
from tests.agent.frameworks import LINE, HuggingFace, losses_of, read_manifest, trainer_in
from tests.agent.jobs import Ranks, announced, ask_for_checkpoint
from tests.agent.test_manifests import snippets

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def names(folder: Path) -> list[str]:
    return sorted((path.name for path in folder.glob("checkpoint-*")), key=lambda name: int(name.split("-")[1]))


def rows_in_order(trainer: Trainer) -> list[torch.Tensor]:
    """The samples of two epochs, in the order in which the Trainer reads them."""
    loader, rows = trainer.get_train_dataloader(), []
    for epoch in range(2):
        loader.set_epoch(epoch)
        rows += [row for batch in loader for row in batch["input_ids"]]
    return rows


def without(trainer: Trainer, *skipped: range) -> list[dict[str, torch.Tensor]]:
    """The first epoch of a data set that never had these samples; those of the next epoch move up."""
    kept = [row for at, row in enumerate(rows_in_order(trainer)) if not any(at in ids for ids in skipped)]
    return [{"input_ids": row, "labels": row} for row in kept[:40]]


def test_every_save_of_the_trainer_becomes_a_checkpoint(new_guard, tmp_path, capsys):
    """The manifest lists the Trainer's files and ours; save_total_limit deletes. Tokens make a speed."""
    trainer = trainer_in(
        tmp_path, RerailCallback(new_guard()), save_total_limit=2, include_num_input_tokens_seen="all", logging_steps=3
    )
    trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-12", "checkpoint-8"]
    assert all(manifests.is_whole(path) for path in tmp_path.iterdir())
    table = read_manifest(tmp_path / "checkpoint-8")
    assert (table["reason"], table["consumed_samples"], table["world_size"]) == ("periodic", 32, 1)
    assert table["loss"] == losses_of(trainer)[6]  # the last that was known
    assert read_manifest(tmp_path / "checkpoint-12")["reason"] == "final"
    lines = list(LINE.finditer(capsys.readouterr().out))
    assert [int(line[1]) for line in lines] == [3, 6, 9, 12]
    assert all(int(line[4]) > 0 for line in lines[1:])


class Spoil(TrainerCallback):
    """Has the Trainer log a loss of NaN in some steps."""

    def __init__(self, steps: range) -> None:
        self.steps = steps

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.global_step in self.steps and "loss" in logs:
            logs["loss"] = float("nan")


@pytest.mark.parametrize("limit", [1, 2])
def test_the_checkpoints_from_before_a_problem_outlive_save_total_limit(new_guard, tmp_path, limit):
    """NaN from step 5 on, a save at every step: one more than the limit stays, until the loss has recovered."""
    seen: list[list[str]] = []
    look = [HuggingFace().before_step(step, lambda: seen.append(names(tmp_path))) for step in (5, 11)]
    settings = {"save_steps": 1, "save_total_limit": limit, "max_steps": 40}
    trainer = trainer_in(tmp_path, Spoil(range(5, 11)), RerailCallback(new_guard()), *look, **settings)
    trainer.train()
    before = [f"checkpoint-{step}" for step in range(5 - limit, 5)]
    assert seen == [before, [*before, "checkpoint-10"]]
    assert read_manifest(tmp_path / "checkpoint-40")["health"] == "clean"
    assert names(tmp_path) == [f"checkpoint-{step}" for step in range(41 - limit, 41)]
    assert trainer.args.save_total_limit == limit


def test_a_training_that_ends_in_trouble_keeps_its_clean_checkpoint(new_guard, tmp_path):
    """Also where the last save comes with the end of the epoch, after the last step."""
    settings = {"save_strategy": "epoch", "save_total_limit": 1, "num_train_epochs": 3, "max_steps": -1}
    trainer = trainer_in(tmp_path, Spoil(range(14, 100)), RerailCallback(new_guard()), **settings)
    trainer.train()
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-30"]
    assert trainer.args.save_total_limit == 1


@pytest.mark.parametrize("limit", [1, 2])
def test_the_best_checkpoint_stays_as_the_trainer_keeps_it(new_guard, tmp_path, limit):
    settings = {"save_total_limit": limit, "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 4}
    settings |= {"metric_for_best_model": "eval_loss", "greater_is_better": True, "learning_rate": 1e-2}
    left = []
    for folder, callbacks in (("with", [RerailCallback(new_guard())]), ("without", [])):
        trainer_in(tmp_path / folder, *callbacks, **settings).train()
        left.append(names(tmp_path / folder))
    assert left[0] == left[1]


def test_a_save_that_another_decision_overrules_is_done_a_step_later(new_guard, bucket, tmp_path):
    """With save_strategy="best" the Trainer decides again after an evaluation; the command is answered a step later."""
    ask = partial(ask_for_checkpoint, bucket)
    trainer = trainer_in(
        tmp_path,
        RerailCallback(new_guard(bucket)),
        HuggingFace().before_step(6, ask),
        save_strategy="best",
        eval_strategy="steps",
        eval_steps=3,
        metric_for_best_model="eval_loss",
        greater_is_better=True,  # the loss falls: no evaluation but the first is the best
        learning_rate=1e-2,
    )
    trainer.train()
    assert bucket.wait_for_report(ReportKind.CHECKPOINT).step == 7


@pytest.mark.parametrize("accumulated", [1, 2])
def test_skipped_samples_are_as_if_they_had_never_been_there(new_guard, bucket, tmp_path, accumulated):
    """After a rollback to step 4 and after the resume of that attempt; the ids count what was skipped."""
    changes = {"gradient_accumulation_steps": accumulated, "per_device_train_batch_size": 4 // accumulated}
    changes |= {"max_steps": 10}
    data = without(trainer_in(tmp_path / "order", **changes), range(20, 28))
    reference = trainer_in(tmp_path / "reference", **changes, data=data, train_sampling_strategy="sequential")
    reference.train()
    trainer_in(tmp_path / "run", RerailCallback(new_guard()), **changes).train()
    ordered = {"RERAIL_RUN": "night", "RERAIL_SKIP_SAMPLES": "20-27", "TRAINING_JOB_NAME": "night-a002"}
    for attempt, step in (("2", "4"), ("3", "8")):
        found = tmp_path / "run" / f"checkpoint-{step}"
        guard = new_guard(bucket, **ordered, RERAIL_ATTEMPT=attempt, RERAIL_RESUME_STEP=step)
        trainer = trainer_in(tmp_path / "run", RerailCallback(guard), **changes)
        trainer.train(resume_from_checkpoint=str(found))
        assert losses_of(trainer) == losses_of(reference)
        assert read_manifest(tmp_path / "run" / "checkpoint-8")["consumed_samples"] == 40
        assert read_manifest(tmp_path / "run" / "checkpoint-10")["consumed_samples"] == 48
        bucket.wait_for(partial(announced, bucket, ("rate", "skip"), attempt=int(attempt)))


@pytest.mark.parametrize(("parts", "size", "reported"), [(1, 4, True), (2, 2, True), (4, 1, False), (8, 1, False)])
def test_a_split_batch_trains_the_same_samples_in_each_step(
    new_guard, bucket, tmp_path, monkeypatch, parts, size, reported
):
    """From a checkpoint of whole batches on, over the short last batch of an epoch. Eight parts of four samples are
    four, and the ability is reported while there are more."""
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (42, 8))]
    whole = trainer_in(tmp_path, RerailCallback(new_guard()), data=data, splits=True, max_steps=14)
    whole.train()
    monkeypatch.setenv("RERAIL_MICROBATCHES", str(parts))
    guard = new_guard(bucket, RERAIL_RUN="night", RERAIL_ATTEMPT="2", TRAINING_JOB_NAME="night-a002")
    trainer = trainer_in(tmp_path, RerailCallback(guard), data=data, splits=True, max_steps=14)
    args = split_batch(trainer.args)  # a second time changes nothing
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (size, 4 // size)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert losses_of(trainer) == pytest.approx(losses_of(whole), rel=1e-6 if parts > 1 else 0)
    assert read_manifest(tmp_path / "checkpoint-12")["consumed_samples"] == 48
    bucket.wait_for(partial(announced, bucket, ("rate", "skip", *(["microbatch"] * reported)), attempt=2))


@pytest.mark.parametrize(("version", "size"), [("4.57.3", 4), ("5.1.0", 4), ("5.2.0", 2), ("5.10.0.dev0", 2)])
def test_an_older_trainer_that_resumes_with_whole_batches_gets_no_split(tmp_path, monkeypatch, capsys, version, size):
    monkeypatch.setenv("RERAIL_MICROBATCHES", "2")
    monkeypatch.setattr(hf, "VERSION", version)
    args = split_batch(TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=4))
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (size, 4 // size)
    assert getattr(args, SPLIT) == (("microbatch",) if size == 2 else ())
    assert (f"transformers {version} would resume" in capsys.readouterr().err) == (size == 4)


@pytest.mark.parametrize("text", ["two", "0", "10000"])
def test_a_malformed_split_leaves_the_batch_whole(tmp_path, monkeypatch, capsys, text):
    monkeypatch.setenv("RERAIL_MICROBATCHES", text)
    args = split_batch(TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=4))
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps, getattr(args, SPLIT)) == (4, 1, ())
    assert f"by 1 only: RERAIL_MICROBATCHES='{text}': must be a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["dataloader_drop_last", "auto_find_batch_size", "split_batches"])
def test_a_batch_that_is_not_the_trainers_to_divide_is_left_whole(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setenv("RERAIL_MICROBATCHES", "2")
    changes = {"accelerator_config": {name: True}} if name == "split_batches" else {name: True}
    args = split_batch(TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=4, **changes))
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps, getattr(args, SPLIT)) == (4, 1, ())
    assert f"divided by 1 only instead of 2: {name} is set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lost", "changes", "reported"),
    [
        ("", {}, []),
        ("scheduler.pt", {}, ["its schedule seems to have started again"]),
        ("", {"ignore_data_skip": True}, ["its first samples are trained on again"]),
    ],
)
def test_a_resume_that_repeats_the_schedule_or_data_is_reported_once(
    new_guard, tmp_path, capsys, lost, changes, reported
):
    trainer_in(tmp_path, RerailCallback(new_guard()), save_steps=8).train()
    (tmp_path / "checkpoint-8" / (lost or "none")).unlink(missing_ok=True)
    capsys.readouterr()
    trainer = trainer_in(tmp_path, RerailCallback(new_guard()), save_steps=8, **changes)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    lines = [line for line in "".join(capsys.readouterr()).splitlines() if "resume_mismatch" in line]
    assert [line.endswith(end) for line, end in zip(lines, reported, strict=True)] == [True] * len(reported)


def test_a_detector_state_that_is_nested_too_deeply_is_ignored(new_guard, tmp_path, capsys):
    (tmp_path / "rerail.json").write_text("[" * 100_000)
    RerailCallback(new_guard())._read_detector_state(tmp_path)
    assert "the detectors start empty" in capsys.readouterr().err


def test_the_page_for_users_shows_a_script_that_works(new_guard, tmp_path, capsys):
    new_guard().close(within_s=0.2)  # its environment is what Guard.from_env() finds
    (text,) = snippets("Hugging Face Trainer")
    like = trainer_in(tmp_path)
    settings = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    names = {"checkpoints": str(tmp_path), "model": like.model, "dataset": like.train_dataset}
    for steps in (3, 6):
        names["settings"] = {"max_steps": steps, **settings}
        exec(compile(text, "docs/scripts.md", "exec"), names)
        names["rerail"].guard.close(within_s=0.2)
        assert names["trainer"].state.log_history[-1]["step"] == steps
        assert resume_from(str(tmp_path)) == str(tmp_path / f"checkpoint-{steps}")
    assert capsys.readouterr().out.count("rerail step=") == 6


def test_all_ranks_save_and_stop_at_the_same_step(tmp_path):
    """SIGTERM comes to one of two: both leave after the same step, and its checkpoint has the state of both."""
    environment = {"SAGEMAKER_BASE_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment |= {"RERAIL_SKIP_SAMPLES": "16-23"}
    answers = Ranks(two_ranks, 2, environment=environment, folder=str(tmp_path / "out")).answers()
    (step, found, _), second = answers[0], answers[1]
    assert second[:2] == (step, found)
    assert read_manifest(Path(found))["consumed_samples"] == 8 * (step + 1)
    kept = [row for at, row in enumerate(rows_in_order(trainer_in(tmp_path))) if at not in range(16, 24)]
    for rank, (*_, seen) in enumerate(answers):  # a batch is dealt out to the ranks one after the other
        expected = [kept[8 * batch + 4 * rank :][:4] for batch in range(6)]  # an epoch has five
        assert seen[:6] == [[row.tolist() for row in rows] for rows in expected]
    assert found == str(tmp_path / "out" / f"checkpoint-{step}")
    names = [entry["name"] for entry in read_manifest(Path(found))["files"]]
    assert {"rng_state_0.pth", "rng_state_1.pth", "rerail.json"} <= set(names)
    assert (read_manifest(Path(found))["reason"], read_manifest(Path(found))["world_size"]) == ("sigterm", 2)


def two_ranks(rank: int, *, say: Any, folder: str) -> tuple[int, str | None, list[Any]]:
    os.environ["LOCAL_RANK"] = str(rank)
    callbacks = [RerailCallback()]
    if rank == 1:
        callbacks.append(HuggingFace().before_step(6, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    trainer = trainer_in(Path(folder), *callbacks, max_steps=40, ddp_backend="gloo", save_strategy="no")
    seen, collate = [], trainer.data_collator
    trainer.data_collator = lambda rows: seen.append([row["input_ids"].tolist() for row in rows]) or collate(rows)
    trainer.train(resume_from_checkpoint=resume_from(folder))
    return trainer.state.global_step, resume_from(folder), seen
