"""The plain Hugging Face script of the demo: the real library, run as SageMaker runs it."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.demo.scripts import HUGGING_FACE, OURS
from rerail.model.checkpoint_layouts import Layout, StoredObject, find_checkpoints

EXAMPLE = Path(__file__).parents[2] / "local" / "examples" / "huggingface"
STEPS = 9
pytestmark = [pytest.mark.slow, pytest.mark.time_limit(400, reason="real trainings beside other suites")]


def train(base: Path, **environment: str) -> str:
    """What the job prints; its checkpoints are below the base folder."""
    request = HUGGING_FACE.make_request(steps=STEPS, save_every=3, keep=9, step_seconds=0.12)
    algorithm = request["AlgorithmSpecification"]
    command = [sys.executable, *algorithm["ContainerEntrypoint"][1:], *algorithm["ContainerArguments"]]
    basics = {"PATH": os.environ["PATH"], "HOME": str(base), "SAGEMAKER_BASE_DIR": str(base), "PYTHONUNBUFFERED": "1"}
    ran = subprocess.run(
        command, env=basics | request["Environment"] | environment, stdout=-1, stderr=-2, check=True, timeout=1800
    )
    return ran.stdout.decode()


def listed(base: Path) -> list[StoredObject]:
    found = [path for path in (base / "checkpoints").rglob("*") if path.is_file()]
    at = datetime.fromtimestamp
    return [
        StoredObject(str(p.relative_to(base / "checkpoints")), p.stat().st_size, at(p.stat().st_mtime, UTC))
        for p in found
    ]


class Folder:
    """S3 with one folder of this machine in it."""

    def __init__(self, base: Path) -> None:
        self.base = base / "checkpoints"

    def get_paginator(self, name: str) -> "Folder":
        return self

    def paginate(self, **place: str) -> list[dict[str, Any]]:
        return [{"Contents": [{"Key": str(p.relative_to(self.base))} for p in self.base.rglob("*") if p.is_file()]}]

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        return {"Body": (self.base / Key).open("rb")}


def test_its_lines_are_read_and_its_saves_are_known(tmp_path):
    """The loss and the step from the Trainer's own lines; a NaN gives no number; each save is whole by its layout. From
    the clean ones a sound machine goes on to the very losses of an undisturbed run."""
    sound, broken = tmp_path / "sound", tmp_path / "broken"
    printed = train(sound)
    read = [pair for line in printed.split("\n") for pair in HUGGING_FACE.parse_losses(line)]
    exact = HUGGING_FACE.read_saved_losses(Folder(sound), "bucket", "")
    assert list(exact) == list(range(1, STEPS + 1))
    rounded = {step: float(f"{loss:.4g}") for step, loss in exact.items()}
    assert [float(loss) for loss in re.findall(HUGGING_FACE.loss, printed)] == list(rounded.values())
    assert len(read) >= STEPS - 2, "after a save the bar may stand in a line of its own"
    assert all(loss in (rounded.get(step), rounded.get(step + 1)) for step, loss in read), "or be one step late"
    assert [(s.layout, s.step, s.is_whole) for s in find_checkpoints(listed(sound))] == [
        (Layout.HUGGING_FACE, step, True) for step in (9, 6, 3)
    ]
    torn = [each for each in listed(sound) if each.key != "checkpoint-9/optimizer.pt"]
    assert [s.step for s in find_checkpoints(torn) if s.is_whole] == [6, 3]

    assert len(re.findall(HUGGING_FACE.loss, train(broken, BREAK_AT="4"))) == 4, "from step 5 on there is none"
    for step in (6, 9):  # as the supervisor moves them
        (broken / "checkpoints" / f"checkpoint-{step}").rename(tmp_path / f"aside-{step}")
    assert re.search(r"[^0-9]9/9 \[", train(broken, BREAK_AT="4", RERAIL_ATTEMPT="2"))
    assert HUGGING_FACE.read_saved_losses(Folder(broken), "bucket", "") == exact


def test_the_page_shows_the_definitions_that_the_demo_uses():
    """Whoever copies them out of the example's README has what was tried."""
    shown = re.search(r"```json\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    request = HUGGING_FACE.make_request(steps=9, save_every=3, keep=9, step_seconds=0.0)
    assert shown
    assert json.loads(shown[1]) == request["AlgorithmSpecification"]["MetricDefinitions"]


def test_a_line_of_our_own_script_has_both():
    assert list(OURS.parse_losses("[0] rerail step=60 loss=2.5 nonfinite=0")) == [(60, 2.5)]
    assert list(HUGGING_FACE.parse_losses("Writing model shards: 100%|###| 1/1 [00:00<00:00, 9it/s]")) == []
