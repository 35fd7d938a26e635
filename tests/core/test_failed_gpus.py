"""A GPU that failed and is given to the run again."""

from dataclasses import replace

import pytest

from rerail.decisions.failed_gpus import MAX_NAMED, MAX_RETURNS, list_refused
from rerail.diagnosis.classify import diagnose
from rerail.model.actions import Severity
from rerail.model.causes import Cause
from rerail.model.run import RunState
from rerail.requests.relaunch import FAILED_GPUS, VALUE_LIMIT
from rerail_agent.failure import FailureCause, FailureReport
from tests.fakes import World

FIRST = "GPU-5a1c2f64-0d0e-4b8b-9b5c-0c3b5a2f7d11"
OTHER = "GPU-77e0aa10-1111-2222-3333-444455556666"
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"


def fail_on(gpu: str, error: str = ECC, cause: FailureCause = FailureCause.HARDWARE, last: str = "") -> str:
    """Return SageMaker's FailureReason of a job whose agent reported this."""
    report = FailureReport(cause, error, step=None, rank=3, exit_code=1, last_lines=(last,), gpu=gpu)
    return f"AlgorithmError: {report.text()}, exit code: 1"


def refuse(gpu: str, *attempts: int) -> str:
    named = f"attempt{'s' if len(attempts) > 1 else ''} {' and '.join(map(str, attempts))}"
    return fail_on("", f"algo-2: the GPU that failed in {named} is back: {gpu} (serial 7, driver 580.159.03)")


def test_a_gpu_that_comes_back_is_refused_twice_and_then_trained_on():
    """Each time the run goes elsewhere, nothing counts as an attempt without progress, and AWS's case is written."""
    world = World().adopt()
    world.minutes(5)
    world.checkpoints.save(step=100)
    world.sagemaker.fail("gpt", fail_on(f"{FIRST} (serial 7, driver 580.159.03)"), metrics={"step": 120.0})
    world.minutes(30)
    given = []
    for attempt in (2, 3):
        job = f"gpt-a{attempt:03d}"
        given.append(world.sagemaker.requests[job]["Environment"].get(FAILED_GPUS))
        world.sagemaker.fail(job, refuse(FIRST, *range(1, attempt)))
        world.minutes(30)
    run = world.run()
    assert given == [f"1:{FIRST}", f"1:{FIRST},2:{FIRST}"]
    assert (run.state, run.current.number) == (RunState.WATCHING, 2 + MAX_RETURNS)
    assert FAILED_GPUS not in world.sagemaker.requests["gpt-a004"]["Environment"]
    assert [attempt.gpu.split()[0] for attempt in run.attempts if attempt.gpu] == [FIRST] * 3
    assert run.ledger.charges == {Cause.HARDWARE: 3}
    assert run.ledger.without_progress == 0, "a refused machine has not trained"
    todo = [notice.todo for notice in world.bus.notices if notice.severity is Severity.INFORM and notice.todo]
    assert f"GPU {FIRST} (serial 7, driver 580.159.03) of an instance failed at 2026-01-31 00:05:00 UTC. Tr" in todo[0]
    assert todo[2].endswith("It failed in attempts 1 and 2 too. Training jobs: gpt, gpt-a002, gpt-a003")


def test_a_job_that_always_names_the_same_gpu_is_held_without_progress():
    """What a job says of its GPU excuses no more attempts than its init may have refused."""
    world = World().adopt()
    while (run := world.run()).state is not RunState.HELD and run.current.number < 9:
        world.sagemaker.fail(run.current.job_name, fail_on(FIRST))
        world.minutes(60)
    assert (run.state, run.current.number, run.ledger.without_progress) == (RunState.HELD, 3 + MAX_RETURNS, 3)


@pytest.mark.parametrize(
    "reason, gpu",
    [
        (fail_on(FIRST), FIRST),
        (fail_on(FIRST, cause=FailureCause.USER_CODE, error="KeyError: 'x'"), ""),
        (fail_on("", f"{FIRST} failed as {OTHER} did"), ""),
        (fail_on("GPU-0"), ""),
        (fail_on(FIRST, "rank 3 ended with exit code 1", FailureCause.UNKNOWN, last=f"rank 7: {ECC}"), ""),
        (fail_on(FIRST, ECC, FailureCause.USER_CODE, last="bye"), FIRST),
        (fail_on(FIRST)[:-90], FIRST),
        (fail_on("", f"algo-1 (rank 2): gpus: {FIRST}: a row of memory could not be remapped"), FIRST),
    ],
    ids=["named", "a bug", "two", "malformed", "another rank's", "by its text", "cut", "by the pre-flight check"],
)
def test_only_a_hardware_failure_names_one_gpu(reason, gpu):
    """Otherwise nothing is said about a machine."""
    assert diagnose(reason).gpu == gpu


def test_the_newest_failed_gpus_fit_a_variable():
    """A job's variables have 512 characters."""
    world = World().adopt()
    run = world.run()
    uuids = [f"GPU-{n:08x}-0000-0000-0000-000000000000" for n in range(998, 1013)]
    attempts = [replace(run.current, number=n, gpu=uuid) for n, uuid in enumerate(uuids, 998)]
    refused = list_refused(replace(run, attempts=tuple(attempts)))
    assert refused[-1] == f"1012:{uuids[-1]}" and len(refused) == MAX_NAMED
    assert len(",".join(refused)) <= VALUE_LIMIT
