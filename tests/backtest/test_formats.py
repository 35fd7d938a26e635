"""Each kind of input, on a small piece of a real log."""

import csv
import gzip
import json
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from cli.backtest import jobs, json_rows, sources, tables, tensorboards, trainer
from cli.backtest.series import BadInput, find_columns, parse_time
from tests.backtest.command import DATA

CSV, STATE = DATA / "metrics.csv", DATA / "trainer_state.json"


def numbers(column: str) -> list[float]:
    """A column of the CSV, as the csv module reads it."""
    return [float(row[column]) for row in csv.DictReader(CSV.open()) if row[column]]


def test_a_csv_is_read_by_what_its_columns_mean():
    """Other names, validation rows between; each sample knows the row that it came from."""
    series = tables.read(CSV)
    assert [one.loss for one in series.samples] == numbers("train/loss")
    assert series.samples[0].step_time_s == pytest.approx(0.86, abs=0.05)
    assert (series.samples[0].step, series.find_row(99), series.find_row(100)) == (150000, 99, 101)
    assert series.notes == ("the column train/loss was judged as the loss",)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
@pytest.mark.parametrize("name", ["metrics.csv.gz", "metrics.csv"])
def test_a_csv_may_be_gzipped_and_in_other_encodings(tmp_path: Path, name: str, encoding: str):
    """The same samples: `>` writes UTF-16 in Windows PowerShell, and old spreadsheets write no UTF-8."""
    header, rows = CSV.read_text().split("\n", 1)
    content = f"{header},Größe\n{rows}".encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert tables.read(tmp_path / name).samples == tables.read(CSV).samples


@pytest.mark.parametrize("start", ["step,loss", "{"])
def test_a_first_line_without_an_end_is_not_read_whole(tmp_path: Path, start: str):
    """To tell the kind of a file, a limited part of it is read; a CSV has to have a header within it."""
    for name in ("log", "log.csv"):
        (tmp_path / name).write_text(start + "ü" * 20_000_000)
    tracemalloc.start()
    kinds = tables.is_table(tmp_path / "log"), json_rows.is_lines(tmp_path / "log")
    with pytest.raises(BadInput, match="its first line has 1,000,000 characters or more"):
        tables.read(tmp_path / "log.csv")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kinds == (False, start == "{") and peak < 12_000_000


def test_a_csv_without_steps_counts_rows_and_computes_speed_from_times(tmp_path: Path):
    """The time between two rows is what a step took, if it grows, or else itself; nan is kept, nothing is nothing."""
    file = tmp_path / "log.csv"
    file.write_text("Loss,timestamp\n2.5,1700000000\nnan,1700000002\n,\n2.4,2023-11-14T22:13:24\n")
    first, second, last = tables.read(file).samples
    assert (first.step, second.step, last.step) == (0, 1, 3)
    assert second.loss is not None and second.loss != second.loss
    assert (first.step_time_s, second.step_time_s, last.step_time_s) == (None, 2.0, 1.0)
    file.write_text("iter,loss,time\n" + "".join(f"{n},1,{0.5 + n % 2}\n" for n in range(4)))  # as mmcv writes
    assert [sample.step_time_s for sample in tables.read(file).samples] == [0.5, 1.5, 0.5, 1.5]


@pytest.mark.parametrize(
    ("names", "loss"),
    [
        (["epoch", "Train Loss"], "Train Loss"),
        (["Loss/train", "Loss/val"], "Loss/train"),
        (["lm loss", "aux loss"], "lm loss"),
        (["mlm_loss", "val_loss", "best_loss"], "mlm_loss"),
        (["losses", "val_losses"], "losses"),
        (["train/box_loss", "train/cls_loss", "val/box_loss"], "train/box_loss"),
        (["t_loss", "v_loss"], "t_loss"),
        (["num_loss_tokens", "train_mean_nll", "test/nll"], "train_mean_nll"),
    ],
)
def test_the_training_loss_is_recognised(names, loss):
    """By its usual names, or as the only loss that is trained on."""
    assert find_columns(names, where="here")["loss"] == loss


def test_two_candidates_are_not_guessed_between():
    """The message names both."""
    with pytest.raises(BadInput, match="mlm_loss, nsp_loss"):
        find_columns(["step", "mlm_loss", "nsp_loss"], where="here")


def test_a_trainer_state_is_read_without_its_evaluations():
    """Only entries with a training loss; the place in log_history is the row. A gradient may be NaN in them."""
    series = trainer.read(STATE)
    history = json.loads(STATE.read_text())["log_history"]
    assert [one.loss for one in series.samples] == [entry["loss"] for entry in history if "loss" in entry]
    assert any(one.grad_norm is not None and one.grad_norm != one.grad_norm for one in series.samples)
    assert history[series.find_row(1)]["step"] == series.samples[1].step == 5001


def test_an_output_folder_of_the_trainer_means_its_last_checkpoint(tmp_path: Path):
    """By number, not by name: 1000 comes after 900."""
    for number in (900, 1000):
        (tmp_path / f"checkpoint-{number}").mkdir()
        entry = {"step": number, "loss": 1.0}
        (tmp_path / f"checkpoint-{number}" / trainer.STATE).write_text(json.dumps({"log_history": [entry]}))
    (log,) = sources.find(str(tmp_path), local=False)
    assert log.read().samples[0].step == 1000


def write_events(folder: Path, *, as_tensors: bool = False, tag: str = "train/loss") -> None:
    """The CSV's loss as a run of TensorBoard, a step every half second."""
    writer = EventFileWriter(str(folder))
    for place, (step, loss) in enumerate(zip(numbers("global_step"), numbers("train/loss"), strict=False)):
        at = 1.7e9 + 50.0 * place
        if as_tensors:
            plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
            value = Summary.Value(tag=tag, metadata=plugin, tensor=make_tensor_proto(loss, dtype="float32"))
        else:
            value = Summary.Value(tag=tag, simple_value=loss)
        writer.add_event(Event(wall_time=at, step=int(step), summary=Summary(value=[value])))
        norm = Summary.Value(tag="train/grad_norm", simple_value=0.5)
        writer.add_event(Event(wall_time=at + 0.01, step=int(step), summary=Summary(value=[norm])))
    evaluation = Summary.Value(tag="eval/loss", simple_value=9.0)
    writer.add_event(Event(wall_time=1.7e9, step=1, summary=Summary(value=[evaluation])))
    writer.close()


@pytest.mark.parametrize("as_tensors", [False, True], ids=["torch", "tensorflow"])
def test_a_tensorboard_run_is_read(tmp_path: Path, as_tensors):
    """Tags joined by step, from either way of storing scalars; the speed from the times of the events."""
    write_events(tmp_path, as_tensors=as_tensors)
    (series,) = tensorboards.read(tmp_path)
    assert [one.loss for one in series.samples] == pytest.approx(numbers("train/loss")[: len(series.samples)], rel=1e-6)
    assert len(series.samples) > 400 and series.find_row(7) == 7
    assert {one.grad_norm for one in series.samples} == {0.5}
    assert series.samples[1].step_time_s == pytest.approx(0.5)
    assert series.samples[0].at == datetime.fromtimestamp(1.7e9, UTC)


def test_a_folder_of_tensorboard_runs_is_a_log_each(tmp_path: Path):
    """A run without a loss, or with values that are not numbers, is left out; an impossible time is unknown."""
    write_events(tmp_path / "one")
    write_events(tmp_path / "two")
    plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    odd = Summary.Value(tag="loss", metadata=plugin, tensor=make_tensor_proto([1.0, 2.0]))
    for name, value in (("other", Summary.Value(tag="accuracy", simple_value=1.0)), ("odd", odd)):
        writer = EventFileWriter(str(tmp_path / name))
        writer.add_event(Event(wall_time=float("nan"), step=1, summary=Summary(value=[value])))
        writer.close()
    assert [log.name for log in sources.find(str(tmp_path), local=False)] == ["one", "two"]
    assert [log.name for log in sources.find(str(tmp_path), local=False, loss="accuracy")] == ["other"]
    (file,) = (tmp_path / "two").iterdir()
    write_events(tmp_path / "two")
    assert len(sources.find(str(file), local=False)[0].read().samples) < 500  # without the other file beside it
    for name in ("train", "validation"):  # as in `Ferretelic/HarmfulAnimalClassifier`, of Keras's callback
        write_events(tmp_path / "keras" / name, as_tensors=True, tag="epoch_loss")
    (log,) = sources.find(str(tmp_path / "keras"), local=False)
    assert log.name == "train" and log.read().notes == ("the column epoch_loss was judged as the loss",)


def test_tensorboard_is_asked_for_in_one_line(tmp_path: Path, monkeypatch):
    """With the version that is known to work."""
    write_events(tmp_path)
    monkeypatch.setattr(tensorboards.importlib, "import_module", _not_installed)
    with pytest.raises(BadInput, match="pip install tensorboard=="):
        tensorboards.read(tmp_path)


def test_a_metric_line_is_found_behind_a_launchers_prefix():
    """mpirun puts the rank before it; nan and exponents are numbers, words are none."""
    line = "[1,mpirank:0,algo-1]<stdout>:rerail step=60 loss=nan grad_norm=9.1e-05 lr=3e-4 tokens_per_s=123 nonfinite=1"
    found = jobs._line({"message": line, "timestamp": 1_700_000_000_000})
    assert found is not None and found.loss != found.loss
    assert (found.step, found.grad_norm, found.tokens_per_s, found.nonfinite) == (60, 9.1e-05, 123.0, True)
    assert jobs._line({"message": "rerailing 3 jobs", "timestamp": 0}) is None


@pytest.mark.parametrize("text", ["", "yesterday", "1e30"])
def test_what_is_no_time_is_none(text):
    """A column called time may hold anything."""
    assert parse_time(text) is None


def _not_installed(name: str) -> None:
    raise ImportError(name)


@pytest.mark.parametrize(
    ("name", "text", "steps"),
    [
        ("log.jsonl", '{"iteration": 19, "total_loss": 2.5}\n{"iteration": 39, "total_loss": 2.25}\n{"it', [19, 39]),
        ("log.jsonl", '{"phase": "WARMUP", "step": 1, "loss": 2.5}\n{"phase": "on", "step": 2, "loss": 2.25}', [1, 2]),
        (
            "20211105.log.json",
            '{"env_info": "x"}\n{"mode": "train", "epoch": 1, "iter": 50, "loss": 2.5}\n{"mode": "val", "loss": 9}\n'
            '{"mode": "train", "epoch": 2, "iter": 50, "loss": 2.25}\n',
            [50, 100],
        ),
        ("metrics.json", '{"loss": [2.5, 2.25], "val_loss": [3, 3]}', [0, 1]),
        ("rows.json", '[{"step": 1, "train": {"loss": 2.5}}, {"step": 2, "train": {"loss": 2.25}}]', [1, 2]),
        ("train.log", '{"step": 7, "loss": 2.5, "val": {"loss": 9}}\n{"step": 8, "loss": 2.25}\n', [7, 8]),
        ("progress.csv", "epoch,learning_rate,loss,val_loss\n0,1,2.5,9\n1,1,2.25,9\n", [0, 1]),
        ("log.csv", "epoch,batch,loss\n0,0,2.5\n0,9,2.5\n1,0,2.25\n", [0, 9, 10]),
        # Another launch begins again at its first steps, whether epochs count from 0 or from 1.
        ("log.csv", "epoch,step,loss\n1,5,2.5\n2,5,2.5\n1,5,2.25\n", [5, 10, 5]),
        # As Stable-Baselines3 writes it, in `hyojaekim03/warp-mujoco-domain-randomization`.
        ("progress.csv", "time/fps,time/total_timesteps,train/loss\n4,2048,\n2,4096,2.5\n2,6144,2.25\n", [4096, 6144]),
        # The file of `CSVLogger("training.log")`, as Keras's own example calls it.
        ("training.log", "epoch,loss,val_loss\r\n0,2.5,9\r\n1,2.25,9\r\n", [0, 1]),
        ("train.txt", "step\tloss\t\n8\t2.5\t\n9\t2.25\t\n", [8, 9]),
        ("separator.csv", "epoch;loss\n0;2.5\n1;2.25\n", [0, 1]),
        # Editors of Windows write a byte order mark.
        ("mark.csv", "\ufeffstep,loss\n8,2.5\n9,2.25\n", [8, 9]),
        ("mark.log", '\ufeff{"step": 8, "loss": 2.5}\n{"step": 9, "loss": 2.25}\n', [8, 9]),
        ("mark.json", '\ufeff{"log_history": [{"step": 8, "loss": 2.5}, {"step": 9, "loss": 2.25}]}', [8, 9]),
        # The learning curve of DeePMD-kit.
        ("lcurve.out", "#  step  rmse_val  rmse_trn\n# no data: nan\n  8  9.0  2.5 \n  9  9.0  2.25\n", [8, 9]),
        ("marked.csv", "#step,loss\n8,2.5\n9,2.25\n", [8, 9]),
        # A launch appended its header too.
        ("appended.csv", "step,loss\n8,2.5\n9,2.5\nstep,loss\n8,2.25\n", [8, 9, 8]),
    ],
)
def test_logs_of_other_kinds_are_read(tmp_path, name, text, steps):
    """Rows of validations are left out, and epochs count where there are no steps."""
    (tmp_path / name).write_text(text)
    series = sources.find(str(tmp_path / name), local=False)[0].read()
    assert [sample.step for sample in series.samples] == steps
    assert {series.samples[0].loss, series.samples[-1].loss} == {2.5, 2.25}


def test_one_of_several_losses_is_named(tmp_path):
    """As in the results of a segmentation."""
    file = tmp_path / "results.csv"
    file.write_text("epoch,train/seg_loss,train/cls_loss,val/seg_loss\n1,1.5,2.5,3\n2,1.25,2.25,3\n")
    with pytest.raises(BadInput, match="several losses: train/seg_loss, train/cls_loss"):
        sources.find(str(file), local=False)
    series = sources.find(str(file), local=False, loss="train/cls_loss")[0].read()
    assert [sample.loss for sample in series.samples] == [2.5, 2.25]
