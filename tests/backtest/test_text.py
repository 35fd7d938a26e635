"""Text logs, read with a regular expression for each metric."""

import math
import random
import re
from datetime import UTC, datetime, timedelta

import pytest

from cli.backtest import text
from cli.backtest.series import BadInput
from tests.backtest.command import run
from tests.detectors.runs import falling

PATTERNS = ["step=step ([0-9]+)", "loss=loss: ([0-9.,e+-]+|nan)"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_every_line_with_a_metric_is_a_row(tmp_path, encoding):
    """Other lines are passed over; a progress bar's carriage returns end lines too."""
    file = tmp_path / "train.log"
    file.write_text("starting\nstep 5\nloss: 2.5\nstep 6 loss: nan\rstep 7 loss: 1,002.25\nloss: soon\n", encoding)
    series = text.read(file, text.parse_patterns(PATTERNS))
    assert [(sample.step, str(sample.loss)) for sample in series.samples] == [(5, "2.5"), (6, "nan"), (7, "1002.25")]
    assert series.rows == (2, 3, 4)


def megatron(step: int, loss: str) -> str:
    """A line as Megatron-LM prints it, without a loss where its iterations had none that was finite."""
    return (
        f"[2026-05-28 22:26:20] iteration {step:8d}/    6069 | consumed samples: 1 |"
        " elapsed time per iteration (ms): 812.0 | learning rate: 5.8E-05 | global batch size: 512 |"
        f"{loss} loss scale: 1.0 | grad norm: 0.852 |"
        f" number of skipped iterations:   0 | number of nan iterations:   {int(not loss)} |"
    )


@pytest.mark.parametrize("slope", [0.0003, 0.0006])
@pytest.mark.parametrize("noise", [0.005, 0.03])
def test_a_healthy_loss_in_capitals_has_no_finding(tmp_path, slope, noise):
    """As it falls through 1: `9.9E-01` is not 9.9."""
    rng = random.Random(1)
    losses = [1.1 * math.exp(-slope * row) + rng.gauss(0, noise) for row in range(600)]
    file = tmp_path / "train.log"
    file.write_text("\n".join(megatron(row, f" lm loss: {loss:.6E} |") for row, loss in enumerate(losses)))
    result = run(str(file))
    assert "read as Megatron-LM: grad_norm, loss, nonfinite, step" in result.stdout and "no findings" in result.stdout


def test_a_loss_that_vanishes_from_the_line_is_not_a_number(tmp_path):
    """As Megatron-LM prints it; here without its count of such iterations."""
    lines = [megatron(row, f" lm loss: {2 - row / 1000:.6E} |" if row < 300 else "") for row in range(310)]
    file = tmp_path / "train.log"
    file.write_text("\n".join(line.partition("| number")[0] for line in lines))
    result = run(str(file))
    assert "non_finite" in result.stdout and "intervene" in result.stdout


def test_iterations_that_megatron_skips_are_no_fault(tmp_path):
    """To scale its loss it skips some, and prints none for them; if it goes on with that, the run is broken."""
    file = tmp_path / "train.log"
    for skipped, is_stopped in ((10, False), (60, True)):
        losses = [None if 100 <= row < 100 + skipped else 2 - row / 1000 for row in range(300)]
        printed = (megatron(row, f" lm loss: {loss:.6E} |" if loss else "") for row, loss in enumerate(losses))
        file.write_text("\n".join(printed).replace("nan iterations:   1", "nan iterations:   0"))
        assert ("intervene" in run(str(file)).stdout) == is_stopped


@pytest.mark.parametrize(
    ("line", "loss"),
    # The second is of CycleGAN, which prints several losses, and none by that word.
    [("Epoch [{}/3], Step [{}/60], Loss: 0.5\n", ""), ("(epoch: {}, iters: {}, data: 0.1) G_A: 0.5 G_B: 2.5\n", "G_A")],
)
def test_steps_that_begin_again_with_each_epoch_count_on(tmp_path, line, loss):
    file = tmp_path / "train.log"
    file.write_text("".join(line.format(epoch, step) for epoch in (1, 2, 3) for step in (20, 60)))
    assert [sample.step for sample in text.read(file, {}, loss=loss).samples] == [20, 60, 80, 120, 140, 180]
    file.write_text("".join(f"Epoch {e}\n" + "".join(f"Batch {b} Loss: 0.5\n" for b in range(30)) for e in range(3)))
    assert [sample.step for sample in text.read(file, {}).samples] == [*range(90)]
    bars = "".join(f"{8192 * n}/166094648 [......] - ETA: 1:25:07\r" for n in range(1, 9))  # a download of Keras
    file.write_text(2 * (bars + "".join(f"Epoch {e}/50\n - 333s - loss: 0.3661 - acc: 0.8846\n" for e in range(1, 16))))
    assert [sample.step for sample in text.read(file, {}).samples] == 2 * [*range(15)]
    # Of `ye-kyaw-thu/error-overflow`: the last batch of epochs without a number, and steps beside parts of an epoch.
    file.write_text("".join(f"227/227 [==] - 147s 636ms/step - loss: 5.{n}\n" for n in range(9)))
    assert [sample.step for sample in text.read(file, {}).samples] == [*range(9)]
    file.write_text("".join(f" - 147s - loss: 5.{n}\n" for n in range(9)))
    assert [sample.step for sample in text.read(file, {}).samples] == [*range(9)]
    launch = "".join(f"Epoch {n / 14:.4f}: train_loss/word=8.7 (steps={n}, time=0-00:00:07)\n" for n in range(30, 60))
    file.write_text(2 * launch)
    assert [sample.step for sample in text.read(file, {}).samples] == 2 * [*range(30, 60)]


def test_settings_are_neither_steps_nor_rows(tmp_path):
    settings = "{'atom_fea_len': 64,\n 'epoch': 300.0,\n 'learning_rate': 0.001,\n 'lr_patience': 0}\n"
    line = (
        "2025-07-07 13:55:26.649 INFO: Epoch [{:03}/300] - Train Loss: 145.13359, Valid Loss: 70.66399, LR: [0.001]\n"
    )
    file = tmp_path / "train.log"
    file.write_text(settings + "".join(line.format(epoch) for epoch in range(1, 31)))
    series = text.read(file, {})
    assert [sample.step for sample in series.samples] == [*range(1, 31)]  # as in `CaryBond/data-science-project`
    assert series.notes == ("read as a script of its own: loss, step",)
    # Of `ManayPorwal-code/T2ICount-...`: a step that is printed again, by evaluations, has not lost its loss.
    file.write_text("".join(f"Epoch {e} Train, reg:0.13\n" + e // 49 * 4 * f"Epoch {e} Val\n" for e in range(90)))
    assert len(text.read(file, {}, loss="reg").samples) == 90
    file.write_text("".join([*(f"step {n} loss 0.5\n" for n in range(90)), *(f"epoch {n} test\n" for n in range(40))]))
    own = {name: re.compile(name + r" ([0-9.]+)") for name in ("step", "epoch", "loss")}
    assert len(text.read(file, own).samples) == 90


@pytest.mark.parametrize(
    ("line", "loss", "seconds"),
    [
        # Of `BamLubi/Paddle-SIGN`, made with PaddleRec.
        ("INFO - epoch: {}, batch_id: {}, AUC:0.93, loss:0.0925, avg_batch_cost: {} sec, ips: 1584.6 ins/s\n", "", 1),
        # Of `layla-focalors/Cycle_GAN_NOA_fog2rain_checkpoint` and, with milliseconds, like `aakashvardhan/s21-gpt2`.
        ("(epoch: {}, iters: {}, time: {}, data: 0.002) D_A: 0.071 G_A: 0.847 cycle_A: 1.122\n", "cycle_A", 1),
        ("epoch {}, step {}, loss: 10.83, time: {} ms, tokens/sec: 1390.20\n", "", 1000),
    ],
)
def test_the_time_of_a_step_is_read_by_its_usual_names(tmp_path, line, loss, seconds):
    file = tmp_path / "train.log"
    times = [0.25, 0.5, 0.375, 0.625] * 3
    file.write_text("".join(line.format(place // 4, place % 4 * 500, time) for place, time in enumerate(times)))
    samples = text.read(file, {}, loss=loss).samples
    assert [sample.step_time_s for sample in samples] == [pytest.approx(time / seconds) for time in times]
    assert [sample.step for sample in samples[3:6]] == [1500, 1501, 2001]


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        # Of `XDpaddle/HDRUnet_Paddle` and `qiexing/caffe-regression`, and of a logger with a time of day alone.
        ("23-05-06 {:%H:%M:%S.%f} - INFO: [epoch:  7, iter:{:8,}, lr:(1.958e-04,)] l_pix: 7.1452e-03\n", 42.5),
        ("I0821 {:%H:%M:%S.%f}  5405 solver.cpp:222] Iteration {}, loss = 0.0677\n", 5.25),
        ("{:%H:%M:%S} [main] INFO step {} loss 0.5\n", 20),
        ("{:%H:%M:%S} [main] INFO step {} loss 0.5\n", 2),  # too soon for whole seconds
        ("eta: {:%H:%M:%S} step {} loss 0.5\n", -60),
    ],
)
def test_the_times_before_lines_give_the_step_times(tmp_path, line, seconds):
    """Also over midnight, but not a time that falls with each line."""
    start = datetime(2026, 5, 6, 23, 50 if seconds > 0 else 10, tzinfo=UTC)
    file = tmp_path / "train.log"
    file.write_text("".join(line.format(start + timedelta(seconds=n * seconds), 100 * n) for n in range(1, 60)))
    times = [sample.step_time_s for sample in text.read(file, {}).samples]
    step_time = pytest.approx(seconds / 100) if seconds > 2 else None
    assert times == [None, *[step_time] * 58]


def test_the_time_at_which_lines_were_collected_is_not_theirs(tmp_path):
    file = tmp_path / "train.log"
    times = (datetime(2026, 5, 6, 10, 0, 0, 250_000, tzinfo=UTC) + timedelta(seconds=5 * (n // 3)) for n in range(60))
    file.write_text("".join(f"{at:%H:%M:%S.%f} step {step} loss 0.5\n" for step, at in enumerate(times)))
    assert {sample.step_time_s for sample in text.read(file, {}).samples} == {None}


@pytest.mark.parametrize("last", [0, 2400])
def test_what_is_left_of_a_run_is_not_the_time_of_a_step(tmp_path, last):
    file = tmp_path / "train.log"
    file.write_text("".join(f"step {n} loss: 0.5 time: {last + 3600 - 60 * n}\n" for n in range(60)))
    assert {sample.step_time_s for sample in text.read(file, {}).samples} == {None}


def test_the_speed_in_samples_is_read(tmp_path):
    file = tmp_path / "train.log"  # like MXNet's own, with the batch of an epoch
    line = "Epoch[{}] Batch [{}]\tSpeed: 61.36 samples/sec\tcross-entropy=9.16\n"
    file.write_text("".join(line.format(epoch, batch) for epoch in range(3) for batch in range(20, 100, 20)))
    assert {sample.tokens_per_s for sample in text.read(file, {}).samples} == {61.36}


def test_a_progress_bar_is_read_however_slow_and_far_it_is(tmp_path):
    file = tmp_path / "train.log"  # like one of `pilot-j/Gsoc_Deeplense`
    line = "Epoch {0}/50 [FT]: {1}| {2}/157 [02:45<00:00,  1.06{3}, loss=0.796]\nEpoch {0}/50 - Train Loss: 0.85\n"
    bars = [(n, "100%|██████████", 157, "it/s" if n > 1 else "s/it") for n in range(1, 30)]
    file.write_text("".join(line.format(*bar) for bar in (*bars, (30, "  3%|▎         ", 4, "it/s"))))
    assert [sample.loss for sample in text.read(file, {}).samples] == [0.796] * 30


def test_the_counter_of_a_fold_is_its_step_beside_a_validation(tmp_path):
    """The bar of each fold counts to the same total: `[fold_0] 001/200:`."""
    file = tmp_path / "train.log"
    lines = [
        f"[fold_{fold}] {row:03d}/200: | loss: {3 / row:.5f} | val/dice: 0.5"
        for fold in (0, 1)
        for row in range(1, 201)
    ]
    file.write_text("\n".join(lines))
    assert [sample.step for sample in text.read(file, {}).samples] == [*range(1, 201)] * 2


def test_epochs_that_begin_again_are_of_another_launch(tmp_path):
    """Each fold of a cross-validation is another model, whose loss begins high: it has not diverged."""
    file = tmp_path / "train.log"
    epochs = [epoch for _ in range(4) for epoch in range(3) for _ in range(40)]
    file.write_text("".join(f"Epoch: {epoch} Loss: {2 / (1 + epoch):.3f}{n % 7}\n" for n, epoch in enumerate(epochs)))
    assert [sample.step for sample in text.read(file, {}).samples] == [*range(120)] * 4
    assert "divergence" not in run(str(file)).stdout


def test_the_command_evaluates_a_text_log(tmp_path):
    file = tmp_path / "train.log"
    losses = [loss * (3 if row >= 300 else 1) for row, loss in enumerate(falling(500))]
    file.write_text("\n".join(f"step {row} loss: {loss:.4f}" for row, loss in enumerate(losses)))
    result = run(str(file), *(part for pattern in PATTERNS for part in ("--metric", pattern)))
    assert result.exit_code == 0 and "divergence" in result.stdout and "intervene" in result.stdout


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["loss"], "is not NAME=REGEX"),
        (["speed=(.*)"], "is not NAME=REGEX"),
        (["loss=loss: ("], "missing )"),
        (["loss=loss"], "has 0 groups"),
        (["step=([0-9]+)"], "gives none of"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_explained(given, problem):
    with pytest.raises(BadInput) as raised:
        text.parse_patterns(given)
    assert problem in raised.value.problem and raised.value.remedy


def test_a_log_without_a_match_is_explained(tmp_path):
    file = tmp_path / "train.log"
    file.write_text("nothing here\n")
    with pytest.raises(BadInput, match="no line"):
        text.read(file, text.parse_patterns(PATTERNS))
