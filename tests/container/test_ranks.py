"""Two ranks: the same guarantees as with one, with whole and with sharded weights, and under commands."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.agent.fake_s3 import Bucket, serving
from tests.agent.jobs import command, environment_of
from tests.container.hosts import LIMIT_S, Host, agree, saved, weights

NewHost = Callable[..., Host]
RunForked = Callable[..., list[int]]
pytestmark = pytest.mark.slow


PIPELINE = {"model_size": "demo", "pipeline_parallel": "2", "microbatches": "2"}


@pytest.mark.parametrize(
    "layout",
    [{"parallel": "ddp"}, {"parallel": "fsdp"}, PIPELINE],
    ids=lambda layout: layout.get("parallel", "pipeline"),
)
def test_two_ranks_resume_bit_for_bit(new_host: NewHost, run_forked: RunForked, layout: dict[str, str]) -> None:
    """A spike in the (sharded) weights and a crash; the next attempt has the losses and weights of an undisturbed run.

    It finds out by itself that it has, with the first three losses.
    """
    options = {"steps": "36", "checkpoint_every": "10", **layout}
    whole, broken = new_host("whole", **options), new_host("broken", **options)
    run_forked(whole, ranks=2)
    run_forked(broken, ranks=2, RERAIL_DRILL="spike:step=24;bug:step=27:rank=1")
    first = broken.losses
    assert (max(first), first[23] == whole.losses[23], first[24] == whole.losses[24]) == (26, True, False)
    assert float(first[24]) > 1.2 * float(first[23])
    run_forked(broken, ranks=2, RERAIL_RUN="night", RERAIL_ATTEMPT="2", RERAIL_RESUME_STEP="20")
    err = broken.err.read_text()
    assert (min(broken.losses), max(broken.losses)) == (21, 36), err
    assert agree(broken.losses, whole.losses)
    assert weights(err) == weights(whole.err.read_text()) != ""
    assert "the losses of steps 21 to 23 are those of before the resume, bit for bit" in err
    assert {manifest.world_size for manifest in saved(broken.checkpoints).values()} == {2}


def test_sharded_ranks_go_on_as_one(new_host: NewHost, run_forked: RunForked) -> None:
    """One rank takes over from two, without their random numbers: it reads the same samples and learns on.

    A NaN in one shard reaches every loss.
    """
    host = new_host(steps="30", parallel="fsdp")
    run_forked(host, ranks=2, RERAIL_DRILL="bug:step=25")
    first = host.losses
    run_forked(host, ranks=1, RERAIL_DRILL="nan:step=28")
    assert (max(first), min(host.losses), max(host.losses)) == (24, 21, 30), host.err.read_text()
    assert first[21] != host.losses[21]
    assert float(first[21]) == pytest.approx(float(host.losses[21]), rel=0.05)
    assert [step for step, loss in host.losses.items() if loss == "nan"] == [28, 29, 30]
    assert "not compared: ranks was 2, it is 1" in host.err.read_text()
    manifests = saved(host.checkpoints)
    assert (manifests[20].world_size, manifests[30].world_size, manifests[30].health) == (2, 1, "suspect")
    assert manifests[30].consumed_samples == 30 * 12


def test_a_run_starts_with_the_weights_of_another(new_host: NewHost, run_forked: RunForked) -> None:
    """A pipeline takes those that one rank has saved, in any layout; its steps, samples and optimizer are new."""
    source = new_host("source", model_size="demo", dropout="0")
    run_forked(source, ranks=1)
    host = new_host("next", start_from=str(source.checkpoints), dropout="0", **PIPELINE)
    assert run_forked(host, ranks=2) == [0, 0], host.err.read_text()
    assert f"starts with the weights of step 40 in {source.checkpoints}" in host.err.read_text()
    assert list(host.losses) == list(range(1, 41))
    assert float(host.losses[1]) == pytest.approx(float(source.losses[40]), rel=0.1)
    assert float(host.losses[1]) < 0.9 * float(source.losses[1])
    (source.base / "none").mkdir()
    lost = new_host("lost", start_from=str(source.base / "none"))
    assert run_forked(lost, ranks=1) == [1]
    assert "has no clean checkpoint; name the folder of a run's checkpoints" in lost.err.read_text()


def test_a_nan_in_the_shards_is_everybodys(new_host: NewHost, run_forked: RunForked) -> None:
    """All ranks skip the samples that the job has to skip."""
    host = new_host(steps="12", parallel="fsdp")
    run_forked(host, ranks=2, RERAIL_DRILL="nan:step=8", RERAIL_SKIP_SAMPLES="60-65,24-35")
    assert [step for step, loss in host.losses.items() if loss == "nan"] == [8, 9, 10, 11, 12]
    assert saved(host.checkpoints)[12].consumed_samples == 12 * 12 + 12 + 6


@contextmanager
def going_on(run_forked: RunForked, host: Host, **environment: str) -> Iterator["Future[list[int]]"]:
    """Two ranks at work in the background; what still runs at the end is killed."""
    with ThreadPoolExecutor() as background:
        codes = background.submit(run_forked, host, ranks=2, **environment)
        try:
            yield codes
        finally:
            if not codes.done():
                send(host, signal.SIGKILL, 0, 1)


def send(host: Host, number: signal.Signals, *ranks: int) -> None:
    pids = json.loads((host.base / "pids.json").read_text())
    for rank in ranks:
        os.kill(pids[rank], number)


def await_step(host: Host, step: int, codes: "Future[list[int]]") -> None:
    deadline = time.monotonic() + LIMIT_S
    while max(host.losses, default=0) < step:
        assert not codes.done(), host.err.read_text()
        assert time.monotonic() < deadline, host.err.read_text()
        time.sleep(0.02)


@pytest.mark.parametrize("layout", [{}, PIPELINE], ids=["ddp", "pipeline"])
def test_a_command_saves_at_one_step_and_training_goes_on(
    new_host: NewHost, run_forked: RunForked, layout: dict[str, str]
) -> None:
    """The supervisor asks for a checkpoint and gets a report of it; a SIGTERM to one rank then ends both."""
    host = new_host(steps="100000", checkpoint_every="100000", step_seconds="0.01", **layout)
    with serving(Bucket()) as bucket:
        bucket.command(command())
        with going_on(run_forked, host, **environment_of(bucket, base=host.base)) as codes:
            report = bucket.wait_for_report("checkpoint", within_s=LIMIT_S)
            assert report.step is not None
            await_step(host, max(host.losses) + 5, codes)
            send(host, signal.SIGTERM, 1)
            assert codes.result(timeout=LIMIT_S) == [0, 0]
    last = max(host.losses)
    assert list(host.losses) == list(range(1, last + 1))
    reasons = {step: manifest.reason for step, manifest in saved(host.checkpoints).items()}
    assert reasons == {report.step: "emergency", last: "sigterm"}
    assert (report.command, report.path) == ("c1", str(host.checkpoints / f"step-{report.step:09d}"))
    ends = re.findall(r"rank \d ends after step (\d+)", host.err.read_text())
    assert ends == [str(last)] * 2


def test_a_fenced_attempt_trains_on_and_saves_no_more(new_host: NewHost, run_forked: RunForked) -> None:
    """Another attempt owns the run: not even what SIGTERM would have it save is saved."""
    host = new_host(steps="100000", checkpoint_every="10", step_seconds="0.01")
    with serving(Bucket()) as bucket:
        bucket.command(command(attempt=2))
        with going_on(run_forked, host, **environment_of(bucket, base=host.base)) as codes:
            bucket.wait_for_report("refused", within_s=LIMIT_S)
            before = max(host.losses, default=0)
            await_step(host, before + 25, codes)
            send(host, signal.SIGTERM, 0)
            assert codes.result(timeout=LIMIT_S) == [0, 0]
    assert max(saved(host.checkpoints), default=0) <= before + 10
