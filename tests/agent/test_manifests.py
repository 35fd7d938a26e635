"""A folder becomes a checkpoint; the newest complete one is found, tainted ones are quarantined, and ranks agree."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rerail.model import checkpoints
from rerail.model.mailbox import ReportKind
from rerail_agent import Guard, manifests
from rerail_agent.checkpoints.manifest import read_start
from rerail_agent.manifests import AttemptInfo, commit, resume_from
from tests.agent.jobs import Ranks, command

OURS = AttemptInfo("night", 2)


def folder(root: Path, name: str, **files: bytes) -> Path:
    place = root / name
    place.mkdir(parents=True)
    for file, content in (files or {"model": b"weights", "optimizer": b"moments"}).items():
        (place / file).write_bytes(content)
    return place


def saved(root: Path, name: str, *, attempt: AttemptInfo = OURS, **facts: Any) -> Path:
    place = folder(root, name)
    commit(place, step=int(name.rpartition("-")[2]), attempt=attempt, **facts)
    return place


def moved(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "quarantine").glob("*"))


def test_the_supervisor_takes_what_commit_writes(tmp_path):
    """Files in subfolders are listed by their path; every field is as the supervisor's reader wants it."""
    place = folder(tmp_path, "checkpoint-500")
    (place / "shards" / "0").mkdir(parents=True)
    (place / "shards" / "0" / "data.bin").write_bytes(b"x" * 1000)
    commit(place, step=500, loss=2.5, consumed_samples=4000, world_size=8, reason="emergency", attempt=OURS)
    sizes = {"model": 7, "optimizer": 7, "shards/0/data.bin": 1000, "manifest.json": 1}
    seen = checkpoints.read_manifest((place / "manifest.json").read_bytes(), uri="s3://b/c/manifest.json", sizes=sizes)
    assert (seen.step, seen.attempt, seen.health, seen.is_whole) == (500, 2, "clean", True)
    table = json.loads((place / "manifest.json").read_text())
    assert (table["run"], table["loss"], table["reason"], table["schema"]) == ("night", 2.5, "emergency", 1)
    assert [entry["name"] for entry in table["files"]] == ["model", "optimizer", "shards/0/data.bin"]
    assert sorted(os.listdir(place)) == ["manifest.json", "model", "optimizer", "shards"]


def test_how_long_the_training_stood_still_is_kept(tmp_path):
    """The supervisor's advice is reckoned from it; nonsense counts as not measured."""
    place = saved(tmp_path, "step-1", stall_s=0.25)
    text, sizes = (place / "manifest.json").read_text(), {"model": 7, "optimizer": 7}
    read = partial(checkpoints.read_manifest, uri="s3://b/c/manifest.json", sizes=sizes)
    assert (read(text).stall_s, read(text).write_s) == (0.25, None)
    for nonsense in ("-1", '"long"', "true", "1e9", "null"):
        assert read(text.replace('"stall_s": 0.25', f'"stall_s": {nonsense}')).stall_s is None


def test_a_loss_that_is_no_number_is_left_out(tmp_path):
    """JSON has no NaN."""
    assert manifests.read(saved(tmp_path, "step-1", loss=float("nan"))).loss is None


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [("step-7", {"a": b"1"}, "checkpoint of step 8"), ("model", {"a": b"1"}, "step-8"), ("step-8", None, "no files")],
)
def test_what_is_no_checkpoint_of_this_step_is_refused(tmp_path, name, files, message):
    place = folder(tmp_path, name, **(files or {"manifest.json": b"{}"}))
    with pytest.raises(ValueError, match=message):
        commit(place, step=8)


def test_only_a_folder_that_is_called_like_a_checkpoint_is_committed_unasked(tmp_path):
    """Once; a path elsewhere is none of ours."""
    place = folder(tmp_path, "checkpoint-8")
    assert manifests.commit_if_missing(place, loss=2.0, attempt=OURS)
    assert manifests.read(place).loss == 2.0
    assert not manifests.commit_if_missing(place, loss=3.0)
    assert not manifests.commit_if_missing(folder(tmp_path, "model"))
    assert not manifests.commit_if_missing("s3://bucket/step-8")


def test_a_name_that_the_supervisor_does_not_take_is_refused(tmp_path):
    """Better now than at the resume."""
    with pytest.raises(ValueError, match="printable"):
        commit(folder(tmp_path, "step-8", **{"a\nb": b"1"}), step=8)


@pytest.mark.parametrize("harm", ["missing", "shorter", "other", "torn", "schema", "outside", "renamed"])
def test_a_checkpoint_that_is_not_whole_is_passed_over(tmp_path, capsys, harm):
    """The one before it is taken, and a line says why."""
    before, last = saved(tmp_path, "checkpoint-100"), saved(tmp_path, "checkpoint-1000")
    match harm:
        case "missing":
            (last / "model").unlink()
        case "shorter":
            (last / "model").write_bytes(b"weight")
        case "other":
            (last / "model").write_bytes(b"weighty")
        case "torn":
            (last / "manifest.json").unlink()
        case "schema":
            table = json.loads((last / "manifest.json").read_text())
            (last / "manifest.json").write_text(json.dumps({**table, "schema": 2}))
        case "outside":
            table = json.loads((last / "manifest.json").read_text())
            table["files"][0]["name"] = f"../{before.name}/model"
            (last / "manifest.json").write_text(json.dumps(table))
        case "renamed":
            last = last.rename(tmp_path / "checkpoint-2000")
    assert manifests.find_newest_whole(tmp_path, lambda manifest: True) == before
    assert f"{last.name} is incomplete" in capsys.readouterr().err


def test_steps_are_numbers_and_not_names(tmp_path):
    saved(tmp_path, "checkpoint-999"), folder(tmp_path, "checkpoint-last"), folder(tmp_path, "runs-7")
    newest = saved(tmp_path, "checkpoint-1000")
    assert manifests.find_newest_whole(tmp_path, lambda manifest: True) == newest


def test_tainted_checkpoints_are_moved_and_nothing_is_lost(tmp_path):
    """Those of earlier attempts after the step, and what has no manifest; twice the same name gets a number."""
    first = AttemptInfo("night", 1)
    for name in ("step-1", "step-2", "step-3"):
        saved(tmp_path, name, attempt=first)
    saved(tmp_path, "step-4")
    folder(tmp_path, "step-5")
    manifests.quarantine(tmp_path, after=1, tainted=OURS.must_quarantine)
    assert moved(tmp_path) == ["a1-step-2", "a1-step-3", "aunknown-step-5"]
    saved(tmp_path, "step-2", attempt=first)
    manifests.quarantine(tmp_path, after=1, tainted=OURS.must_quarantine)
    assert moved(tmp_path) == ["a1-step-2", "a1-step-2-2", "a1-step-3", "aunknown-step-5"]
    assert [path.name for path in manifests.list_folders(tmp_path)] == ["step-4", "step-1"]


def test_no_more_than_a_limit_is_read_of_a_manifest(tmp_path, monkeypatch):
    """Others may write to the folder: a manifest without end does not fill the memory, and is passed over."""
    before, last = saved(tmp_path, "checkpoint-100"), saved(tmp_path, "checkpoint-1000")
    limit = (before / "manifest.json").stat().st_size + 100
    with (last / "manifest.json").open("ab") as file:
        file.write(b" " * limit)
    monkeypatch.setattr("rerail_agent.checkpoints.manifest.SIZE_LIMIT", limit)
    assert len(read_start(last / "manifest.json")) == limit
    (last / "manifest.json").write_bytes(b" " * limit + (last / "manifest.json").read_bytes())
    assert resume_from(tmp_path) == before


@pytest.mark.threat("T25")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "number", "no folder"])
def test_nothing_in_the_folder_prevents_a_rollback(tmp_path, monkeypatch, kind):
    """Others may write to it: nothing is read that does not end, and no name is made of a number without end."""
    before, last = saved(tmp_path, "step-4"), saved(tmp_path, "step-6", attempt=AttemptInfo("night", 1))
    manifest = last / "manifest.json"
    text = manifest.read_text()
    match kind:
        case "pipe":
            manifest.unlink()
            os.mkfifo(manifest)
        case "device":
            (before / "empty").symlink_to("/dev/zero")
            table = json.loads((before / "manifest.json").read_text())
            table["files"].append({"name": "empty", "bytes": 0, "checksum": ""})
            (before / "manifest.json").write_text(json.dumps(table))
        case "folder":
            manifest.unlink()
            manifest.mkdir()
        case "number":
            manifest.write_text(text.replace('"attempt": 1', f'"attempt": {10**300}'))
        case "no folder":
            (tmp_path / "quarantine").write_text("x")
    for name, value in {"RERAIL_RUN": "night", "RERAIL_ATTEMPT": "2", "RERAIL_RESUME_STEP": "4"}.items():
        monkeypatch.setenv(name, value)
    assert resume_from(tmp_path) == (None if kind == "device" else before)
    assert len(moved(tmp_path)) == 1
    manifests.delete_checkpoint(tmp_path / "quarantine" / moved(tmp_path)[0])
    assert moved(tmp_path) == []


def test_a_newer_checkpoint_of_another_run_is_moved_too(tmp_path):
    """Whatever attempt it is of, it would be the newest."""
    saved(tmp_path, "step-4", attempt=OURS)
    saved(tmp_path, "step-6", attempt=AttemptInfo("other", OURS.number + 7))
    manifests.quarantine(tmp_path, after=1, tainted=OURS.must_quarantine)
    assert [path.name for path in manifests.list_folders(tmp_path)] == ["step-4"]


@pytest.mark.parametrize(
    ("variables", "found", "quarantined"),
    [
        ({}, "step-6", []),
        ({"RERAIL_ATTEMPT": "2", "RERAIL_RESUME_STEP": "4"}, "step-4", ["a1-step-6"]),
        ({"RERAIL_ATTEMPT": "2", "RERAIL_RESUME_STEP": "5"}, "step-4", ["a1-step-6"]),
        ({"RERAIL_ATTEMPT": "2", "RERAIL_RESUME_STEP": "0"}, None, ["a1-step-2", "a1-step-4", "a1-step-6"]),
        ({"RERAIL_ATTEMPT": "2"}, "step-6", []),
    ],
)
def test_an_attempt_resumes_from_the_step_it_is_given(tmp_path, monkeypatch, variables, found, quarantined):
    """A first job takes the newest; a successor the commanded one or an older one; without a command, what it finds."""
    for step in (2, 4, 6):
        saved(tmp_path, f"step-{step}", attempt=AttemptInfo("night", 1))
    for name, value in {"RERAIL_RUN": "night", **variables}.items():
        monkeypatch.setenv(name, value)
    place = resume_from(tmp_path)
    assert (place and place.name) == found
    assert moved(tmp_path) == quarantined


def test_a_restart_in_place_goes_on_from_its_own_newer_checkpoints(tmp_path, monkeypatch):
    """SageMaker restarts a job with the environment of its first start."""
    saved(tmp_path, "step-4", attempt=AttemptInfo("night", 1))
    saved(tmp_path, "step-6", attempt=OURS)
    for name, value in {"RERAIL_RUN": "night", "RERAIL_ATTEMPT": "2", "RERAIL_RESUME_STEP": "4"}.items():
        monkeypatch.setenv(name, value)
    assert resume_from(tmp_path) == tmp_path / "step-6"


def test_a_mistaken_place_or_step_is_named(tmp_path, monkeypatch):
    """Training from the wrong state would be worse than not starting."""
    with pytest.raises(ValueError, match="must be a folder"):
        resume_from("s3://bucket/checkpoints")
    monkeypatch.setenv("RERAIL_RESUME_STEP", "latest")
    with pytest.raises(ValueError, match="RERAIL_RESUME_STEP='latest'"):
        resume_from(tmp_path)


def test_the_last_clean_checkpoint_is_never_deleted(tmp_path):
    """However many suspect ones follow it."""
    for step in range(1, 6):
        saved(tmp_path, f"step-{step}", health="clean" if step < 3 else "suspect")
    listed = manifests.read_all(tmp_path).values()
    assert manifests.choose_kept(listed, keep=2, newest=5) == {2, 4, 5}
    assert manifests.choose_kept(listed, keep=1, newest=2) == {2}


@pytest.mark.parametrize("keep", [1, 3])
def test_the_last_checkpoints_from_before_an_open_problem_are_never_deleted(tmp_path, keep):
    """Those saved between the onset and its detection call themselves clean; one more than `keep` stays."""
    for step in range(1, 10):
        saved(tmp_path, f"step-{step}", health="clean" if step < 6 else "suspect")
    listed = manifests.read_all(tmp_path).values()
    assert manifests.choose_kept(listed, keep=keep, newest=9, onset=4) == {*range(4 - keep, 4), 9}
    assert manifests.find_safe(tmp_path, newest=9) == 5
    assert manifests.find_safe(tmp_path, newest=9, onset=1) == 5  # nothing is from before it


def test_a_damaged_checkpoint_is_saved_again_and_a_whole_one_is_kept(tmp_path, new_guard):
    """A replayed step is the same state again."""
    checkpoints = manifests.FrameworkCheckpoints(new_guard(), tmp_path, keep=3)
    whole = saved(tmp_path, "step-000000001")
    checkpoints.save(1, lambda place: (place / "model").write_text("new"), reason="periodic")
    assert (whole / "model").read_bytes() == b"weights"
    (whole / "model").write_bytes(b"damaged")
    checkpoints.save(1, lambda place: (place / "model").write_text("new"), reason="periodic")
    assert (whole / "model").read_text() == "new"
    assert manifests.is_whole(whole)


@pytest.mark.threat("T19")
def test_frameworks_delete_nothing_of_a_run_that_shares_their_folder(tmp_path, new_guard):
    """Neither what the other run has saved, before or after this one began, nor a folder that it is still writing."""
    saved(tmp_path, "step-000000001")
    checkpoints = manifests.FrameworkCheckpoints(new_guard(), tmp_path, keep=1)
    saved(tmp_path, "step-000000002")
    (tmp_path / "step-000000003").mkdir()
    for step in (2, 4, 5):
        checkpoints.save(step, lambda place: (place / "model").write_text("own"), reason="periodic")
    assert sorted(int(path.name[-1]) for path in tmp_path.iterdir()) == [1, 2, 3, 5]


@pytest.mark.threat("T19")
@pytest.mark.parametrize("change", ["damage", "garble", "sign"])
def test_a_checkpoint_of_another_run_at_the_same_step_goes_to_quarantine(tmp_path, new_guard, monkeypatch, change):
    """One whose files or manifest are damaged, or that the run has not signed: it is neither deleted nor taken."""
    other = saved(tmp_path, "step-000000001")
    if change == "sign":
        monkeypatch.setenv("RERAIL_SEAL_KEY", "a" * 64)
        saved(tmp_path, "step-000000000")
    else:
        (other / ("model" if change == "damage" else "manifest.json")).write_bytes(b"damaged")
    monkeypatch.setenv("RERAIL_RUN", "another")
    checkpoints = manifests.FrameworkCheckpoints(new_guard(), tmp_path, keep=3)
    checkpoints.save(1, lambda place: (place / "model").write_text("own"), reason="periodic")
    assert (other / "model").read_text() == "own"
    assert (tmp_path / "quarantine" / "aunknown-step-000000001" / "model").exists()


def test_ranks_save_one_checkpoint_together_and_agree_on_the_newest(tmp_path):
    """Rank 0 lists what all have written; where one machine lacks a step, all take the one before."""
    ranks = Ranks(on_two_machines, 2, roots=[str(tmp_path / "a"), str(tmp_path / "b")])
    assert ranks.answers() == [("step-000000002", ["rank0", "rank1"])] * 2


def test_a_save_that_fails_on_one_rank_fails_on_all(tmp_path):
    """None waits for the other, and what was written is no checkpoint."""
    assert Ranks(one_fails, 2, root=str(tmp_path)).answers() == ["None", "None"]
    assert manifests.find_newest_whole(tmp_path, lambda manifest: True) is None


def on_two_machines(rank: int, *, say: Any, roots: list[str]) -> tuple[str, list[str]]:
    """Both save steps 1 to 3 to one disk; then the second looks at a copy that lacks the third."""
    import shutil

    from torch import distributed as dist

    shared, own = Path(roots[0]), Path(roots[rank])
    os.environ["LOCAL_RANK"] = str(rank)
    checkpoints = manifests.FrameworkCheckpoints(Guard.from_env(), shared, keep=5)
    for step in (1, 2, 3):
        checkpoints.save(step, lambda place: (place / f"rank{rank}").write_text("shard"), reason="periodic")
    os.environ["LOCAL_RANK"] = "0"
    if rank == 1:
        shutil.copytree(shared, own)
        manifests.delete_checkpoint(own / "step-000000003")
    dist.barrier()
    found = resume_from(own)
    assert found is not None
    return found.name, [entry["name"] for entry in manifests.read(found).files]


def one_fails(rank: int, *, say: Any, root: str) -> str:
    def write(place: Path) -> None:
        if rank == 1:
            raise OSError(28, "No space left on device")
        (place / "shard").write_text("shard")

    manifests.FrameworkCheckpoints(Guard.from_env(), Path(root), keep=5).save(1, write, reason="periodic")
    return str(resume_from(root))


def test_a_plain_loop_answers_the_supervisor(new_guard, bucket, tmp_path):
    """With its own save function: conclude() makes the manifest and reports it."""
    guard = new_guard(bucket)
    bucket.command(command("c1"))
    bucket.wait_for_report(ReportKind.ACKNOWLEDGED)
    guard.step(step=5, loss=2.0)
    assert guard.wants_checkpoint
    place = folder(tmp_path, "step-5")
    assert manifests.finish_checkpoint(guard, place, step=5, reason=guard.reason, loss=2.0)
    report = bucket.wait_for_report(ReportKind.CHECKPOINT)
    assert (report.step, report.path, manifests.read(place).run) == (5, str(place), "night")


def snippets(heading: str) -> list[str]:
    """The Python of a section of the page for users, in its order."""
    page = (Path(__file__).parents[2] / "docs" / "scripts.md").read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [part.partition("```")[0] for part in section.split("```python\n")[1:]]


def test_the_page_for_users_shows_a_plain_loop_that_works(bucket, new_guard, tmp_path):
    """Its three snippets: the supervisor asks at step 3, SIGTERM comes at step 5, and the next attempt goes on."""
    import signal

    import torch

    new_guard(bucket).close(within_s=0.2)  # its environment is what Guard.from_env() finds
    loop, save, resume, _ = (compile(text, "docs/scripts.md", "exec") for text in snippets("Plain PyTorch"))
    model = torch.nn.Linear(2, 1)
    names: dict[str, Any] = {"root": tmp_path, "model": model, "optimizer": torch.optim.AdamW(model.parameters())}

    def train_step() -> torch.Tensor:
        names["done"] = names["done"] + 1
        if names["done"] == 3:
            bucket.command(command("c1"))
            bucket.wait_for_report(ReportKind.ACKNOWLEDGED)
        if names["done"] == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return torch.tensor(2.0)

    names |= {"train_step": train_step, "steps": 8, "done": 0}
    for part in (save, resume, loop):
        exec(part, names)
    names["guard"].close(within_s=0.2)
    assert (names["start"], names["step"]) == (0, 5)
    assert bucket.wait_for_report(ReportKind.CHECKPOINT).step == 3
    assert [manifests.read(tmp_path / f"step-{step}").reason for step in (3, 5)] == ["emergency", "sigterm"]
    exec(resume, names)
    assert names["start"] == 5
    exec(loop, names)
    names["guard"].close(within_s=0.2)
    assert names["step"] == 8
