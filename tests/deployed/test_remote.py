"""Remote functions on the deployed stack: values, exceptions, a kill, a stop, and results that others have written."""

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rerail_cli import CallRefused, RemoteFuture, ResultRefused, RunHeld, RunStopped, attach
from rerail_cli.functions import service_client

from tests.deployed import remote_calls
from tests.deployed.jobs import ROOT, Account
from tests.deployed.remote_calls import BadBatch

pytestmark = pytest.mark.slow

STEPS, KILLED_AT = 8, 5
PAGE = ROOT / "docs" / "remote.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def service(account: Account, state_dir: Path) -> Iterator[None]:
    """The process that submits them looks at this deployment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RERAIL_LOCAL_STATE", str(state_dir))
        patch.setattr(service_client, "_services", {})
        yield
        service_client.find_service(True).close()


@pytest.fixture(scope="module")
def futures(service: None) -> dict[str, RemoteFuture]:
    """Calls that run beside each other."""
    return {
        "count": remote_calls.count.submit(STEPS, killed_at=KILLED_AT),
        "add": remote_calls.add.submit(1, 2, 3),
        "fail": remote_calls.fail.submit(7),
        "held": remote_calls.look_up.submit("weights"),
        "stopped": remote_calls.wait_for.submit(3600.0),
    }


def test_a_value_is_returned_here_and_to_another_process(futures: dict[str, RemoteFuture]) -> None:
    assert futures["add"].result() == 6
    assert futures["add"].done() and futures["add"].exception() is None
    again = attach(futures["add"].run, local=True)
    assert again.result() == 6
    with pytest.raises(CallRefused, match="there is no run 'nothing'"):
        attach("nothing", local=True)


def test_an_exception_is_raised_with_its_remote_traceback_after_one_attempt(
    account: Account, futures: dict[str, RemoteFuture]
) -> None:
    with pytest.raises(BadBatch) as raised:
        futures["fail"].result()
    assert (raised.value.batch, raised.value.why) == (7, "it is empty")
    (note,) = raised.value.__notes__
    assert f"run {futures['fail'].run}" in note and "in read" in note and "rerail_cli" not in note
    run = futures["fail"].run

    def ended() -> list[str]:
        jobs = account.sagemaker.list_training_jobs(NameContains=run)["TrainingJobSummaries"]
        statuses = [job["TrainingJobStatus"] for job in jobs]
        return statuses if "InProgress" not in statuses else []

    # A job of a second may have ended before the supervisor adopts it, so that there is no record to ask.
    assert account.wait("the end", ended) == ["Completed"]


def test_a_function_that_is_killed_resumes_in_its_checkpoint_folder(
    account: Account, futures: dict[str, RemoteFuture], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step was done once: none is lost, and none was repeated. The log of both attempts is shown."""
    run = futures["count"].run
    start, done = futures["count"].result(logs=True)
    assert start == KILLED_AT and done.split() == [str(step) for step in range(STEPS)]
    assert len(account.runs.load(run).attempts) == 2
    printed = capsys.readouterr().err
    assert f"{run} | began at step 0" in printed and f"run {run} goes on as {run}-a002, attempt 2" in printed


def test_an_exception_that_is_retried_holds_the_run_when_its_budget_is_spent(
    account: Account, futures: dict[str, RemoteFuture]
) -> None:
    future = futures["held"]
    with pytest.raises(RunHeld, match=f"run {future.run} is held after 2 attempts: .*`rerail release") as raised:
        future.result()
    assert isinstance(raised.value.__cause__, KeyError) and not future.done()
    assert len(account.run_in(future.run, "held").attempts) == 2


def test_a_run_that_is_cancelled_has_no_result(account: Account, futures: dict[str, RemoteFuture]) -> None:
    future = futures["stopped"]
    account.wait("the run", lambda: account.runs.load(future.run))
    with pytest.raises(TimeoutError, match=f"{future.run} has not ended.*attach"):
        future.result(timeout=0.1)
    future.cancel()
    with pytest.raises(RunStopped, match=f"run {future.run} has been stopped"):
        future.result()


@pytest.mark.threat("T31")
def test_a_result_that_others_wrote_is_refused_and_not_unpickled(
    account: Account, futures: dict[str, RemoteFuture], tmp_path: Path
) -> None:
    """Neither bytes of others, nor changed ones, nor the signed result of another call."""
    run, other = futures["add"].run, futures["count"].run
    s3, touched = account.aws.client("s3"), tmp_path / "touched"
    key = f"rerail/{run}/results/{run}"
    own = s3.get_object(Bucket="sagemaker-local", Key=key)["Body"].read()
    listed = s3.list_objects_v2(Bucket="sagemaker-local", Prefix=f"rerail/{other}/results/")["Contents"]
    (foreign,) = (item for item in listed if not item["Key"].endswith(".begun"))
    replayed = s3.get_object(Bucket="sagemaker-local", Key=foreign["Key"])["Body"].read()

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (touched,)

    begin = own[: own.rindex(b"\n") + 1]
    for forged in (pickle.dumps(Bomb()), begin + pickle.dumps(Bomb()), replayed):
        s3.put_object(Bucket="sagemaker-local", Key=key, Body=forged)
        with pytest.raises(ResultRefused, match=f"the result of run {run} was refused"):
            attach(run, local=True).result()
    assert not touched.exists()


def test_the_programs_of_the_page_run_as_they_stand(service: None, tmp_path: Path) -> None:
    """Each on the local AWS, with the output that the page shows."""
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 2
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "cli" / "entry")}
    printed = []
    for number, block in enumerate(blocks):
        program = tmp_path / f"program{number}" / "program.py"
        program.parent.mkdir()
        program.write_text(block)
        done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed += done.stdout.splitlines()
    assert printed == re.findall(r"# prints (.*)$", "".join(blocks), re.MULTILINE)
