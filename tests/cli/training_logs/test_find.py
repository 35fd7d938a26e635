"""What is found in a text log: the lines of frameworks, each with its source, and those of scripts of one's own."""

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.backtest.series import BadInput
from cli.training_logs.find import find_metrics, strip
from cli.training_logs.formats import FORMATS
from cli.training_logs.numbers import compile_reader, parse, read_number, write_definition
from cli.training_logs.proposal import LONGEST_EXPRESSION
from tests.timing import growth

PRINTED = json.loads((Path(__file__).parent / "lines.json").read_text(encoding="utf-8"))


def values(pattern: re.Pattern[str], lines: list[str]) -> list[float]:
    return [value for line in lines if (value := read_number(pattern, line)) is not None]


@pytest.mark.parametrize("printed", PRINTED, ids=lambda printed: f"{printed['format']}: {printed['source'][:40]}")
def test_a_framework_s_lines_are_read(printed):
    """Its name is found, each metric is read from its training lines, and nothing from others."""
    lines = [strip(line) for line in printed["lines"]]
    coloured = any("\x1b" in line for line in printed["lines"])
    found = find_metrics(lines, where="train.log", coloured=coloured)
    assert found.framework == printed["format"]
    for metric, expected in printed["reads"].items():
        read = values(compile_reader(found.expressions[metric]), lines)
        assert [str(value) for value in read] == [str(float(value)) for value in expected], metric
        # A definition finds the same in the line as it was printed, but for what CloudWatch does not take.
        defined = values(re.compile(write_definition(found.expressions[metric])), printed["lines"])
        finite = [float(value) for value in expected if math.isfinite(float(value))]
        assert defined == [value for value in finite if f"{value:,.15g}" not in " ".join(lines) or value < 1000], metric


def test_every_format_has_a_line_of_its_framework():
    """Nothing is in the table that was not seen."""
    untested = {log_format.name for log_format in FORMATS} - {printed["format"] for printed in PRINTED}
    assert untested <= {"Rerail's metric line", "Paddle", "verl, SFT", "Keras, custom loop"}


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["{:.4f}", "{}", "{:e}", "{:E}", "{:+.3g}", "{:G}"]),
)
def test_a_number_is_read_whole_or_not_at_all(value, form):
    """In any notation: a definition that takes a part of a number would report another value."""
    text = form.format(value)
    definition = re.compile(write_definition(r"\bloss: <n>"))
    for end in ("", " ", ", lr: 1", " |", ".", "\t", "}", "'"):
        assert definition.findall(f"step 1 loss: {text}{end}") == [text]
    assert definition.findall(f"loss: {text}x") == [] and definition.findall(f"loss: {text},500") == []
    assert parse(text) == float(text)


@pytest.mark.parametrize("text", ["nan", "NaN", "-inf", "Infinity", "INF"])
def test_what_is_not_finite_is_read_from_a_log_and_never_by_a_definition(text):
    assert not math.isfinite(read_number(compile_reader("loss: <n>"), f"loss: {text} "))
    assert not re.findall(write_definition("loss: <n>"), f"loss: {text} ")
    assert find_metrics([f"step 1 loss is {text} now"], where="train.log").expressions["loss"]


ROWS = range(8, 13)
TABLE = [f"{name} train: [loss = {loss}]" for name, loss in (("c10", 1.2), ("c100", 3.5), ("i16", 3.6))]
OWN_FORMS = {
    "two spaces": ([f"epoch:  0 step:  {n} loss:  {n / 16}" for n in ROWS], ROWS),
    "Stable-Baselines3": ([x for n in ROWS for x in (f"|  steps   | {n}  |", f"|  loss    | {n / 16} |")], ROWS),
    "padded brackets": ([f"Epoch: [ 0/9] Iter [{n:>4}/1487] || lr: 0.1 || Loss: {n / 16}" for n in ROWS], ROWS),
    "a counter without a name": ([f"[{n:05}/50000] KITTI | loss {n / 16} | batch 16" for n in ROWS], ROWS),
    # https://github.com/pytorch/examples/blob/main/word_language_model/main.py
    "a counter beside its unit": (
        [f"| epoch   1 | {n:5d}/ 2983 batches | ms/batch 9.8 | loss {n / 16:6.3f} | ppl 9.1" for n in ROWS[::2]],
        ROWS[::2],
    ),
    "a setting called batch": ([f"epoch {n} batch 16 loss {n / 16}" for n in ROWS], ROWS),
    "epochs of launches": ([f"Epoch {n % 10} | step {n} | loss={n / 16}" for n in (*ROWS, 8, 9)], (*ROWS, 8, 9)),
    "epochs of many launches": ([f"Epoch: {n}, Train Loss: {n / 16}, Val Loss: 9" for n in ROWS] * 12, [*ROWS] * 12),
    "a counter without a name that a validation has too": (
        [*(f"Epoch: [{n // 10}/9][{n:>3}/99]\tLoss {n / 16}" for n in ROWS), *["Validate: [8/31]\tLoss 1.8 (1.9)"] * 5],
        ROWS,
    ),
    # DeepSpeed prints lines of its own, with the learning rates.
    "another count by the same name": (
        [line for n in ROWS for line in (f"[Step {n}/99] Loss: {n / 16} |", *["step=10, skipped=0, mom=0.9"] * 4)],
        ROWS,
    ),
    # GNMT in MLPerf.
    "a setting and a summary by usual names": (
        ["BATCH=8", "BATCH=9", *(f"TRAIN [0][{n}/99]\tLoss/tok {n / 16}" for n in range(8, 48)), "Training Loss: 9"],
        range(8, 48),
    ),
    # `loss_log.txt` of CycleGAN and projects derived from it begins each launch so.
    "a heading with a date": (
        ["==== Training Loss (Sat Jun  6 16:47:21 2020) ====", *(f"epoch {n} loss_G: {n / 16}" for n in ROWS)],
        ROWS,
    ),
    "a warning of a file": (["/src/losses.py:12: UserWarning", *(f"step {n} gen_loss: {n / 16}" for n in ROWS)], ROWS),
    "another launch with another logger": (
        [
            *(f"step {n} loss: {n / 16} lr: 0.1" for n in range(8, 48)),
            *(f"2026-05-28 22:26:20,1 INFO trainer.py step {n} loss: {n / 16} lr: 0.1" for n in range(48, 64)),
        ],
        range(8, 64),
    ),
    "a test in between and at the end": (
        [*(f"Step {n} Loss: {n / 16} lr: 0.1" for n in range(8, 48)), "of all: Loss: 9.5 lr: 0.1"]
        + ["Step 48 Loss: 3.0 lr: 0.1", *["of all: Loss: 9.5 lr: 0.1"] * 11],
        range(8, 49),
    ),
    "a rank before the step": ([f"2026-05-28 22:26:20,123 rank0 step {n:5d} | loss: {n / 16}" for n in ROWS], ROWS),
    "the mean of an epoch too": (
        [line for n in ROWS for line in (f"iter {n} loss_train: {n / 16}", *(["loss= 9.5"] if n % 3 == 0 else []))],
        ROWS,
    ),
    "a mark before the best epochs": (
        [
            line
            for n in range(8, 48)
            for line in (
                f"{'[NEW BEST] ' * (n % 5 == 0)}Epoch #{n}: train_loss={n / 16}, val_loss=9.5",
                *([f"Epoch {n}/90: train_loss={n / 16}"] if n % 10 == 0 else []),
            )
        ],
        range(8, 48),
    ),
    "a summary of the best epoch": (
        [
            line
            for n in range(8, 48)
            for line in (f"Epoch {n}: train_loss={n / 16}", *([f"Best Epoch 7: train_loss={7 / 16}"] * (n % 5 == 0)))
        ],
        range(8, 48),
    ),
    "an evaluation that counts its own steps": (
        [
            line
            for n in ROWS
            for line in (f'INFO {{"epoch": {n}, "loss": {n / 16}}}', f'INFO {{"eval_step": {n}, "loss": 9.5}}')
        ],
        ROWS,
    ),
    "a loss that repeats few values beside its step": (
        [f"step {n} loss {n / 16} batch_loss {n}.{n}" for n in [8] * 3 + [9] * 90],
        [8] * 3 + [9] * 90,
    ),
    "another model behind a word": (
        [
            line
            for n in ROWS
            for line in (f"step {n} loss {n / 16}", *([f"[EMA] step {n} loss 9.5"] if n % 4 == 0 else []))
        ],
        ROWS,
    ),
    "a bar without a total": ([f"Train: {n}it [00:{n:02}, 1.01s/it, loss={n / 16}, v_num=3]" for n in ROWS], ROWS),
    "a bar with a name of its own": ([f"Learn: 8%|# | {n}/90 [00:12<01:10, 1s/it, loss={n / 16}]" for n in ROWS], ROWS),
    "a test in the same mapping": ([f'INFO {{"epoch": {n}, "test_acc": 0.9, "loss": {n / 16}}}' for n in ROWS], ROWS),
    "losses of a table": (
        [line for n in range(8, 48) for line in (f"epoch {n} train_loss {n / 16}", *TABLE)],
        range(8, 48),
    ),
    "a validation with the same name": (
        [f"Epoch: [1/9][{n:>3}/120]\tTime 1.7 ( 2.7)\tLoss {n / 16:.4e} (1.0479e+00)\tstep {n}" for n in ROWS]
        + ["Validate: [ 0/31]\tTime 9.1 ( 9.1)\tLoss 1.8765e+00 (1.8765e+00)"] * 5,
        ROWS,
    ),
}


@pytest.mark.parametrize("form", OWN_FORMS)
def test_loss_and_step_of_a_script_s_own_lines_are_read(form):
    lines, steps = OWN_FORMS[form]
    found = find_metrics(lines, where="train.log")
    for metric, expected in (("loss", [step / 16 for step in steps]), ("step", list(steps))):
        definition = write_definition(found.expressions[metric])
        assert values(re.compile(definition), lines) == expected
        assert len(definition) <= LONGEST_EXPRESSION


@pytest.mark.parametrize("filler", [" ", "a ", "[ ", "| ", "1", "loss: ", "a", "a/", "a1_/@"])
@pytest.mark.parametrize("start", ["loss", ""])
def test_a_long_run_of_one_token_does_not_slow_the_reader(filler, start):
    """An expression that backtracks over each pair of its places takes minutes for such a line."""

    def read(length: int) -> None:
        lines = [f"{start}{filler * (length // len(filler))} loss: {step}" for step in range(8)]
        found = find_metrics(lines, where="train.log")
        assert len(values(compile_reader(found.expressions["loss"]), lines)) == len(lines)

    read(790)
    assert growth(lambda: read(790), lambda: read(7900)) < 50


def test_a_validation_that_is_still_to_come_is_not_read():
    """A proposal is made from the log of the first minutes, before there is any validation."""
    found = find_metrics([f"| step {n} | loss {n / 16}" for n in ROWS], where="train.log")
    definition = re.compile(write_definition(found.expressions["loss"]))
    assert not definition.findall("| end of epoch   1 | time: 45.20s | valid loss  6.14 | valid ppl   465.73")
    assert definition.findall("step 9 loss 6.14") == ["6.14"]


def test_epochs_on_few_lines_are_found_in_a_long_log():
    """Only a part of such a log is looked at. Without its epochs each would be another launch."""
    batches = [line for batch in range(270) for line in (f"  Batch {batch}/270", "    Loss: 2.5")]
    found = find_metrics([line for n in range(1, 41) for line in (f"Epoch {n}/40", *batches)], where="train.log")
    assert "Batch" in found.expressions["step"] and "Epoch" in found.expressions["epoch"]


def test_an_epoch_with_many_losses_is_not_proposed_as_the_step():
    """Only one minute of each epoch would be evaluated. A counter that begins again with each is named as such."""
    lines = [f"| epoch {n // 20} | {n % 20 * 50}/1000 | loss {n / 16}" for n in range(80)]
    assert set(find_metrics(lines, where="train.log").expressions) == {"epoch", "step", "loss"}
    restarted = [line.replace(line[:10], "| epoch 0 ") for line in lines]
    assert set(find_metrics(restarted, where="train.log").expressions) == {"step", "loss"}
    lines = [re.sub(r"\| [0-9]+/1000 ", "", line) for line in lines]
    assert set(find_metrics(lines, where="train.log").expressions) == {"epoch", "loss"}


def test_the_bar_of_a_save_is_no_step():
    """The Trainer's own bar has no name; with `disable_tqdm` it is missing, and that of each save's shards is left."""
    save = [f"Writing model shards: {100 * n}%|##| {n}/1 [00:00<00:00, 9it/s]" for n in (0, 1)]
    for bar in ("", "  5%|# | 9/400 [00:02<00:30, 4it/s]"):
        lines = [*save, bar, "{'loss': '2.5', 'epoch': '0.1'}"] * 9
        step = find_metrics(lines, where="train.log").expressions.get("step", "")
        assert ("/400" in step) is bool(step) is bool(bar)


@pytest.mark.parametrize(
    ("form", "has_step"),
    [
        ("Average loss for last 200 batches is {loss}", False),
        ("mean loss over the last 100 iterations: {loss}", False),
        ("Loss (last 50 batches): {loss}", False),
        ("Loss at step {step}: {loss}", True),
        ("loss after epoch {step} is {loss}", True),
        ("The loss in iteration {step}/900 = {loss}", True),
    ],
)
def test_the_steps_that_a_loss_is_of_are_not_read_as_the_loss(form, has_step):
    lines = [form.format(step=step, loss=f"{5 - step / 100:.2f}") for step in range(10, 40)]
    found = find_metrics(lines, where="train.log").expressions
    assert values(compile_reader(found["loss"]), lines) == [round(5 - step / 100, 2) for step in range(10, 40)]
    assert values(compile_reader(found["step"]), lines) == list(range(10, 40)) if has_step else "step" not in found


def test_an_evaluation_that_prints_like_training_is_not_read():
    """Paddle's high-level API prints both alike; only their totals and the line above the evaluation differ."""
    steps, checks = range(10, 110, 10), range(10, 40, 10)
    lines = []
    for epoch in (1, 2, 3):
        lines += [f"Epoch {epoch}/3", *(f"step {step}/100 - loss: 0.{900 - step - epoch}" for step in steps)]
        lines += ["Eval begin...", *(f"step {step}/30 - loss: 2.5" for step in checks), "Eval samples: 11219"]
    found = find_metrics(lines, where="train.log").expressions
    assert len(read := values(compile_reader(found["loss"]), lines)) == 30 and max(read) < 1
    assert values(compile_reader(found["step"]), lines) == [*steps] * 3
    assert values(compile_reader(found["epoch"]), lines) == [1, 2, 3]
    assert len(values(re.compile(write_definition(found["step"])), lines)) == 30


def test_the_steps_of_a_text_that_a_model_wrote_are_not_those_of_the_run():
    texts = [
        ["Step 1: add them.", "Step 2: halve that.", "**Step 3:** done", f"grpo_loss is 0.{n}"] for n in range(20, 50)
    ]
    found = find_metrics([line for text in texts for line in text], where="train.log").expressions
    assert "loss" in found and "step" not in found
    apart = [line for n in range(20, 50) for line in (f"Step {n}/900", f"loss is 0.{n}")]
    assert "step" in find_metrics(apart, where="train.log").expressions


def test_what_is_beside_a_loss_is_read_whether_or_not_the_loss_is_finite():
    lines = [f"step {n} (1%) | loss: {'nan' if n > 17 else 2.5} | dt: 5ms | tok/sec: {n},000" for n in range(10, 90)]
    speed = find_metrics(["Average tok/sec: 9", *lines], where="train.log").expressions["tokens_per_s"]
    assert len(values(compile_reader(speed), lines)) == len(lines)
    finite = "step 7 (1%) | loss: 2.5 | dt: 5ms | tok/sec: 9"
    assert values(re.compile(write_definition(speed)), [finite]) == [9]


def test_several_losses_are_asked_for():
    lines = [f"step {step} mlm_loss=1.{step} nsp_loss=0.3" for step in range(10, 20)]
    with pytest.raises(BadInput, match="several losses: mlm_loss, nsp_loss"):
        find_metrics(lines, where="train.log")
    found = find_metrics(lines, where="train.log", loss="nsp_loss")
    assert values(compile_reader(found.expressions["loss"]), lines) == [0.3] * 10
    for name, problem in (("other", "prints no 'other'"), ("val_loss", "values of an evaluation are not read")):
        with pytest.raises(BadInput, match=problem):
            find_metrics(lines, where="train.log", loss=name)


def test_a_log_without_a_loss_is_explained():
    for lines, remedy in (
        (["epoch 1 accuracy 0.5", "loss scale: 65536"], "--loss if the loss is one of accuracy"),
        (["0:\tlearn: 0.6569860\ttest: 0.6570642\ttotal: 70.1ms"], "one of learn"),  # CatBoost: it may be the accuracy
        # Of `ManayPorwal-code/T2ICount-...`: what varies beside the epoch, not the epochs of other lines.
        (
            ["Epoch:0/299---", "Epoch 0 Train, reg:0.32, mae:84.7", "Epoch 1 Train, reg:0.31, mae:35.1"],
            "one of reg, mae",
        ),
        (["第1轮 步数: 10 损失: 2.31"], "one of 步数, 损失: --metric 'loss=NAME[:： ]+"),
    ):
        with pytest.raises(BadInput, match="has a loss with its name") as raised:
            find_metrics(lines, where="train.log")
        assert remedy in raised.value.remedy
    # Of `pilot-j/Gsoc_Deeplense`.
    with pytest.raises(BadInput, match="only one of an evaluation: 'Test Loss'"):
        find_metrics(["Epoch 1/400, Test Loss: 1.1037, Accuracy on Test set: 31.03%"], where="train.log")


@given(st.lists(st.text(alphabet="loss step=:0123456789.,eE+-nai|[]'{}\t ", max_size=60), max_size=12))
def test_any_text_is_read_or_refused(lines):
    try:
        found = find_metrics(lines, where="train.log")
    except BadInput:
        return
    assert {"loss"} <= set(found.expressions)
