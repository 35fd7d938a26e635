"""The look at every machine before the first step: what it finds, and that all ranks come to the same verdict."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import preflight
from job import TrainingCluster, TrainingJob
from parallel import DistributedWorld
from preflight import HardwareError
from rerail_agent.checkpoints import store
from rerail_agent.machine_probes import ProbeResult, ProbeStatus
from tests.container import fitness
from tests.container.hosts import IMPORT_PATH
from tests.raising import raising

ALONE = DistributedWorld(rank=0, size=1, device=torch.device("cpu"), backend="gloo")
HERE = TrainingCluster(hosts=("algo-1",), current_host="algo-1", instance_type="", network_interface="")
Cases = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """What each of the three ranks said, by the name of the case in fitness.py."""
    scrubbed = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [sys.executable, fitness.__file__, str(tmp_path_factory.mktemp("fitness"))],
        env={**scrubbed, "PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said: Cases = {}
    for line in done.stdout.splitlines():
        said.setdefault(json.loads(line)["case"], []).append(json.loads(line))
    return said


def verdicts(cases: Cases, name: str) -> tuple[str, str]:
    """The class and the text that all ranks agree on."""
    raised = {tuple(each["raised"]) for each in cases[name]}
    assert len(raised) == 1, raised
    return raised.pop()


@pytest.mark.slow
def test_three_fit_machines_start(cases: Cases) -> None:
    """Nothing is raised, and rank 0 alone tells, with the figures of what was measured."""
    assert verdicts(cases, "fit") == ("", "")
    (line,) = [line for each in cases["fit"] for line in each["logged"]]
    assert line.startswith("preflight: 3 rank(s) in ")
    assert "TFLOP/s" in line
    assert "GB/s" in line


@pytest.mark.slow
def test_all_ranks_fail_with_the_one_that_miscalculates(cases: Cases) -> None:
    """One number in 65,536 is enough; each rank names the same host and rank."""
    kind, text = verdicts(cases, "miscalculating")
    assert kind == "HardwareError"
    assert text == "algo-2 (rank 1): compute: cpu gets 1 of 65536 numbers of a torch.float32 product wrong"


@pytest.mark.slow
def test_a_rank_that_stays_away_from_the_all_reduce_is_named(cases: Cases) -> None:
    """Before those that waited for it in vain, by its host; the others do not wait for ever."""
    assert len(cases["absent"]) == 2
    kind, text = verdicts(cases, "absent")
    assert kind == "HardwareError"
    assert text.startswith("algo-3 (rank 2): report: no word from it | algo-1 (rank 0): all-reduce: no answer within")


@pytest.mark.slow
def test_a_hung_gpu_ends_the_job_instead_of_hanging_it(cases: Cases) -> None:
    """A driver call that never returns is left behind."""
    assert verdicts(cases, "hung_driver") == ("HardwareError", "algo-1 (rank 0): compute: no answer within 2 s")


@pytest.mark.slow
def test_a_place_that_cannot_be_written_is_no_hardware_fault(cases: Cases) -> None:
    """Another machine would not help, so it is the user's mistake; on all ranks too."""
    kind, text = verdicts(cases, "without_a_place")
    assert kind == "ValueError"
    assert text.startswith("algo-2 (rank 1): checkpoints: cannot keep a file in /proc/version/checkpoints")


def job(base: Path, checkpoints: str = "") -> TrainingJob:
    return TrainingJob(base=base, run="night", attempt=1, resume_at_most=None, checkpoint_location=checkpoints)


@pytest.mark.slow
def test_alone_on_a_cpu_it_looks_at_what_there_is(tmp_path: Path) -> None:
    """One rank: no all-reduce; the random numbers of the run are not touched and no file is left."""
    before = torch.get_rng_state()
    logged: list[str] = []
    results = preflight.inspect(ALONE, job(tmp_path), HERE, log=logged.append)
    assert {result.probe: result.status for result in results if result.probe not in ("gpus", "kernel log")} == {
        "compute": ProbeStatus.PASSED,
        "disk": ProbeStatus.PASSED,
        "checkpoints": ProbeStatus.PASSED,
        "all-reduce": ProbeStatus.SKIPPED,
    }
    assert torch.equal(before, torch.get_rng_state())
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert "all-reduce (one rank)" in logged[-1]


@pytest.mark.slow
def test_a_disk_without_room_for_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"disk: .* GiB free under .*a checkpoint takes 1048576.0; raise VolumeSizeInGB"
    ):
        preflight.inspect(ALONE, job(tmp_path), HERE, log=print, state_bytes=1 << 50)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(errno.EIO, ProbeStatus.BROKEN), (errno.EROFS, ProbeStatus.BROKEN), (errno.EACCES, ProbeStatus.REFUSED)],
)
def test_a_failing_disk_is_distinguished_from_a_forbidden_path(
    error: int, expected: ProbeStatus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "fsync", raising(OSError(error, os.strerror(error))))
    assert preflight.probe_checkpoints(str(tmp_path), "probe").status is expected


class Bucket:
    """Stands for S3Place: what is written can be checked and dropped."""

    def __init__(self) -> None:
        self.objects: dict[tuple[int, str], bytes] = {}
        self.seen: list[str] = []
        self.denied = False

    def at(self, uri: str) -> "Bucket":
        self.seen.append(uri)
        return self

    def write(self, step: int, name: str, chunks: list[memoryview], *, total: int) -> dict[str, Any]:
        if self.denied:
            raise OSError("S3: Access Denied")
        self.objects[step, name] = b"".join(chunks)
        return {"name": name, "bytes": total}

    def check(self, step: int, entry: dict[str, Any]) -> None:
        assert len(self.objects[step, entry["name"]]) == entry["bytes"]

    def drop(self, step: int) -> None:
        self.objects.clear()


def test_a_bucket_gets_an_object_and_loses_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the agent's own code, under a name that is not a checkpoint's; a denial is for the user to fix."""
    bucket = Bucket()
    monkeypatch.setattr(store, "open_store", bucket.at)
    assert preflight.probe_checkpoints("s3://models/run/", "night-algo-1").status is ProbeStatus.PASSED
    assert bucket.seen == ["s3://models/run/.preflight-night-algo-1"]
    assert not bucket.objects
    bucket.denied = True
    result = preflight.probe_checkpoints("s3://models/run/", "night-algo-1")
    assert result.status is ProbeStatus.REFUSED
    assert "Access Denied; check the path, the role and the bucket" in result.detail


@pytest.mark.parametrize(
    ("instance_type", "hosts", "speed", "expected"),
    [
        ("ml.p4d.24xlarge", 2, 40.0, ProbeStatus.PASSED),
        ("ml.p4d.24xlarge", 2, 4.0, ProbeStatus.ODD),
        ("ml.p4d.24xlarge", 2, 0.05, ProbeStatus.BROKEN),
        ("ml.p4d.24xlarge", 1, 200.0, ProbeStatus.PASSED),
        ("ml.p4d.24xlarge", 1, 8.0, ProbeStatus.ODD),
        ("ml.g5.12xlarge", 1, 8.0, ProbeStatus.PASSED),
        ("", 2, 0.001, ProbeStatus.PASSED),
    ],
)
def test_an_all_reduce_is_measured_by_what_the_link_can_do(
    instance_type: str, hosts: int, speed: float, expected: ProbeStatus
) -> None:
    """A slow link is reported with its speed; only an absurd speed is broken, and unknown links have no limit."""
    cluster = TrainingCluster(
        hosts=("algo",) * hosts, current_host="algo", instance_type=instance_type, network_interface=""
    )
    result = preflight.evaluate_speed(speed, preflight.find_least_speed(cluster))
    assert result.status is expected
    assert f"{speed:.2f} GB/s" in result.detail


def test_a_slow_gpu_is_reported() -> None:
    """Compared with the median of all ranks; it stops no job."""
    results = [
        ProbeResult("compute", ProbeStatus.PASSED, "fast", speed=100.0, host=f"algo-{n}", rank=n) for n in range(4)
    ]
    results.append(
        ProbeResult("compute", ProbeStatus.PASSED, "bfloat16 40.00 TFLOP/s", speed=40.0, host="algo-5", rank=4)
    )
    logged: list[str] = []
    preflight.raise_failures(results)
    preflight.report(results, seconds=1.0, log=logged.append)
    assert logged[0] == "preflight: algo-5 (rank 4): compute: bfloat16 40.00 TFLOP/s, the median is 100.0"


def test_a_whole_rack_does_not_fill_the_failure_file() -> None:
    """Four are named, the others counted."""
    with pytest.raises(HardwareError, match=r"algo-0 .* \| algo-3 .* \| and 60 more$"):
        preflight.raise_failures(
            [ProbeResult("compute", ProbeStatus.BROKEN, "wrong", host=f"algo-{n}", rank=n) for n in range(64)]
        )
