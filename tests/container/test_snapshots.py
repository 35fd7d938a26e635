"""Training goes on from memory: real ranks under the real init, killed with or without their machine."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launch import find_free_port
from rerail_agent.snapshot_launch import make_folder_path
from tests.agent.checkpoints.ranks import settle
from tests.container.hosts import CONTAINER, IMPORT_PATH, LIMIT_S, OPTIONS, Here, Host, agree, losses

EVERY = 5
# What a restart in place comes down to: the ranks start again, and init and what it keeps stay.
AGAIN = """
for start in 1 2 3; do
    "$@" && exit 0
    unset RERAIL_DRILL
    rm -f "$SAGEMAKER_BASE_DIR/output/failure"
done
exit 1
"""


class Machine:
    """One node: init, its snapshot process, and one rank that restarts when it dies. In a process group of its own."""

    def __init__(self, base: Path, *, rank: int = 0, of: int = 1, port: int = 0, **environment: str) -> None:
        base.mkdir(exist_ok=True)
        self.base, self.out, self.err = base, base / "out.txt", base / "err.txt"
        chosen = {**OPTIONS, "checkpoint_every": "1000", "step_seconds": "0.03"}
        train = [sys.executable, "train.py", *(f"--{name}={value}" for name, value in chosen.items())]
        places = {"RANK": rank, "WORLD_SIZE": of, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        with self.out.open("a") as out, self.err.open("a") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rerail_agent.init", "--", "sh", "-c", AGAIN, "again", *train],
                cwd=CONTAINER,
                env={
                    **kept,
                    "PYTHONPATH": IMPORT_PATH,
                    **{name: str(value) for name, value in places.items()},
                    "MASTER_ADDR": "127.0.0.1",
                    "SAGEMAKER_BASE_DIR": str(base),
                    "TRAINING_JOB_NAME": "night",
                    "RERAIL_MAILBOX": "off",
                    "RERAIL_SNAPSHOT_STEPS": str(EVERY),
                    **environment,
                },
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def started_after(self) -> list[int]:
        """After which step each start of the ranks went on; rank 0 says it."""
        return [int(step) for step in re.findall(r"attempt 1 of night starts after step (\d+)", self.err.read_text())]

    @property
    def all_losses(self) -> list[dict[int, str]]:
        """Of each start of the ranks."""
        lines = self.out.read_text().splitlines()
        steps = [int(match[1]) if (match := re.match(r"rerail step=(\d+) ", line)) else 0 for line in lines]
        cuts = [at for at in range(1, len(steps)) if steps[at] <= steps[at - 1]]
        return [
            losses("\n".join(lines[first:last])) for first, last in zip([0, *cuts], [*cuts, len(lines)], strict=True)
        ]

    def kill(self) -> None:
        """The whole machine at once: what init has started dies with it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(name: str, **places: object) -> Machine:
        made.append(Machine(tmp_path / name, RERAIL_CHECKPOINTS=str(tmp_path / "checkpoints"), **places))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.mark.slow
def test_a_restart_in_place_goes_on_from_this_machines_memory(
    machine: Callable[..., Machine], train_here: Here, tmp_path: Path
) -> None:
    """The rank is killed at step 23; the next one goes on after the last snapshot, with nothing saved, to the same end.

    On a busy machine the snapshot of step 20 may not be complete yet.
    """
    undisturbed = train_here(tmp_path / "undisturbed")
    weights = re.search(r"weights xxh3_64:\w+", train_here.err)
    assert weights
    one = machine("algo-1", RERAIL_DRILL="kill:step=23")
    assert one.process.wait(LIMIT_S) == 0, one.err.read_text()
    begin, again = one.started_after
    assert begin == 0
    assert again in (10, 15, 20)
    assert all(agree(loss, undisturbed) for loss in one.all_losses)
    assert weights[0] in one.err.read_text()
    assert not make_folder_path(str(one.base)).exists()  # the snapshot process has ended with its init


@pytest.mark.slow
def test_a_lost_machine_gets_its_state_from_its_neighbour(
    machine: Callable[..., Machine], new_host: Callable[..., Host], run_forked: Callable[..., list[int]]
) -> None:
    """One of two machines is killed with its snapshots, and a new one joins the other, whose ranks have restarted.

    The losses are bit for bit those of an undisturbed run.
    """
    port = find_free_port()
    first = machine("algo-1", rank=0, of=2, port=port)
    second = machine("algo-2", rank=1, of=2, port=port)
    assert settle(lambda: "rerail step=23 " in first.out.read_text(), LIMIT_S), first.err.read_text()
    second.kill()
    third = machine("algo-2", rank=1, of=2, port=port)
    assert first.process.wait(LIMIT_S) == 0, first.err.read_text()
    assert third.process.wait(LIMIT_S) == 0, third.err.read_text()
    begin, again = first.started_after
    assert begin == 0
    assert again in (15, 20, 25, 30), first.err.read_text()
    whole = new_host("undisturbed")
    assert run_forked(whole, ranks=2) == [0, 0]
    assert [agree(loss, whole.losses) for loss in first.all_losses] == [True, True]
    assert max(first.all_losses[1]) == int(OPTIONS["steps"])
