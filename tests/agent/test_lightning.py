"""PyTorch Lightning with Rerail's callback: the real library, a tiny model, one process."""

import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, DistributedSampler

from rerail_agent import manifests
from rerail_agent.lightning import RerailCallback, resume_from
from tests.agent.frameworks import LINE, Batches, Lightning, Model, fit, read_manifest
from tests.agent.jobs import Ranks, announced
from tests.agent.test_manifests import snippets

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


@pytest.mark.parametrize("top", [1, 2])
def test_the_last_checkpoint_from_before_a_problem_outlives_save_top_k(new_guard, tmp_path, top):
    """A NaN in steps 5 to 10, a save of Lightning's own at every step: one more stays until the loss has recovered."""

    class Spoilt(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return {"loss": loss, "spoilt": True} if 5 <= self.global_step + 1 <= 10 else loss

    def spoil(outputs: Any) -> Any:
        return {"loss": torch.tensor(float("nan"))} if "spoilt" in outputs else outputs

    class Spoiling(RerailCallback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(trainer, pl_module, spoil(outputs), batch, batch_idx)

    seen: list[list[str]] = []

    def look() -> None:
        seen.append(sorted(path.name for path in tmp_path.glob("*.ckpt")))

    own = ModelCheckpoint(tmp_path, "{step:02d}", monitor="step", mode="max", save_top_k=top, every_n_train_steps=1)
    callback = Spoiling(tmp_path / "rerail", guard=new_guard())
    looks = [Lightning().before_step(step, look) for step in (5, 11)]
    fit(callback, own, *looks, model=Spoilt(), max_steps=40, enable_checkpointing=True)
    before = [f"step={step:02d}.ckpt" for step in range(5 - top, 5)]
    within = [f"step={step:02d}.ckpt" for step in range(11 - top, 11)]
    assert seen == [before, ["step=04.ckpt", *within]]
    left = sorted(path.name for path in tmp_path.glob("*.ckpt"))
    assert left == [f"step={step}.ckpt" for step in range(41 - top, 41)]


def test_accumulated_gradients_make_one_step_with_their_mean_loss(new_guard, tmp_path, capsys):
    """Tokens are counted over all batches of a step, and what the module logs as grad_norm is passed on."""
    callback = RerailCallback(tmp_path, guard=new_guard(), tokens=lambda batch: batch[0].numel())
    model = fit(callback, model=Model(grad_norm=1.5), accumulate_grad_batches=3, max_steps=3)
    out = capsys.readouterr().out
    # Eight batches an epoch: the third step has but two.
    means = [sum(model.seen[:3]) / 3, sum(model.seen[3:6]) / 3, sum(model.seen[6:8]) / 2]
    assert [float(line[2]) for line in LINE.finditer(out)] == pytest.approx(means, rel=1e-5)
    assert out.count("grad_norm=1.5") == 3
    assert all(line[4] for line in list(LINE.finditer(out))[1:])


def test_checkpoints_are_saved_now_and_then_and_the_last_ones_stay(new_guard, tmp_path):
    """Every five steps and at the end; the manifest lists them."""
    model = fit(RerailCallback(tmp_path, guard=new_guard(), save_every=5, keep=2))
    assert names(tmp_path) == ["step-000000010", "step-000000012"]
    folder = tmp_path / "step-000000010"
    assert manifests.is_whole(folder)
    table = read_manifest(folder)
    assert (table["reason"], table["consumed_samples"], table["health"]) == ("periodic", 40, "clean")
    assert read_manifest(tmp_path / "step-000000012")["reason"] == "final"
    assert table["loss"] == pytest.approx(model.seen[9])


def make_loader(*, order: Sequence[int] = range(32), **settings: Any) -> DataLoader:
    rows = [(x, y) for xs, ys in Batches().data for x, y in zip(xs, ys, strict=True)]
    return DataLoader([rows[at] for at in order], batch_size=4, **settings)


def shuffled(seed: int) -> DataLoader:
    return make_loader(sampler=DistributedSampler(range(32), 1, 0, seed=seed))


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("workers", [0, 1])
def test_skipped_samples_are_as_if_they_had_never_been_there(
    new_guard, bucket, tmp_path, monkeypatch, accumulated, workers
):
    """After a rollback to step 2 and after the resume of that attempt; the data is that of a plain DataLoader."""
    sampler = DistributedSampler(range(32), 1, 0)
    order = list(sampler)
    sampler.set_epoch(1)
    order = [at for number, at in enumerate([*order, *sampler]) if number not in range(20, 28)]
    changes = {"max_steps": 8 // accumulated, "accumulate_grad_batches": accumulated}
    reference = fit(loader=make_loader(order=order[:32]), **changes)
    every = {"save_every": 2 // accumulated, "keep": 9}
    fit(RerailCallback(tmp_path, guard=new_guard(), **every), loader=shuffled(0), **changes)
    for attempt, batches in (("2", 2), ("3", 6)):
        step = batches // accumulated
        monkeypatch.setenv("RERAIL_SKIP_SAMPLES", "20-27")
        guard = new_guard(bucket, RERAIL_RUN="night", RERAIL_ATTEMPT=attempt, RERAIL_RESUME_STEP=str(step))
        loader = make_loader(sampler=DistributedSampler(range(32), 1, 0), num_workers=workers)
        callback = RerailCallback(tmp_path, guard=guard, **every)
        model = fit(callback, loader=loader, ckpt_path=resume_from(tmp_path), **changes)
        assert model.seen == reference.seen[batches:]
        assert read_manifest(tmp_path / f"step-{8 // accumulated:09d}")["consumed_samples"] == 40
        bucket.wait_for(partial(announced, bucket, ("rate", "skip"), attempt=int(attempt)))


@pytest.mark.parametrize("step", [4, 8])
def test_a_plain_loader_resumes_where_it_was(new_guard, tmp_path, step):
    """Within an epoch and at its end."""
    reference = fit(loader=shuffled(5))
    fit(RerailCallback(tmp_path, guard=new_guard(), save_every=4), loader=shuffled(5), max_steps=step)
    resumed = fit(RerailCallback(tmp_path, guard=new_guard()), loader=shuffled(5), ckpt_path=resume_from(tmp_path))
    assert resumed.inputs == reference.inputs[step:]


def test_the_page_for_users_shows_a_script_that_works(new_guard, tmp_path):
    """It trains to the end, and started again it finds nothing left to do."""
    new_guard().close(within_s=0.2)  # its environment is what Guard.from_env() finds
    (text,) = snippets("PyTorch Lightning")
    settings = {"max_steps": 3, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    for steps in (3, 0):
        names: dict[str, Any] = {"checkpoints": tmp_path, "model": Model(), "loader": Batches(), "settings": settings}
        exec(compile(text, "docs/scripts.md", "exec"), names)
        names["trainer"].callbacks[0].guard.close(within_s=0.2)
        assert len(names["model"].seen) == steps
    assert read_manifest(tmp_path / "step-000000003")["reason"] == "final"


def test_all_ranks_save_and_stop_at_the_same_step(tmp_path):
    """SIGTERM comes to one of two: both save after the step in which it came, and both go on from there.

    Lightning's own handler would begin a collective on the rank that has the signal, and the other knows nothing of it.
    """
    environment = {"SAGEMAKER_BASE_DIR": str(tmp_path), "RERAIL_SKIP_SAMPLES": "16-23"}
    answers = Ranks(two_ranks, 2, environment=environment, folder=str(tmp_path / "out")).answers()
    assert [answer[:2] for answer in answers] == [(0, str(tmp_path / "out/step-000000006/lightning.ckpt"))] * 2
    rows = [row.tolist() for rows, _ in Batches().data for row in rows]
    for rank, (*_, inputs) in enumerate(answers):
        sampler = DistributedSampler(range(32), 2, rank)  # as Lightning puts into the loader
        order = list(sampler)
        sampler.set_epoch(1)
        kept = [*order[:8], *order[12:], *sampler]
        assert inputs == [[rows[at] for at in kept[4 * batch :][:4]] for batch in range(6)]
    table = read_manifest(tmp_path / "out" / "step-000000006")
    assert (table["reason"], table["world_size"], table["consumed_samples"]) == ("sigterm", 2, 56)


def two_ranks(rank: int, *, say: Any, folder: str) -> tuple[Any, str | None, list[Any]]:
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "one"}
    callbacks = [RerailCallback(folder)]
    if rank == 1:
        callbacks.append(Lightning().before_step(6, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    model, settings = Model(), {"devices": 2, "strategy": "ddp", "use_distributed_sampler": True}
    try:
        fit(*callbacks, model=model, loader=make_loader(), ckpt_path=resume_from(folder), **settings)
    except SystemExit as ending:
        return ending.code, resume_from(folder), model.inputs
    return None, None, model.inputs
