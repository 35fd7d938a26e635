"""Which GPU a rank has, and whether one of this machine failed before."""

from pathlib import Path

import pytest

from rerail_agent import failure, gpus
from rerail_agent.gpus import Gpu, find_gpu, find_returned, parse_gpus

FIRST, OTHER = "GPU-5a1c2f64-0d0e-4b8b-9b5c-0c3b5a2f7d11", "GPU-77e0aa10-1111-2222-3333-444455556666"
# Without the driver's warning, as two GPUs of one H100 machine answer.
TABLE = f"""Unable to determine the device handle for GPU 0000:8A:00.0: Unknown Error
0, {FIRST}, 1652923012345, 580.159.03
1, {OTHER}, [N/A], 580.159.03
"""
ECC = "CUDA error: uncorrectable ECC error encountered"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an `nvidia-smi` that prints the table before all others."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{TABLE}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_the_drivers_table_is_read_without_its_complaints():
    """Read a word or zeros in place of a serial number as none."""
    assert parse_gpus(f"0, {FIRST}, 0, 535.1") == [Gpu(0, FIRST, "", "535.1")]
    assert [str(gpu) for gpu in parse_gpus(TABLE)] == [
        f"{FIRST} (serial 1652923012345, driver 580.159.03)",
        f"{OTHER} (driver 580.159.03)",
    ]


@pytest.mark.parametrize(
    "environment, number",
    [
        ({"LOCAL_RANK": "1"}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, 0),
        ({"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "1,0"}, 1),
        ({"LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": OTHER[:9]}, 1),
        ({}, None),
        ({"LOCAL_RANK": "2"}, None),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "1,7,0"}, 1),
        ({"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": ""}, None),
        ({"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "GPU-,0"}, None),
        ({"LOCAL_RANK": "-1"}, None),
    ],
)
def test_a_rank_has_the_gpu_of_its_local_rank(environment, number):
    """Name none where that is not certain: a wrong one would be refused later."""
    found = find_gpu(parse_gpus(TABLE), environment)
    assert (found.number if found else None) == number


@pytest.mark.slow
@pytest.mark.parametrize(
    "error, named",
    [
        (ECC, True),
        ("KeyError: 'label'", False),
        (f"{ECC} on {FIRST}", False),
        ("HardwareError: 7 of 8 GPUs are there", False),
    ],
)
def test_an_error_of_a_gpu_is_reported_with_it(driver, tmp_path, monkeypatch, error, named):
    """Name no GPU for an error that names one itself: it is about that one."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(RuntimeError), failure.record_failure(tmp_path / "failure", rank=9):
        raise RuntimeError(error)
    assert (f'"gpu": "{OTHER} (driver 580.159.03)"' in (tmp_path / "failure").read_text()) is named


@pytest.mark.slow
def test_only_a_gpu_that_failed_before_is_refused(driver):
    """Skip malformed entries of the variable."""
    assert find_returned({gpus.VARIABLE: f"2:{OTHER},4:{OTHER}"}) == (
        f"the GPU that failed in attempts 2 and 4 is back: {OTHER} (driver 580.159.03)"
    )
    assert not find_returned({gpus.VARIABLE: f"2:{OTHER[:-1]}0,x:{FIRST}"})


@pytest.mark.slow
@pytest.mark.parametrize("script", ["sleep 60", "exit 9", "printf '\\377\\0,,,\\n0, GPU-1'"])
def test_a_driver_that_does_not_answer_lists_no_gpu(tmp_path, monkeypatch, script):
    """List none without a driver either."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\nexec sh -c "{script}"\n')
    program.chmod(0o755)
    monkeypatch.setattr(gpus, "LIMIT_S", 0.5)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpus.list_gpus() == []
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert gpus.list_gpus() == []
