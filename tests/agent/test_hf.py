"""The Hugging Face Trainer with Rerail's callback: the real library, a tiny model, one process."""

import json
import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from rerail.model import checkpoints
from rerail.model.mailbox import ReportKind
from rerail_agent import manifests
from rerail_agent.hf import RerailCallback, resume_from
from tests.agent.jobs import Ranks, announced, ask_for_checkpoint, fence
from tests.agent.test_manifests import snippets

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
STEPS = 12
LINE = re.compile(r"^rerail step=(\d+) loss=(\S+) grad_norm=(\S+) lr=(\S+) (?:tokens_per_s=(\d+) )?nonfinite=0", re.M)


class Each(TrainerCallback):
    """Does something at the beginning of a step."""

    def __init__(self, step: int, work: Any) -> None:
        self.step, self.work = step, work

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            self.work()


def trainer_in(folder: Path, *callbacks: TrainerCallback, **changes: Any) -> Trainer:
    """A model with dropout, a few hundred samples, and the same seed every time."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    ids = torch.randint(0, 32, (40, 8), generator=torch.Generator().manual_seed(1))
    data = changes.pop("data", [{"input_ids": row, "labels": row} for row in ids])
    settings = {"max_steps": STEPS, "save_steps": 4, "logging_steps": 1, "per_device_train_batch_size": 4, **changes}
    settings |= {"use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 3, "dataloader_pin_memory": False}
    args = TrainingArguments(output_dir=str(folder), **settings)
    return Trainer(model=model, args=args, train_dataset=data, eval_dataset=list(data)[:4], callbacks=list(callbacks))


def losses(trainer: Trainer) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


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


def as_the_supervisor_sees(folder: Path) -> checkpoints.Checkpoint:
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return checkpoints.read_manifest((folder / "manifest.json").read_text(), uri=f"{folder}/manifest.json", sizes=sizes)


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture(scope="module")
def undisturbed(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """The same training without Rerail."""
    trainer = trainer_in(tmp_path_factory.mktemp("undisturbed"))
    trainer.result = trainer.train()
    return trainer


def test_training_is_what_it_was_without_the_callback(undisturbed, new_guard, tmp_path, capsys):
    """Outside SageMaker: the same losses and weights bit for bit, and a metric line for each step that is logged."""
    trainer = trainer_in(tmp_path, RerailCallback(new_guard()))
    assert trainer.train().training_loss == undisturbed.result.training_loss
    assert losses(trainer) == losses(undisturbed)
    assert all(torch.equal(value, weights(undisturbed)[name]) for name, value in weights(trainer).items())
    lines = {int(line[1]): line for line in LINE.finditer(capsys.readouterr().out)}
    assert {step: float(line[2]) for step, line in lines.items()} == pytest.approx(losses(trainer), rel=1e-8)
    assert float(lines[1][4]) == pytest.approx(5e-5)


def test_every_save_of_the_trainer_becomes_a_checkpoint(new_guard, tmp_path, capsys):
    """The manifest lists the Trainer's files and ours; save_total_limit deletes. Tokens make a speed."""
    trainer = trainer_in(
        tmp_path, RerailCallback(new_guard()), save_total_limit=2, include_num_input_tokens_seen="all", logging_steps=3
    )
    trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-12", "checkpoint-8"]
    assert all(manifests.is_whole(path) for path in tmp_path.iterdir())
    seen = as_the_supervisor_sees(tmp_path / "checkpoint-12")
    assert (seen.step, seen.attempt, seen.is_whole, seen.health) == (12, 1, True, "clean")
    table = manifest(tmp_path / "checkpoint-8")
    assert (table["reason"], table["consumed_samples"], table["world_size"]) == ("periodic", 32, 1)
    assert table["loss"] == losses(trainer)[6]  # the last that was known
    assert manifest(tmp_path / "checkpoint-12")["reason"] == "final"
    lines = list(LINE.finditer(capsys.readouterr().out))
    assert [int(line[1]) for line in lines] == [3, 6, 9, 12]
    assert all(int(line[5]) > 0 for line in lines[1:])


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
    look = [Each(step, lambda: seen.append(names(tmp_path))) for step in (5, 11)]
    settings = {"save_steps": 1, "save_total_limit": limit, "max_steps": 60}
    trainer = trainer_in(tmp_path, Spoil(range(5, 11)), RerailCallback(new_guard()), *look, **settings)
    trainer.train()
    before = [f"checkpoint-{step}" for step in range(5 - limit, 5)]
    assert seen == [before, [*before, "checkpoint-10"]]
    assert manifest(tmp_path / "checkpoint-60")["health"] == "clean"
    assert names(tmp_path) == [f"checkpoint-{step}" for step in range(61 - limit, 61)]
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


@pytest.mark.parametrize("logging_steps", [1, 5])
def test_a_checkpoint_is_saved_when_the_supervisor_asks(new_guard, bucket, tmp_path, logging_steps):
    """At the very step in which the command arrives, be it logged or not; the report names its folder."""
    guard = new_guard(bucket)
    ask = partial(ask_for_checkpoint, bucket)
    trainer = trainer_in(tmp_path, RerailCallback(guard), Each(6, ask), save_strategy="no", logging_steps=logging_steps)
    trainer.train()
    report = bucket.wait_for_report(ReportKind.CHECKPOINT)
    assert (report.command, report.step, report.durability) == ("c1", 6, "local")
    assert report.path == str(tmp_path / "checkpoint-6")
    assert as_the_supervisor_sees(tmp_path / "checkpoint-6").is_whole
    assert manifest(tmp_path / "checkpoint-6")["reason"] == "emergency"
    assert trainer.state.global_step == STEPS
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-6"]


def test_a_save_that_another_decision_overrules_is_done_a_step_later(new_guard, bucket, tmp_path):
    """With save_strategy="best" the Trainer decides again after an evaluation; the command is answered a step later."""
    ask = partial(ask_for_checkpoint, bucket)
    trainer = trainer_in(
        tmp_path,
        RerailCallback(new_guard(bucket)),
        Each(6, ask),
        save_strategy="best",
        eval_strategy="steps",
        eval_steps=3,
        metric_for_best_model="eval_loss",
        greater_is_better=True,  # the loss falls: no evaluation but the first is the best
        learning_rate=1e-2,
    )
    trainer.train()
    assert bucket.wait_for_report(ReportKind.CHECKPOINT).step == 7


def test_sigterm_saves_and_ends_the_training(new_guard, tmp_path):
    """After the step that is under way, without the evaluation and the epoch's end that were due; train() returns."""
    guard = new_guard()
    evaluated = []

    class Spy(TrainerCallback):
        def on_evaluate(self, args, state, control, **kwargs):
            evaluated.append(state.global_step)

    trainer = trainer_in(
        tmp_path,
        RerailCallback(guard),
        Spy(),
        Each(5, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        eval_strategy="steps",
        eval_steps=5,
    )
    trainer.train()
    assert guard.should_stop
    assert trainer.state.global_step == 5
    assert evaluated == []
    assert manifest(tmp_path / "checkpoint-5")["reason"] == "sigterm"
    assert resume_from(str(tmp_path)) == str(tmp_path / "checkpoint-5")


def test_a_killed_training_goes_on_as_if_nothing_had_happened(undisturbed, new_guard, tmp_path):
    """Killed at step 10, with a torn save lying there: from step 8 on, the same losses and weights bit for bit."""
    child = os.fork()
    if child == 0:
        die = Each(10, lambda: os.kill(os.getpid(), signal.SIGKILL))
        trainer_in(tmp_path, RerailCallback(new_guard()), die).train()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    torn = tmp_path / "checkpoint-9"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"half")

    assert resume_from(str(tmp_path)) == str(tmp_path / "checkpoint-8")
    trainer = trainer_in(tmp_path, RerailCallback(new_guard()))
    trainer.train(resume_from_checkpoint=resume_from(str(tmp_path)))
    assert losses(trainer) == losses(undisturbed)  # the first eight are remembered in the checkpoint
    assert all(torch.equal(value, weights(undisturbed)[name]) for name, value in weights(trainer).items())


def test_an_attempt_that_rolls_back_trains_those_steps_again(undisturbed, new_guard, tmp_path):
    """What came after the step is quarantined, where the Trainer does not delete it, and saved again."""
    trainer_in(tmp_path, RerailCallback(new_guard()), save_total_limit=3).train()
    guard = new_guard(RERAIL_RUN="local", RERAIL_ATTEMPT="2", RERAIL_RESUME_STEP="4", TRAINING_JOB_NAME="local-a002")
    found = resume_from(str(tmp_path))
    assert found == str(tmp_path / "checkpoint-4")
    assert sorted(path.name for path in (tmp_path / "quarantine").iterdir()) == ["a1-checkpoint-12", "a1-checkpoint-8"]
    trainer = trainer_in(tmp_path, RerailCallback(guard), save_total_limit=3)
    trainer.train(resume_from_checkpoint=found)
    assert losses(trainer) == losses(undisturbed)
    assert manifest(tmp_path / "checkpoint-12")["attempt"] == 2
    assert manifests.is_whole(tmp_path / "checkpoint-4")


def test_a_fenced_attempt_saves_no_more(new_guard, bucket, tmp_path):
    guard = new_guard(bucket)

    trainer_in(tmp_path, RerailCallback(guard), Each(6, partial(fence, bucket))).train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]


def test_a_manifest_that_cannot_be_written_is_refused_and_training_goes_on(new_guard, bucket, tmp_path, monkeypatch):
    """The supervisor receives the reason, and need not wait for its deadline."""

    def full(*arguments: Any, **fields: Any):
        raise OSError(28, "No space left on device")

    ask = partial(ask_for_checkpoint, bucket)
    monkeypatch.setattr(manifests, "commit", full)
    trainer = trainer_in(tmp_path, RerailCallback(new_guard(bucket)), Each(6, ask), save_strategy="no")
    trainer.train()
    report = bucket.wait_for_report(ReportKind.REFUSED)
    assert "No space left" in report.reason
    assert trainer.state.global_step == STEPS


def test_evaluations_and_saves_are_no_slow_steps(new_guard, bucket, tmp_path):
    """The heartbeat tells them apart, and what comes after the last step is no hang either."""
    guard = new_guard(bucket)
    phases = []

    class Spy(TrainerCallback):
        def on_prediction_step(self, args, state, control, **kwargs):
            phases.append(("evaluating", guard._progress.phase))

        def on_save(self, args, state, control, **kwargs):
            phases.append(("saving", guard._progress.phase))

        def on_substep_end(self, args, state, control, **kwargs):
            phases.append(("stepping", guard._progress.phase))

    spy, callback = Spy(), RerailCallback(guard)
    settings = {"eval_strategy": "steps", "eval_steps": 6, "save_steps": 6, "gradient_accumulation_steps": 2}
    trainer = trainer_in(tmp_path, spy, callback, **settings)
    trainer.train()
    assert set(phases) == {
        ("evaluating", "evaluation"),
        ("saving", "save"),
        ("stepping", "step"),
        ("stepping", "startup"),
    }
    assert guard._progress.phase == "evaluation"
    trainer.evaluate()


def test_the_detectors_remember_across_a_resume(new_guard, tmp_path):
    """What they had learnt by step 8 is what they know when a successor starts there."""
    first, second = new_guard(), new_guard()
    trainer_in(tmp_path, RerailCallback(first), max_steps=8).train()
    found = resume_from(str(tmp_path))
    trainer = trainer_in(tmp_path, RerailCallback(second), max_steps=9, save_strategy="no")
    assert first.state_dict() != second.state_dict()
    trainer.add_callback(Each(9, lambda: remembered.append(second.state_dict())))
    remembered: list[Any] = []
    trainer.train(resume_from_checkpoint=found)
    assert remembered == [first.state_dict()]


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
        assert losses(trainer) == losses(reference)
        assert manifest(tmp_path / "run" / "checkpoint-8")["consumed_samples"] == 40
        assert manifest(tmp_path / "run" / "checkpoint-10")["consumed_samples"] == 48
        bucket.wait_for(partial(announced, bucket, ("rate", "skip"), attempt=int(attempt)))


def test_data_of_unknown_order_is_not_skipped_and_the_log_has_the_reason(
    undisturbed, new_guard, bucket, tmp_path, capsys
):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(undisturbed.train_dataset)

    for data, name in ((Stream(), "iterable dataset"), (None, "LengthGroupedSampler")):
        changes = {"data": data} if data else {"train_sampling_strategy": "group_by_length"}
        results = []
        for callbacks in ([], [RerailCallback(new_guard(bucket, RERAIL_SKIP_SAMPLES="8-15"))]):
            results.append(trainer_in(tmp_path, *callbacks, **changes, max_steps=4))
            results[-1].train()
        assert losses(results[0]) == losses(results[1])
        ignored = [line for line in capsys.readouterr().err.splitlines() if "RERAIL_SKIP_SAMPLES is ignored" in line]
        assert len(ignored) == 1 and name in ignored[0]
        bucket.wait_for(partial(announced, bucket, ("rate",)))


def test_a_lower_rate_is_applied_once_over_resumes_and_ends_with_its_attempt(new_guard, tmp_path, capsys):
    """As a schedule with half the rate; what is saved has the rate of the schedule."""
    reference = trainer_in(tmp_path / "reference", learning_rate=0.5e-2)
    reference.train()
    callback = RerailCallback(new_guard(RERAIL_LR_SCALE="0.5"))
    trainer_in(tmp_path / "run", callback, max_steps=STEPS, learning_rate=1e-2).train()
    for step in (4, 8):
        trainer = trainer_in(tmp_path / "run", RerailCallback(new_guard()), learning_rate=1e-2)
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{step}"))
        assert losses(trainer) == losses(reference)
        assert all(torch.equal(value, weights(reference)[name]) for name, value in weights(trainer).items())
    lines = LINE.findall(capsys.readouterr().out)
    assert float(lines[0][3]) == pytest.approx(0.5e-2)
    new_guard(RERAIL_LR_SCALE="")
    trainer = trainer_in(tmp_path / "run", RerailCallback(new_guard()), learning_rate=1e-2)
    trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-8"))
    lines = LINE.findall(capsys.readouterr().out)
    assert float(lines[0][3]) == pytest.approx(1e-2 * (STEPS - 8) / STEPS, rel=1e-4)


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
    assert manifest(Path(found))["consumed_samples"] == 8 * (step + 1)
    kept = [row for at, row in enumerate(rows_in_order(trainer_in(tmp_path))) if at not in range(16, 24)]
    for rank, (*_, seen) in enumerate(answers):  # a batch is dealt out to the ranks one after the other
        expected = [kept[8 * batch + 4 * rank :][:4] for batch in range(6)]  # an epoch has five
        assert seen[:6] == [[row.tolist() for row in rows] for rows in expected]
    assert found == str(tmp_path / "out" / f"checkpoint-{step}")
    names = [entry["name"] for entry in manifest(Path(found))["files"]]
    assert {"rng_state_0.pth", "rng_state_1.pth", "rerail.json"} <= set(names)
    assert (manifest(Path(found))["reason"], manifest(Path(found))["world_size"]) == ("sigterm", 2)


def two_ranks(rank: int, *, say: Any, folder: str) -> tuple[int, str | None, list[Any]]:
    os.environ["LOCAL_RANK"] = str(rank)
    callbacks = [RerailCallback()]
    if rank == 1:
        callbacks.append(Each(6, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    trainer = trainer_in(Path(folder), *callbacks, max_steps=40, ddp_backend="gloo", save_strategy="no")
    seen, collate = [], trainer.data_collator
    trainer.data_collator = lambda rows: seen.append([row["input_ids"].tolist() for row in rows]) or collate(rows)
    trainer.train(resume_from_checkpoint=resume_from(folder))
    return trainer.state.global_step, resume_from(folder), seen
