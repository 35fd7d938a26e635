"""PyTorch Lightning with Rerail's callback: the real library, a tiny model, one process."""

import json
import os
import re
import signal
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from rerail.model import checkpoints
from rerail.model.mailbox import ReportKind
from rerail_agent import manifests
from rerail_agent.lightning import RerailCallback, resume_from
from tests.agent.jobs import Ranks, announced, ask_for_checkpoint, fence
from tests.agent.test_manifests import snippets

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
STEPS = 12
LINE = re.compile(r"^rerail step=(\d+) loss=(\S+) .*?lr=(\S+) (?:tokens_per_s=(\d+) )?nonfinite=0", re.M)


class Model(LightningModule):
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
    """Eight batches an epoch; it knows where it is, as torchdata's StatefulDataLoader does."""

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


class Each(Callback):
    """Does something before a batch."""

    def __init__(self, step: int, work: Any) -> None:
        self.step, self.work = step, work

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step + 1 == self.step:
            self.work()


def fit(
    *callbacks: Callback, ckpt_path: str | None = None, model: Model | None = None, loader: Any = None, **changes: Any
) -> Model:
    """The same model, data and dropout every time."""
    torch.manual_seed(0)
    model = model or Model(rate=changes.pop("rate", 1e-2))
    defaults = {"max_steps": STEPS, "max_epochs": -1, "limit_val_batches": 0, "devices": 1}
    defaults |= {"use_distributed_sampler": False, "enable_checkpointing": False}
    settings = {**defaults, **changes, "accelerator": "cpu", "logger": False}
    settings |= {"enable_progress_bar": False, "enable_model_summary": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(callbacks=list(callbacks), **settings)
        trainer.fit(model, Batches() if loader is None else loader, Batches(), ckpt_path=ckpt_path)
    return model


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


@pytest.fixture(scope="module")
def undisturbed(one_thread: None) -> Model:
    """The same training without Rerail."""
    return fit()


def test_training_is_what_it_was_without_the_callback(undisturbed, new_guard, tmp_path, capsys):
    """Outside SageMaker: the same losses and weights bit for bit, a metric line for each step, and no checkpoint."""
    model = fit(RerailCallback(tmp_path, guard=new_guard()), model=None)
    assert model.seen == undisturbed.seen
    assert all(torch.equal(value, undisturbed.state_dict()[name]) for name, value in model.state_dict().items())
    lines = list(LINE.finditer(capsys.readouterr().out))
    assert [int(line[1]) for line in lines] == list(range(1, STEPS + 1))
    assert [float(line[2]) for line in lines] == pytest.approx(model.seen, rel=1e-8)
    assert float(lines[0][3]) == pytest.approx(1e-2 / 3, rel=1e-5)  # the rate of that very step
    assert names(tmp_path) == []


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
    look = [Each(step, lambda: seen.append(sorted(path.name for path in tmp_path.glob("*.ckpt")))) for step in (5, 11)]
    own = ModelCheckpoint(tmp_path, "{step:02d}", monitor="step", mode="max", save_top_k=top, every_n_train_steps=1)
    callback = Spoiling(tmp_path / "rerail", guard=new_guard())
    fit(callback, own, *look, model=Spoilt(), max_steps=40, enable_checkpointing=True)
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
    """Every five steps and at the end; the manifest says what is in it, and the supervisor takes it."""
    fit(RerailCallback(tmp_path, guard=new_guard(), save_every=5, keep=2))
    assert names(tmp_path) == ["step-000000010", "step-000000012"]
    folder = tmp_path / "step-000000010"
    assert manifests.is_whole(folder)
    table = manifest(folder)
    assert (table["reason"], table["consumed_samples"], table["health"]) == ("periodic", 40, "clean")
    assert manifest(tmp_path / "step-000000012")["reason"] == "final"
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    seen = checkpoints.read_manifest((folder / "manifest.json").read_text(), uri="s3://b/manifest.json", sizes=sizes)
    assert seen.step == 10
    assert seen.is_whole


def test_a_checkpoint_is_saved_when_the_supervisor_asks(new_guard, bucket, tmp_path):
    """At the very step in which the command arrives; the report names its folder."""
    ask = partial(ask_for_checkpoint, bucket)
    model = fit(RerailCallback(tmp_path, guard=new_guard(bucket)), Each(6, ask))
    report = bucket.wait_for_report(ReportKind.CHECKPOINT)
    assert (report.command, report.step, report.durability) == ("c1", 6, "local")
    assert report.path == str(tmp_path / "step-000000006")
    assert manifest(tmp_path / "step-000000006")["reason"] == "emergency"
    assert manifest(tmp_path / "step-000000006")["loss"] == pytest.approx(model.seen[5])
    assert len(model.seen) == STEPS


def test_sigterm_saves_and_ends_the_process_with_zero(undisturbed, new_guard, tmp_path):
    """After the step that is under way, whatever min_steps says; the next attempt goes on bit for bit."""
    guard = new_guard()
    with pytest.raises(SystemExit) as ending:
        fit(RerailCallback(tmp_path, guard=guard), Each(5, lambda: os.kill(os.getpid(), signal.SIGTERM)), min_steps=11)
    assert ending.value.code == 0
    assert guard.should_stop
    assert manifest(tmp_path / "step-000000005")["reason"] == "sigterm"
    model = fit(RerailCallback(tmp_path, guard=new_guard()), ckpt_path=resume_from(tmp_path))
    assert model.seen == undisturbed.seen[5:]


@pytest.mark.parametrize("save_every", [5, 8])
def test_a_killed_training_goes_on_as_if_nothing_had_happened(undisturbed, new_guard, tmp_path, save_every):
    """Killed at step 10, in the middle of an epoch or after its end: the same losses bit for bit, dropout included."""
    child = os.fork()
    if child == 0:
        die = Each(10, lambda: os.kill(os.getpid(), signal.SIGKILL))
        fit(RerailCallback(tmp_path, guard=new_guard(), save_every=save_every), die)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    found = resume_from(tmp_path)
    assert found == str(tmp_path / f"step-{save_every:09d}" / "lightning.ckpt")
    model = fit(RerailCallback(tmp_path, guard=new_guard(), save_every=save_every), ckpt_path=found)
    assert model.seen == undisturbed.seen[save_every:]
    assert all(torch.equal(value, undisturbed.state_dict()[name]) for name, value in model.state_dict().items())
    assert manifest(tmp_path / "step-000000012")["consumed_samples"] == 4 * STEPS


def test_an_attempt_that_rolls_back_quarantines_later_checkpoints(new_guard, tmp_path):
    """It saves those steps again, under its own number."""
    fit(RerailCallback(tmp_path, guard=new_guard(), save_every=4))
    guard = new_guard(RERAIL_RUN="local", RERAIL_ATTEMPT="2", RERAIL_RESUME_STEP="4")
    found = resume_from(tmp_path)
    assert found == str(tmp_path / "step-000000004" / "lightning.ckpt")
    assert sorted(path.name for path in (tmp_path / "quarantine").iterdir()) == [
        "a1-step-000000008",
        "a1-step-000000012",
    ]
    fit(RerailCallback(tmp_path, guard=guard, save_every=4), ckpt_path=found)
    assert [manifest(tmp_path / name)["attempt"] for name in names(tmp_path)] == [1, 2, 2]


def test_a_fenced_attempt_saves_no_more(new_guard, bucket, tmp_path):

    fit(RerailCallback(tmp_path, guard=new_guard(bucket), save_every=4), Each(6, partial(fence, bucket)))
    assert names(tmp_path) == ["step-000000004"]


def test_a_save_that_fails_is_refused_and_training_goes_on(new_guard, bucket, tmp_path, monkeypatch):
    """The supervisor receives the reason, and nothing that looks like a checkpoint is left."""

    def full(*arguments: Any, **fields: Any):
        raise OSError(28, "No space left on device")

    def ask():
        monkeypatch.setattr(Trainer, "save_checkpoint", full)
        ask_for_checkpoint(bucket)

    model = fit(RerailCallback(tmp_path, guard=new_guard(bucket)), Each(6, ask))
    assert "No space left" in bucket.wait_for_report(ReportKind.REFUSED).reason
    assert len(model.seen) == STEPS
    assert resume_from(tmp_path) is None


def test_evaluations_and_saves_are_no_slow_steps(new_guard, tmp_path):
    """The heartbeat tells them apart, and what comes after the last step is no hang either."""
    guard = new_guard()
    phases = set()

    class Spy(Callback):
        def on_validation_batch_end(self, *arguments):
            phases.add(("evaluating", str(guard._progress.phase)))

        def on_save_checkpoint(self, *arguments):
            phases.add(("saving", str(guard._progress.phase)))

        def on_train_batch_start(self, trainer, *arguments):
            if trainer.global_step:
                phases.add(("stepping", str(guard._progress.phase)))

    callback = RerailCallback(tmp_path, guard=guard, save_every=4)
    fit(Spy(), callback, limit_val_batches=2, val_check_interval=4, num_sanity_val_steps=1)
    assert phases == {("evaluating", "evaluation"), ("saving", "save"), ("stepping", "step")}
    assert guard._progress.phase == "evaluation"


def test_the_detectors_remember_across_a_resume(new_guard, tmp_path):
    """What they had learnt by step 8 is what they know when a successor starts there."""
    first, second = new_guard(), new_guard()
    fit(RerailCallback(tmp_path, guard=first, save_every=8), max_steps=8)
    remembered: list[Any] = []
    remember = Each(9, lambda: remembered.append(second.state_dict()))
    fit(RerailCallback(tmp_path, guard=second), remember, max_steps=9, ckpt_path=resume_from(tmp_path))
    assert remembered == [first.state_dict()]


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
        assert manifest(tmp_path / f"step-{8 // accumulated:09d}")["consumed_samples"] == 40
        bucket.wait_for(partial(announced, bucket, ("rate", "skip"), attempt=int(attempt)))


@pytest.mark.parametrize("step", [4, 8])
def test_a_plain_loader_resumes_where_it_was(new_guard, tmp_path, step):
    """Within an epoch and at its end."""
    reference = fit(loader=shuffled(5))
    fit(RerailCallback(tmp_path, guard=new_guard(), save_every=4), loader=shuffled(5), max_steps=step)
    resumed = fit(RerailCallback(tmp_path, guard=new_guard()), loader=shuffled(5), ckpt_path=resume_from(tmp_path))
    assert resumed.inputs == reference.inputs[step:]


def test_data_of_unknown_order_is_not_skipped_and_the_log_has_the_reason(new_guard, bucket, tmp_path, capsys):
    for loader in (Batches, partial(make_loader, shuffle=True)):
        callback = RerailCallback(tmp_path, guard=new_guard(bucket, RERAIL_SKIP_SAMPLES="8-15"))
        assert fit(callback, loader=loader()).seen == fit(loader=loader()).seen
        assert capsys.readouterr().err.count("RERAIL_SKIP_SAMPLES is ignored") == 1
        bucket.wait_for(partial(announced, bucket, ("rate",)))


def test_a_lower_rate_is_applied_once_over_resumes_and_ends_with_its_attempt(new_guard, tmp_path, monkeypatch, capsys):
    """As a schedule with half the rate; what is saved has the rate of the schedule."""
    reference = fit(rate=0.5e-2)
    monkeypatch.setenv("RERAIL_LR_SCALE", "0.5")
    seen = fit(RerailCallback(tmp_path, guard=new_guard(), save_every=4), max_steps=4).seen
    for steps in (8, 12):
        callback = RerailCallback(tmp_path, guard=new_guard(), save_every=4)
        seen += fit(callback, max_steps=steps, ckpt_path=resume_from(tmp_path)).seen
    assert seen == reference.seen
    rates = [float(line[3]) for line in LINE.finditer(capsys.readouterr().out)]
    monkeypatch.delenv("RERAIL_LR_SCALE")
    last = tmp_path / "step-000000004" / "lightning.ckpt"
    fit(RerailCallback(tmp_path, guard=new_guard()), max_steps=STEPS, ckpt_path=str(last))
    whole = [float(line[3]) for line in LINE.finditer(capsys.readouterr().out)]
    assert rates[4:] == pytest.approx([rate / 2 for rate in whole], rel=1e-4)


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
    assert manifest(tmp_path / "step-000000003")["reason"] == "final"


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
    table = manifest(tmp_path / "out" / "step-000000006")
    assert (table["reason"], table["world_size"], table["consumed_samples"]) == ("sigterm", 2, 56)


def two_ranks(rank: int, *, say: Any, folder: str) -> tuple[Any, str | None, list[Any]]:
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "one"}
    callbacks = [RerailCallback(folder)]
    if rank == 1:
        callbacks.append(Each(6, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    model, settings = Model(), {"devices": 2, "strategy": "ddp", "use_distributed_sampler": True}
    try:
        fit(*callbacks, model=model, loader=make_loader(), ckpt_path=resume_from(folder), **settings)
    except SystemExit as ending:
        return ending.code, resume_from(folder), model.inputs
    return None, None, model.inputs
