"""The probes of this machine's GPUs, by the tables and messages of NVIDIA's tools."""

import threading
from pathlib import Path

import pytest

from rerail_agent import machine_probes
from rerail_agent.machine_probes import ProbeResult, ProbeStatus
from tests.raising import raising

HEALTHY = "0, 0\n1, 0\n2, 0\n3, 0\n4, 0\n5, 0\n6, 0\n7, 0\n"


@pytest.mark.parametrize(
    ("errors", "remapped", "expected", "detail"),
    [
        (HEALTHY, "", ProbeStatus.PASSED, "8 without memory errors"),
        (HEALTHY, "GPU-1a, No, No\nGPU-2b, No, No\n", ProbeStatus.PASSED, "8 without memory errors"),
        (HEALTHY.replace("5, 0", "5, [N/A]"), "", ProbeStatus.PASSED, "8 without memory errors"),
        (HEALTHY.replace("3, 0", "3, 2"), "", ProbeStatus.ODD, "GPU 3 has 2 uncorrectable memory errors"),
        (HEALTHY, "GPU-1a, Yes, No\n", ProbeStatus.ODD, "GPU-1a has a row to be remapped"),
        (HEALTHY, "GPU-1a, No, Yes\n", ProbeStatus.BROKEN, "GPU-1a: a row of memory could not be remapped"),
        ("0, 0\n1, 0\n", "", ProbeStatus.BROKEN, "2 of the 8 GPUs of a ml.p4d.24xlarge are there"),
    ],
)
def test_memory_errors_of_nvidia_smi_are_classified(
    errors: str, remapped: str, expected: ProbeStatus, detail: str
) -> None:
    result = machine_probes.evaluate_gpus(errors, remapped, 8, machine="ml.p4d.24xlarge")
    assert (result.status, detail in result.detail) == (expected, True), result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1.0] usb 1-1: new device", ProbeStatus.PASSED),
        ("[7.1] NVRM: Xid (PCI:0000:10:1c): 13, pid=7, Graphics Exception", ProbeStatus.PASSED),
        ("[7.1] NVRM: Xid (PCI:0000:10:1c): 63, pid=7, Row Remapper", ProbeStatus.ODD),
        ("[7.1] NVRM: Xid (PCI:0000:10:1c): 79, GPU has fallen off the bus.", ProbeStatus.BROKEN),
        ("[7.1] NVRM: Xid (PCI:0000:10:1c): 95, pid=7, Uncontained", ProbeStatus.BROKEN),
    ],
)
def test_gpu_errors_of_the_kernel_log_are_classified(text: str, expected: ProbeStatus) -> None:
    """By the number of the Xid; a program's own mistake (13) is not the machine's."""
    assert machine_probes.evaluate_kernel_log(text).status is expected


@pytest.mark.slow
def test_a_lost_gpu_is_broken_and_an_absent_tool_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """nvidia-smi fails in both cases."""
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = machine_probes.probe_gpus()
    assert (absent.status, absent.detail) == (ProbeStatus.SKIPPED, "nvidia-smi: No such file or directory")
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\necho 'Unable to determine the device handle for GPU 0000:10:1C.0: GPU is lost.'\nexit 15\n"
    )
    tool.chmod(0o755)
    assert machine_probes.probe_gpus().status is ProbeStatus.BROKEN


def test_a_tool_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes run beside each other and have one deadline; a probe that raises does not end the job."""
    fails = raising(RuntimeError("no such file"))
    monkeypatch.setattr(machine_probes, "HUNG_S", 0.1)
    release, ended = threading.Event(), threading.Event()

    def hangs() -> ProbeResult:
        release.wait(60)
        ended.set()
        return ProbeResult("gpus", ProbeStatus.PASSED, "")

    gpus, log, disk = machine_probes.run_probes({"gpus": hangs, "kernel log": hangs, "disk": fails}, limit_s=1.0)
    assert not ended.is_set(), "it was waited for"
    release.set()
    assert (gpus.status, log.status, disk.status) == (ProbeStatus.BROKEN, ProbeStatus.ODD, ProbeStatus.ODD)
    assert disk.detail == "RuntimeError: no such file"
