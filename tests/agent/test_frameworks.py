"""The behaviour that both framework callbacks share: the real libraries, a tiny model, one process."""

import os
import signal
from functools import partial
from typing import Any

import pytest
import torch

from rerail.model import checkpoints
from rerail.model.mailbox import ReportKind
from rerail_agent import manifests
from tests.agent.frameworks import LINE, STEPS, HuggingFace, Lightning, Trained, read_manifest
from tests.agent.jobs import announced, ask_for_checkpoint, fence
from tests.raising import raising

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
HF, LIGHTNING = HuggingFace(), Lightning()
Framework = HuggingFace | Lightning


@pytest.fixture(params=[HF, LIGHTNING], ids=lambda framework: framework.key, scope="module")
def framework(request: pytest.FixtureRequest) -> Framework:
    return request.param


@pytest.fixture(scope="module")
def undisturbed(framework: Framework, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The same training without Rerail."""
    return framework.train(tmp_path_factory.mktemp("undisturbed"))


def has_same_weights(one: Trained, other: Trained) -> bool:
    return all(torch.equal(value, other.weights[name]) for name, value in one.weights.items())


def test_training_is_what_it_was_without_the_callback(framework, undisturbed, new_guard, tmp_path, capsys):
    """Outside SageMaker: the same losses and weights bit for bit, a metric line for each step, and no checkpoint."""
    trained = framework.train(tmp_path, new_guard())
    assert trained.losses == undisturbed.losses and has_same_weights(trained, undisturbed)
    lines = list(LINE.finditer(capsys.readouterr().out))
    assert [int(line[1]) for line in lines] == list(range(1, STEPS + 1))
    assert [float(line[2]) for line in lines] == pytest.approx(trained.losses, rel=1e-8)
    assert float(lines[0][3]) == pytest.approx(framework.first_rate, rel=1e-5)  # the rate of that very step
    assert framework.checkpoints(tmp_path) == []


@pytest.mark.parametrize(
    ("framework", "changes"), [(HF, {}), (HF, {"logging_steps": 5}), (LIGHTNING, {})], indirect=["framework"]
)
def test_a_checkpoint_is_saved_when_the_supervisor_asks(framework, changes, new_guard, bucket, tmp_path):
    """At the very step in which the command arrives, be it logged or not; the report names its folder."""
    ask = framework.before_step(6, partial(ask_for_checkpoint, bucket))
    framework.train(tmp_path, new_guard(bucket), ask, **changes)
    report, folder = bucket.wait_for_report(ReportKind.CHECKPOINT), framework.checkpoint(tmp_path, 6)
    assert (report.command, report.step, report.durability, report.path) == ("c1", 6, "local", str(folder))
    assert framework.checkpoints(tmp_path) == [folder]
    assert read_manifest(folder)["reason"] == "emergency"
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    text = (folder / "manifest.json").read_text()
    seen = checkpoints.read_manifest(text, uri=f"{folder}/manifest.json", sizes=sizes)
    assert (seen.step, seen.attempt, seen.is_whole, seen.health) == (6, 1, True, "clean")


def test_sigterm_saves_and_ends_the_training(framework, undisturbed, new_guard, tmp_path):
    """After the step that is under way, without what was due then; the next attempt goes on bit for bit."""
    guard = new_guard()
    end = framework.before_step(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    trained = framework.train(tmp_path, guard, end, **framework.after_step_5)
    assert guard.should_stop
    assert (len(trained.losses), trained.evaluated, trained.status) == (5, [], framework.sigterm_status)
    assert read_manifest(framework.checkpoint(tmp_path, 5))["reason"] == "sigterm"
    resumed = framework.train(tmp_path, new_guard(), resume=framework.resume_from(tmp_path))
    assert resumed.losses == undisturbed.losses[5:]


@pytest.mark.parametrize("save_every", [5, 8])
def test_a_killed_training_goes_on_as_if_nothing_had_happened(framework, undisturbed, new_guard, tmp_path, save_every):
    """Killed at step 10, with a torn save in the folder: the same losses and weights bit for bit, dropout included."""
    child = os.fork()
    if child == 0:
        die = framework.before_step(10, lambda: os.kill(os.getpid(), signal.SIGKILL))
        framework.train(tmp_path, new_guard(), die, save_every=save_every)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    torn = framework.checkpoint(tmp_path, 9)
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"half")
    found = framework.resume_from(tmp_path)
    assert found == framework.resume_path(tmp_path, save_every)
    trained = framework.train(tmp_path, new_guard(), save_every=save_every, resume=found)
    assert trained.losses == undisturbed.losses[save_every:] and has_same_weights(trained, undisturbed)
    assert read_manifest(framework.checkpoint(tmp_path, STEPS))["consumed_samples"] == 4 * STEPS


def test_an_attempt_that_rolls_back_trains_those_steps_again(framework, undisturbed, new_guard, tmp_path):
    """Later checkpoints are quarantined, where no limit deletes them, and saved under the new attempt's number."""
    framework.train(tmp_path, new_guard(), save_every=4, keep=3)
    guard = new_guard(RERAIL_RUN="local", RERAIL_ATTEMPT="2", RERAIL_RESUME_STEP="4", TRAINING_JOB_NAME="local-a002")
    found = framework.resume_from(tmp_path)
    assert found == framework.resume_path(tmp_path, 4)
    later = {f"a1-{framework.checkpoint(tmp_path, step).name}" for step in (8, 12)}
    assert {path.name for path in (tmp_path / "quarantine").iterdir()} == later
    trained = framework.train(tmp_path, guard, save_every=4, keep=3, resume=found)
    assert trained.losses == undisturbed.losses[4:]
    assert [read_manifest(folder)["attempt"] for folder in framework.checkpoints(tmp_path)] == [1, 2, 2]
    assert manifests.is_whole(framework.checkpoint(tmp_path, 4))


def test_a_fenced_attempt_saves_no_more(framework, new_guard, bucket, tmp_path):
    fenced = framework.before_step(6, partial(fence, bucket))
    framework.train(tmp_path, new_guard(bucket), fenced, save_every=4)
    assert framework.checkpoints(tmp_path) == [framework.checkpoint(tmp_path, 4)]


def test_a_save_that_fails_is_refused_and_training_goes_on(framework, new_guard, bucket, tmp_path, monkeypatch):
    """The supervisor receives the reason, and need not wait; no later attempt takes what is left for a checkpoint."""

    monkeypatch.setattr(*framework.broken_save, raising(OSError(28, "No space left on device")))
    trained = framework.train(
        tmp_path, new_guard(bucket), framework.before_step(6, partial(ask_for_checkpoint, bucket))
    )
    assert "No space left" in bucket.wait_for_report(ReportKind.REFUSED).reason
    assert len(trained.losses) == STEPS
    assert framework.resume_from(tmp_path) is None


def test_evaluations_and_saves_are_no_slow_steps(framework, new_guard, tmp_path):
    """The heartbeat tells them apart, and what comes after the last step is no hang either."""
    guard, phases = new_guard(), set()
    spy = framework.phases(lambda what: phases.add((what, str(guard._progress.phase))))
    framework.train(tmp_path, guard, spies=[spy], save_every=4, **framework.evaluating)
    assert phases == {("evaluating", "evaluation"), ("saving", "save"), ("stepping", "step")}
    assert guard._progress.phase == "evaluation"


def test_the_detectors_remember_across_a_resume(framework, new_guard, tmp_path):
    """Their state of step 8 is restored when a successor starts there."""
    first, second = new_guard(), new_guard()
    framework.train(tmp_path, first, save_every=8, max_steps=8)
    assert first.state_dict() != second.state_dict()
    remembered: list[Any] = []
    remember = framework.before_step(9, lambda: remembered.append(second.state_dict()))
    framework.train(tmp_path, second, remember, max_steps=9, resume=framework.resume_from(tmp_path))
    assert remembered == [first.state_dict()]


def test_data_of_unknown_order_is_not_skipped_and_the_log_has_the_reason(
    framework, new_guard, bucket, tmp_path, monkeypatch, capsys
):
    for (changes, name), (again, _) in zip(framework.unordered(tmp_path), framework.unordered(tmp_path), strict=True):
        monkeypatch.delenv("RERAIL_SKIP_SAMPLES", raising=False)
        without = framework.train(tmp_path, max_steps=4, **changes)
        guard = new_guard(bucket, RERAIL_SKIP_SAMPLES="8-15")
        assert framework.train(tmp_path, guard, max_steps=4, **again).losses == without.losses
        ignored = [line for line in capsys.readouterr().err.splitlines() if "RERAIL_SKIP_SAMPLES is ignored" in line]
        assert len(ignored) == 1 and name in ignored[0]
        bucket.wait_for(partial(announced, bucket, ("rate",)))


def test_a_lower_rate_is_applied_once_over_resumes_and_ends_with_its_attempt(framework, new_guard, tmp_path, capsys):
    """As a schedule with half the rate; what is saved has the rate of the schedule."""

    def resumed(step: int) -> tuple[Trained, list[float]]:
        capsys.readouterr()
        trained = framework.train(
            tmp_path / "run", new_guard(), rate=1e-2, resume=framework.resume_path(tmp_path / "run", step)
        )
        return trained, [float(line[3]) for line in LINE.finditer(capsys.readouterr().out)]

    reference = framework.train(tmp_path / "reference", rate=0.5e-2)
    guard = new_guard(RERAIL_LR_SCALE="0.5")
    assert framework.train(tmp_path / "run", guard, rate=1e-2, save_every=4).losses == reference.losses
    for step in (4, 8):
        trained, halved = resumed(step)
        assert trained.losses == reference.losses[step:] and has_same_weights(trained, reference)
    new_guard(RERAIL_LR_SCALE="")
    _, whole = resumed(8)
    assert len(whole) == STEPS - 8 and halved == pytest.approx([rate / 2 for rate in whole], rel=1e-4)
