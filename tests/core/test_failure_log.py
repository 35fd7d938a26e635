"""The log of a failed job is read where its FailureReason does not name the error, or its losses may explain it."""

from dataclasses import replace
from typing import Any

import pytest

from rerail.diagnosis.failure_lines import find_final_error
from rerail.incident_report.facts import Facts
from rerail.incident_report.summary import make_summary
from rerail.messages.messages import JobStateChanged
from rerail.model.causes import Cause
from rerail.model.diagnosis import FEW_STEPS
from rerail.model.errors import StateUnknown, Throttled
from rerail.model.policy import Mode, OnDoubtfulEnd, Policy
from rerail.model.run import JobStatus, Run, RunState
from rerail.model.signals import OperatorVerb
from rerail.supervisor.failure_log import with_log_read
from tests.fakes import World
from tests.timing import growth

BARE = "AlgorithmError: , exit code: 1"
STEPS = "".join(f"step {step} loss 2.3\n" for step in range(50))
TRACE = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()  # CUDA out of memory?\n'
)
OOM = f"{TRACE}torch.OutOfMemoryError: CUDA out of memory.\n"
PEER = "[rank8]:[E ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)"


def fail(world: World, reason: str, *ends: str, **facts: Any) -> Run:
    world.adopt()
    world.logs.ends["gpt"] = ends
    world.sagemaker.fail("gpt", reason, **facts)
    world.supervisor().handle(JobStateChanged("gpt"))
    return world.run()


@pytest.mark.parametrize(
    ("reason", "ends", "cause", "evidence"),
    [
        (BARE, (STEPS + TRACE + "KeyError: 'eos'",), "user_code", "KeyError: 'eos'"),
        (BARE, (PEER, STEPS + OOM), "oom", "OutOfMemoryError"),
        (BARE, (STEPS + PEER, PEER), "hang", "Watchdog caught"),
        (f"AlgorithmError: {TRACE}", (STEPS + TRACE + "KeyError: 'eos'",), "user_code", "KeyError: 'eos'"),
        (BARE, (STEPS,), "user_code", "AlgorithmError"),
    ],
)
def test_a_bare_reason_is_completed_from_the_logs_of_all_hosts(
    reason: str, ends: tuple[str, ...], cause: str, evidence: str
) -> None:
    """The root error decides, on whichever host it is printed; a log without an error leaves the reason as it is."""
    world = World()
    (incident,) = fail(world, reason, *ends).incidents
    assert (incident.cause, world.logs.read) == (cause, ["gpt"])
    assert evidence in incident.evidence
    assert "could be read" not in incident.reason


@pytest.mark.parametrize(
    ("reason", "log", "cause", "evidence"),
    [
        (BARE, STEPS + "fabric: lane 3 lost\n" + TRACE + "KeyError: 'eos'", "hardware", "fabric: lane 3 lost"),
        ("AlgorithmError: KeyError: 'x', exit code: 1", "fabric: lane 3 lost", "hardware", "fabric: lane 3 lost"),
        ("AlgorithmError: , exit code: 42", "", "infrastructure", "AlgorithmError: , exit code: 42"),
        (BARE, "\x1b[31mlane  3\tlost\x1b[0m", "hardware", "lane 3 lost"),
        ("AlgorithmError: KeyError: 'shard_7'", STEPS, "data", "AlgorithmError: KeyError: 'shard_7'"),
        ('{"rerail": 1, "cause": "hang", "error": "the \\"Gr\\u00f6\\u00dfe\\" is 0"}', "", "oom", 'the "Größe" is 0'),
        (BARE, "エラー容量がないです", "oom", "エラー容量がないです"),
        ("AlgorithmError: , exit code: 421", STEPS, "user_code", "AlgorithmError: , exit code: 421"),
        ("AlgorithmError: KeyError: 0, exit code: 1", STEPS, "user_code", "KeyError: 0, exit code: 1"),
    ],
)
def test_a_cause_that_the_policy_names_overrides_the_diagnosis(
    reason: str, log: str, cause: str, evidence: str
) -> None:
    world = World()
    causes = {"lane 3 lost": Cause.HARDWARE, "exit code: 42": Cause.INFRASTRUCTURE, "KeyError: '": Cause.DATA}
    causes |= {'the "Größe"': Cause.OOM, "容量がない": Cause.OOM}
    world.policies.by_name["default"] = Policy(causes=causes)
    (incident,) = fail(world, reason, log).incidents
    assert (incident.cause, incident.evidence) == (cause, evidence)


@pytest.mark.threat("T17")
@pytest.mark.parametrize("error", ["lane 3 lost", "KeyError: 'x'"], ids=["of the policy", "of a rule"])
def test_no_part_of_a_secret_is_left_where_a_line_is_cut(error: str) -> None:
    for length in range(0, 200, 7):
        world = World()
        world.policies.by_name["default"] = Policy(causes={"lane 3 lost": Cause.HARDWARE})
        line = f"{'before ' * 30}api_key = sk_{'r7' * 10} {'x' * length} {error} {'after ' * 30}"
        evidence = fail(world, BARE, f"{line}\n").incidents[0].evidence
        assert error in evidence and "r7r7" not in evidence


@pytest.mark.parametrize("reason", ["AlgorithmError: KeyError: 'x', exit code: 1", '{"rerail": 1, "cause": "hang"}'])
def test_a_reason_that_names_the_error_needs_no_log(reason: str) -> None:
    """No call is made."""
    world = World()
    assert fail(world, reason, OOM).incidents[0].cause != "oom"
    assert world.logs.read == []


def make_rows(*last: object, first: int = 700) -> str:
    """Return 60 rows around 2.5, then those given."""
    losses = [*(2.5 + row % 7 / 100 for row in range(60)), *last]
    return "".join(f"rerail step={step} loss={loss} lr=0.1\n" for step, loss in enumerate(losses, first))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (make_rows(1e10) + OOM, "the last loss was 1e+10 at step 760, 4,000,000,000 times"),
        (make_rows(1e5, 2e5, 2.5), "the loss was 2e+05 at step 761, 79,000 times the median of the 50 rows"),
        (make_rows(*[1e5] * 10), "the last loss was 1e+05 at step 769, 40,000 times"),
        (make_rows("nan"), "the last loss was nan at step 760; the median of the 50 rows before it was 2.53"),
        (make_rows("1e308"), "the last loss was 1e+308 at step 760; the median of the 50 rows before it was 2.53"),
        (make_rows("-1e10"), "the last loss was -1e+10 at step 760; the median of the 50 rows before it was 2.53"),
        ("Iter 7 | val_loss 2, Loss: 2.0 ü\n" * 30 + "Iter: 8 Loss: 9E2", "the last loss was 900 at step 8, 450 times"),
        (make_rows("nan", *[2.5] * 20, 1e10), "4,000,000,000 times the median of the 49 rows"),
        ("step=1 loss=2\n" * 19 + "step=2 loss=1e9\n", "500,000,000 times the median of the 10 rows"),
        ("", ""),
        (make_rows(), ""),
        (make_rows(20), ""),
        (make_rows(30, *[2.5] * 20, 40), ""),
        (make_rows(1e10, *[2.5] * 10), ""),
        ("step=1 loss=2\n" * 18 + "step=2 loss=1e9\n", ""),
        ("step=1 loss=-2\n" * 30 + "step=2 loss=1e9\n", ""),
        ("step=1 loss=nan\n" * 99, "the last loss was nan at step 1"),
        ("{'loss': '2.5', 'epoch': '0.1'}\n{'loss': 'nan'}\n{'eval_loss': '2'}", "the last loss was nan"),
        ("| epoch   2 | lr 20.00 | loss   nan | ppl      nan |", "the last loss was nan"),
        ("{'loss': 'nan', 'epoch': '0.1'}\n{'loss': '2.5'}", ""),
        ("step=1 loss=1.2.3\n" * 30, ""),
        ("step=1 " * 60_000, ""),
    ],
)
def test_a_last_loss_far_from_those_before_is_evidence(log: str, expected: str) -> None:
    """In the incident and its notice, while cause, evidence and what is done are the same as without."""
    reason = "AlgorithmError: OverflowError: math range error"
    worlds = [World(), World()]
    runs = [fail(world, reason, log, metrics=values) for world, values in zip(worlds, ({"loss": 1.0}, {}), strict=True)]
    (incident,), (without,) = (run.incidents for run in runs)
    assert (expected in incident.reason, expected in worlds[0].bus.notices[-1].body) == (True, True)
    assert ("loss was" in incident.reason, "loss was" in without.reason) == (bool(expected), False)
    assert "no log" not in incident.reason, "none was needed"
    assert replace(incident, reason="") == replace(without, reason="") and worlds[1].logs.read == []
    assert [run.state for run in runs] == [RunState.WAITING] * 2


def test_an_error_that_names_the_loss_is_completed_by_the_last_one() -> None:
    (incident,) = fail(World(), "ValueError: loss is nan", make_rows("nan"), metrics={"loss": 1.0}).incidents
    assert incident.cause == "diverged" and "the last loss was nan at step 760" in incident.reason


@pytest.mark.parametrize("error", [StateUnknown("get_log_events: AccessDenied"), Throttled("slow"), None])
def test_without_a_log_the_reason_alone_decides(error: Exception | None) -> None:
    """Missing, denied or throttled: the run goes on as before."""
    world = World()
    world.logs.error = error
    run = fail(world, BARE)
    assert run.incidents[0].cause == "user_code"
    assert "no log could be read: " + (str(error) if error else "the job has no log") in run.incidents[0].reason
    assert run.current.number == 2


SUCCESS = "2026-11-27 01:02:03,456 sagemaker-training-toolkit INFO     Reporting training SUCCESS\n"
TABLE = "=====\ntrain.py FAILED\n-----\nFailures:\n  <NO_OTHER_FAILURES>\n-----\n  rank      : 0 (local_rank: 0)\n"


@pytest.mark.parametrize(
    ("ends", "doubt"),
    [
        ((STEPS + TRACE + "KeyError: 'eos'\n" + SUCCESS,), "KeyError: 'eos'"),
        ((STEPS, STEPS + "[rank1]: " + TRACE.replace("\n", "\n[rank1]: ") + "ValueError: bad\n"), "ValueError: bad"),
        ((STEPS + TRACE + "RuntimeError: no such file\n" + TABLE,), "RuntimeError: no such file"),
        ((STEPS + "cp: error writing 'model.pt': No space left on device\n" + SUCCESS,), "No space left on device"),
        ((STEPS + SUCCESS,), ""),
        ((STEPS + TRACE + "KeyError: 'eos'\nretrying\n" + STEPS + SUCCESS,), ""),
        ((STEPS + TRACE + "KeyError: 'eos'\nwrote model.pt\n" + SUCCESS,), ""),
        ((STEPS + "Exception ignored in: <function Pool.__del__ at 0x7f>\n" + TRACE + "TypeError: 'NoneType'\n",), ""),
        ((make_rows("nan", "nan"), STEPS), "the last loss was nan at step 761"),
        ((make_rows(1e10),), "the last loss was 1e+10 at step 760"),
        ((make_rows(1e10, 2.5),), ""),
        ((), ""),
    ],
)
def test_a_job_that_completed_with_an_error_or_a_far_loss_is_reported(ends: tuple[str, ...], doubt: str) -> None:
    """A shell pipeline hides the exit code. The run is done all the same: nothing is relaunched."""
    world = World().with_saves()
    world.logs.ends["gpt"] = ends
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    world.supervisor().handle(JobStateChanged("gpt"))
    notice = world.bus.notices[-1]
    assert (world.run().state, world.sagemaker.live()) == (RunState.COMPLETED, [])
    end = "with a loss in trouble" if "loss" in doubt else "with an error at the end" if doubt else ""
    assert doubt in notice.body and notice.title == f"gpt: completed {end}".rstrip()
    headline = make_summary(Facts(world.run(), world.clock()))["headline"]
    assert headline.startswith(f"Completed {end}" if end else "Completed: ")


@pytest.mark.parametrize(
    ("end", "planned", "why"),
    [
        ("cp: error writing 'model.pt': No space left on device\n", None, "No space left on device"),
        (TRACE + "DataError: shard 7\n", None, "infrastructure"),
        ("train.sh: line 3: echo: write error: No space left on device\n", 1_000, "No space left on device"),
        ("", 1_001, "its last known step is 500"),
        ("", 1_000, ""),
        (TRACE + "KeyError: 'eos'\n", 520, ""),
        ("ERROR:root:no upload\n" + TRACE + "ConnectionError: wandb\n", None, ""),
        ("WARNING: cache: No space left on device\n", None, ""),
        ("retried after: No space left on device, saved elsewhere\n", None, ""),
        ("no longer: No space left on device\n", None, ""),
    ],
)
def test_the_policy_can_treat_a_doubtful_end_as_a_failure(end: str, planned: int | None, why: str) -> None:
    world = World().with_saves()
    causes = {"DataError: shard": Cause.INFRASTRUCTURE}
    world.policies.by_name["default"] = Policy(on_doubtful_end=OnDoubtfulEnd.FAIL, causes=causes)
    world.logs.ends["gpt"] = (STEPS + end + SUCCESS,)
    world.sagemaker.end("gpt", JobStatus.COMPLETED, metrics={"step": 500.0}, planned_steps=planned)
    world.supervisor().handle(JobStateChanged("gpt"))
    run, notice = world.run(), world.bus.notices[-1]
    if not why:
        assert run.state is RunState.COMPLETED
        return
    assert (run.state, run.attempts[0].status) == (RunState.WAITING, JobStatus.FAILED)
    assert why in notice.body and "SageMaker calls the job Completed" in notice.body
    assert (world.runs.timeline[-1].inputs["rule"] == FEW_STEPS) is (why.startswith("its last known step"))
    world.minutes(10)
    assert world.sagemaker.live() == ["gpt-a002"] and world.run().current.resumed_from_step == 500


def test_a_password_at_the_cut_of_an_error_is_hidden() -> None:
    """The notice quotes the beginning of the error; without the host behind it, a password looks like any word."""
    world = World().with_saves()
    traceback = 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nValueError: '
    login = ":".join(("ada", "hunter2hunter2"))
    world.logs.ends["gpt"] = (f"{traceback}{'x' * 158} postgres://{login}@{'h' * 40}/db",)
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    world.supervisor().handle(JobStateChanged("gpt"))
    assert "xxx" in world.bus.notices[-1].body
    assert "hunter2" not in world.bus.notices[-1].body


def test_a_completed_job_whose_log_cannot_be_read_is_complete() -> None:
    world = World().with_saves()
    world.logs.error = StateUnknown("get_log_events: AccessDenied to hunter2hunter2")
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    world.supervisor().handle(JobStateChanged("gpt"))
    assert world.notice_titles()[-1] == "gpt: completed"
    assert "could not be read" in world.bus.notices[-1].body and "AccessDenied" in world.bus.notices[-1].body
    job = with_log_read(world.sagemaker.jobs["gpt"], {"Environment": {"PASSWORD": 2 * "hunter2"}}, world.logs)
    assert "AccessDenied" in job.unread_end and "hunter2" not in job.unread_end


def test_a_doubtful_end_fails_only_where_rerail_may_act_and_no_operator_ends_the_run() -> None:
    """The mode `observe` ends no run in a hold; a restart that was under way goes on, and a rollback costs no retry."""
    ended = {}
    for mode, verb in ((Mode.OBSERVE, ""), (Mode.ACT, "stop"), (Mode.ACT, "restart"), (Mode.ACT, "rollback")):
        world = World().with_saves()
        world.policies.by_name["default"] = Policy(mode=mode, on_doubtful_end=OnDoubtfulEnd.FAIL)
        if verb:
            world.send_command(OperatorVerb(verb), step=300 if verb == "rollback" else None)
        world.logs.ends["gpt"] = (STEPS + TRACE + "KeyError: 'eos'\n",)
        world.sagemaker.end("gpt", JobStatus.COMPLETED)
        world.supervisor().handle(JobStateChanged("gpt"))
        ended[mode, verb] = world.run().state
    assert list(ended.values()) == [RunState.COMPLETED, RunState.COMPLETED, RunState.WAITING, RunState.STARTING]
    assert not world.run().ledger.charges


def test_the_end_of_a_completed_jobs_log_is_read_in_limited_time():
    """Hosts print 400,000 characters each, of lines as long as they like."""

    def find(length: int) -> str:
        return find_final_error(f"{'| ' * length}\n{TRACE}{'| ' * 500}\nKeyError: 'eos'")

    assert find(200_000) == find(10) == "KeyError: 'eos'"
    assert growth(lambda: find(10_000), lambda: find(200_000)) < 5
