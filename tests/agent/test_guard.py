"""One guard in one process: it does no harm, wherever it is and whatever breaks."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import AbstractContextManager
from types import SimpleNamespace

import pytest
import torch

from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import ReportKind
from rerail_agent import Guard, agreement
from rerail_agent import guard as guard_module
from tests.agent.fake_s3 import Bucket
from tests.agent.jobs import environment_of
from tests.house.sources import ROOT
from tests.raising import raising

SPIKE = Finding(Kind.LOSS_SPIKE, Level.WARN, 60, 58, "loss 5")


def exercise(guard: Guard) -> None:
    """Everything that a training script can call."""
    for step in range(1, 40):
        loss = guard.reduce(torch.tensor(2.0 + step % 5 / 100, requires_grad=True))
        guard.step(step=step, loss=loss, grad_norm=torch.tensor(1.0), tokens=10, lr=0.1, extra={"mfu": 0.4})
        if guard.wants_checkpoint:
            guard.committed("/p", step)
    with guard.phase("save"):
        guard.save_failed("no")
    with guard.phase("evaluation"), guard.phase("no such phase"):
        guard.report(SPIKE)
    guard.load_state_dict(guard.state_dict())
    guard.load_state_dict({"detectors": "{"})
    assert guard.health in ("clean", "suspect")
    assert guard.reason in ("", "warning", "emergency", "sigterm")
    assert guard.should_stop in (True, False)
    assert guard.fenced in (True, False)


def test_outside_sagemaker_it_prints_metric_lines_and_starts_no_thread(new_guard, capfd, monkeypatch):
    """No mailbox, no watchdog, no SDK."""
    started: list[object] = []
    monkeypatch.setattr("threading.Thread.start", lambda self: started.append(self))
    exercise(new_guard())
    assert started == []
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 39
    assert lines[0].startswith("rerail step=1 loss=2.00999999 grad_norm=1 lr=0.1")
    assert lines[0].endswith("nonfinite=0 mfu=0.4")


def test_log_every_thins_the_lines_and_log_overrides_it(new_guard, capfd):
    guard = new_guard(log_every=10)
    for step in range(1, 31):
        guard.step(step=step, loss=2.0, log={15: True, 20: False}.get(step))
    steps = [line.split()[1] for line in capfd.readouterr().out.splitlines()]
    assert steps == ["step=10", "step=15", "step=30"]


def test_a_step_without_a_loss_shows_progress_only(new_guard, capfd):
    """Frameworks that know the loss now and then call step() in between all the same."""
    guard = new_guard()
    guard.step(step=1)
    guard.step(step=2, loss=2.0)
    assert [line.split()[1] for line in capfd.readouterr().out.splitlines()] == ["step=2"]
    assert guard.health == "clean"


def test_a_loss_that_is_no_number_is_suspect_at_once(new_guard):
    """Before any detector has made up its mind."""
    guard = new_guard()
    guard.step(step=1, loss=math.nan)
    assert guard.health == "suspect"


class Broken:
    """Whatever is asked of it, it raises."""

    def __getattr__(self, name: str) -> object:
        return raising(RuntimeError(f"{name} is broken"))


@pytest.mark.parametrize(
    "part", ["_progress", "_meter", "_detection", "_commands", "_mailbox_client", "_watchdog", "_sigterm"]
)
def test_no_collaborator_can_hurt_the_training(bucket: Bucket, new_guard, capfd, monkeypatch, part):
    """A part that fails is reported once, with its traceback, and switched off."""
    guard = new_guard(bucket)
    sound = getattr(guard, part)
    monkeypatch.setattr(guard, part, Broken())
    if part == "_progress":  # plain numbers, which do not raise
        for name in ("mean_s", "step_s", "trained_s"):
            setattr(guard._progress, name, 0.0)
    if part == "_detection":
        guard._detection.health = "clean"
    exercise(guard)
    guard.step(step=100, loss=2.0)
    guard.close()
    logged = capfd.readouterr().err
    faults = [line for line in logged.splitlines() if line.startswith("rerail: fault") and "phase" not in line]
    assert len(faults) == len(set(faults))
    if part not in ("_commands", "_mailbox_client"):
        assert "is broken" in logged
    monkeypatch.setattr(guard, part, sound)


@pytest.mark.parametrize(
    "target",
    [
        "rerail_agent.guard.Identity.from_environment",
        "rerail_agent.guard.AgentSettings.from_environment",
        "rerail_agent.guard.MailboxBucket",
        "rerail_agent.guard.MailboxClient",
        "rerail_agent.guard.Watchdog",
        "rerail_agent.guard.HangLimits.from_thresholds",
        "rerail_agent.sigterm.signal.signal",
        "rerail_agent.mailbox_objects.MailboxBucket._s3",
        "rerail_agent.mailbox_client.MailboxClient._run_due",
        "rerail_agent.mailbox_client.serialize",
        "rerail_agent.guard.serialize",
        "rerail_agent.commands.read_command",
        "rerail_agent.telemetry.format_line",
        "rerail.detection.loss_spike.LossSpike.see",
        "rerail.model.codec.dumps",
    ],
)
def test_no_fault_inside_the_agent_is_raised(bucket: Bucket, new_guard, monkeypatch, target):
    monkeypatch.setattr(target, raising(RuntimeError("broken")))
    guard = new_guard(bucket)
    exercise(guard)
    guard.close()
    monkeypatch.undo()


def test_a_broken_part_is_reported_once(new_guard, monkeypatch, capfd):
    """And the rest works on: here the line is gone, and the detectors are not."""
    monkeypatch.setattr("rerail_agent.telemetry.format_line", lambda **_: 1 / 0)
    guard = new_guard()
    for step in range(1, 120):
        guard.step(step=step, loss=9.0 if step == 110 else 2.0 + step % 7 / 100)
    logged = capfd.readouterr().err
    assert logged.count("ZeroDivisionError") == 1
    assert "metric line is switched off" in logged
    assert "loss_spike at step 110" in logged


@pytest.mark.slow
def test_a_forked_worker_has_no_part_in_it(bucket: Bucket, new_guard):
    """A data loader's worker inherits the guard; its calls do nothing, and SIGTERM ends it as it always did."""
    guard = new_guard(bucket)
    bucket.wait_for_report("hello")
    guard.step(step=1, loss=2.0)
    read, written = os.pipe()
    child = os.fork()
    if child == 0:
        guard.step(step=2, loss=9.0)
        guard.report(SPIKE)
        guard.committed("/p", 2)
        guard.close()
        os.write(written, f"{guard.reduce(3.0)} {guard.wants_checkpoint}".encode())
        time.sleep(30)
        os._exit(1)
    assert os.read(read, 100) == b"3.0 False"
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    time.sleep(0.15)
    assert set(bucket.reports()) == {"a001-hello"}
    assert guard._progress.step == 1


def test_sigterm_wants_a_checkpoint_once_and_stops(new_guard):
    """The handler that was there before is called too, and put back at the end."""
    received: list[int] = []

    def of_the_script(signum: int, frame: object) -> None:
        received.append(signum)

    signal.signal(signal.SIGTERM, of_the_script)
    guard = new_guard()
    guard.step(step=1, loss=2.0)
    assert not guard.should_stop
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    guard.step(step=2, loss=2.0)
    assert (guard.wants_checkpoint, guard.reason, guard.should_stop) == (True, "sigterm", True)
    guard.step(step=3, loss=2.0)
    assert (guard.wants_checkpoint, guard.should_stop) == (False, True)
    assert set(received) == {signal.SIGTERM}
    guard.close()
    assert signal.getsignal(signal.SIGTERM) is of_the_script


def test_a_blocked_sigterm_is_handled_after_it_is_unblocked(new_guard):
    """launch.py blocks the signal until a handler is installed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)  # the only thread there, on SageMaker
    guard = new_guard()
    guard.step(step=1, loss=2.0)
    assert guard.should_stop


def test_several_ranks_without_a_process_group_want_nothing(bucket: Bucket, new_guard):
    """The launcher started four, nothing joins them: each would save at a step of its own."""
    guard = new_guard(bucket, RANK="0", WORLD_SIZE="4")
    guard._agreement.raise_flag(agreement.COMMAND)
    guard.step(step=1, loss=2.0)
    assert not guard.wants_checkpoint


def test_the_time_of_a_save_is_not_taken_for_a_slow_step(new_guard):
    """Nor is that of an evaluation, nested or not."""
    guard = new_guard()
    began = time.monotonic()
    guard.step(step=1, loss=2.0)
    with guard.phase("evaluation"), guard.phase("save"):
        time.sleep(0.1)
    guard.step(step=2, loss=2.0)
    whole_s = time.monotonic() - began
    assert guard._progress.step_s <= whole_s - 0.1
    assert guard._progress.longest["save"] >= 0.1


def test_a_loss_that_the_script_changes_on_purpose_is_no_finding(new_guard, capsys):
    """Four times as high from step 101 on; without a word it is a spike."""
    for is_expected, health in ((False, "suspect"), (True, "clean")):
        guard = new_guard()
        for step in range(1, 106):
            if is_expected and step == 101:
                guard.expect_change("loss weight 4")
            guard.step(step=step, loss=(8.0 if step > 100 else 2.0) + 0.001 * (step % 7))
        assert guard.health == health
    assert "planned change after step 100: loss weight 4" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "parts"), [("", 1), ("4", 4), ("0", 1), ("two", 1)])
def test_a_loop_reads_into_how_many_parts_to_divide_a_batch(new_guard, capsys, text, parts):
    assert new_guard(RERAIL_MICROBATCHES=text).microbatches == parts
    assert ("RERAIL_MICROBATCHES" in capsys.readouterr().err) == (text in ("0", "two"))


def test_an_error_in_a_phase_is_the_scripts(new_guard):
    guard = new_guard()
    guard.step(step=1, loss=2.0)
    phase = guard.phase("save")
    assert isinstance(phase, AbstractContextManager)
    with pytest.raises(KeyError), phase:
        raise KeyError
    assert guard._progress.phase == "step"


def test_the_state_is_the_same_shape_on_every_rank(new_guard):
    """Plain JSON, a few kilobytes of one text, so that a checkpoint format has one leaf to store."""
    first, other = new_guard(RANK="0"), new_guard(RANK="1")
    for step in range(1, 60):
        first.step(step=step, loss=2.0, log=False)
    state = json.loads(json.dumps(first.state_dict()))
    assert set(state) == set(other.state_dict()) == {"detectors"}
    other.load_state_dict(state)
    successor = new_guard()
    successor.load_state_dict(state)
    assert successor.state_dict() == first.state_dict()


@pytest.mark.slow
def test_importing_the_package_loads_no_torch():
    """PID 1 of a container lives in it, and must not wait for that; and nothing but a mailbox loads the SDK."""
    code = """
        import sys
        import rerail_agent
        assert "torch" not in sys.modules
        from rerail_agent import Guard
        guard = Guard.from_env()
        guard.step(step=1, loss=2.0)
        assert "boto3" not in sys.modules
    """
    scrubbed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    path = os.pathsep.join(str(ROOT / folder) for folder in ("lambdas", "agent"))
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={**scrubbed, "PYTHONPATH": path}, check=True, timeout=300
    )


@pytest.mark.slow
def test_a_script_that_ends_without_close_sends_its_last_report_and_ends(bucket: Bucket, tmp_path):
    """The interpreter's exit waits for the mail, here for longer than the agent's two seconds: others may be busy."""
    code = """
        from rerail_agent import Guard, guard as agent
        agent.EXIT_REPORTS_S = 200.0
        from rerail.model.finding import Finding, Kind, Level
        guard = Guard.from_env()
        guard.step(step=1, loss=2.0)
        guard.report(Finding(Kind.LOSS_SPIKE, Level.WARN, 60, 58, "loss 5"))
    """
    scrubbed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    path = os.pathsep.join(str(ROOT / folder) for folder in ("lambdas", "agent"))
    environment = {**scrubbed, "PYTHONPATH": path, **environment_of(bucket, base=tmp_path)}
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, timeout=300)
    assert ended.returncode == 0
    assert "a001-hello" in bucket.reports()


def test_all_guards_of_a_process_share_the_time_at_its_exit(new_guard, bucket, monkeypatch):
    """A search over settings makes one for each trial; without a mailbox, each would wait for as long as one may."""
    at_exit, given = [], []
    monkeypatch.setattr(guard_module.atexit, "register", at_exit.append)
    for guard in [new_guard(bucket) for _ in range(3)]:
        guard._mailbox_client.stop(1.0)
        monkeypatch.setattr(guard, "_mailbox_client", SimpleNamespace(stop=given.append))
    times = iter((1000.0, 1000.0, 1001.5, 1003.0))
    monkeypatch.setattr(guard_module, "time", SimpleNamespace(monotonic=lambda: next(times)))
    for close in at_exit:
        close()
    guard_module._find_exit_end.cache_clear()
    assert given == [2.0, 0.5, 0.1]


@pytest.mark.slow
def test_a_script_without_torch_is_guarded_and_torch_is_not_imported_for_it(tmp_path):
    """In JAX, TensorFlow or plain Python: steps, findings and checkpoints of one process need none of it."""
    script = tmp_path / "plain.py"
    script.write_text(
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from rerail_agent import Guard, manifests\n"
        "guard = Guard.from_env()\n"
        "for step in range(1, 4):\n"
        "    guard.step(step=step, loss=guard.reduce(1.0 / step))\n"
        "print(manifests.get_rank(), manifests.get_world_size(), guard.wants_checkpoint)\n"
    )
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("agent", "lambdas"))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "RERAIL_MAILBOX": "off"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rerail step=3" in done.stdout and done.stdout.splitlines()[-1] == "0 1 False"


@pytest.mark.parametrize(
    ("variables", "steps"),
    [
        ({}, []),
        ({"RERAIL_RUN": "night", "RERAIL_ATTEMPT": "2", "TRAINING_JOB_NAME": "night-a002"}, [7]),
        ({"RERAIL_RESTART": "1"}, [7]),
    ],
    ids=["the run's first start", "a relaunch", "a restart in place"],
)
def test_the_first_step_of_an_ordered_start_is_reported_once(new_guard, bucket, variables, steps):
    """The supervisor compares it with the step that it has ordered."""
    guard = new_guard(bucket, **variables)
    for step in (7, 8, 9):
        guard.step(step=step, loss=2.0)
    guard.close()
    found = [report.step for report in bucket.reports().values() if report.kind is ReportKind.RESTARTED]
    assert found == steps
