"""Init as PID 1 of a real namespace and as an ordinary process: whom it signals, what it waits for, what it says."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from local.pace import measure_pace
from rerail_agent import gpus, init, processes
from rerail_agent.processes import LinuxProcess
from rerail_agent.ranks import find_training_processes
from tests.container.namespaces import AGENT, Namespace, find_refusal

pytestmark = pytest.mark.slow
PYTHON = sys.executable
INIT = (PYTHON, "-m", "rerail_agent.init", "--")
HANG_S = 120  # ends a wait for what never comes
SAVE_S = 1.0
STOP_S = 10.0  # at reference speed; init leaves the ranks all but five seconds of it

# A rank that saves for a while on SIGTERM; `note` leaves a file for the test.
RANK = """
import os, signal, sys, time
folder, rank = os.environ["FOLDER"], os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
def note(what, value=""):
    with open(f"{folder}/.{what}-{rank}", "w") as file: file.write(str(value))
    os.rename(f"{folder}/.{what}-{rank}", f"{folder}/{what}-{rank}")
heard = []
def listen(*numbers):
    for number in numbers or [signal.SIGTERM]: signal.signal(number, hear)
def hear(number, _): heard.append(int(number)); note(f"heard{int(number)}")
def run(save_s=0.5):
    note("ready", os.getpid())
    while signal.SIGTERM not in heard: time.sleep(0.01)
    time.sleep(save_s)
    note("saved", heard)
"""
# Starts ranks as an unknown launcher would, and polls them now and then, as torchrun does:
# `python launcher.py N rank.py`.
LAUNCHER = """
import os, subprocess, sys, time
def start(rank):
    return subprocess.Popen([sys.executable, sys.argv[2]], env={**os.environ, "RANK": str(rank)})
ranks = [start(n) for n in range(int(sys.argv[1]))]
open(os.environ["FOLDER"] + "/launcher", "w").write(str(os.getpid()))
while any(rank.poll() is None for rank in ranks): time.sleep(0.1)
sys.exit(max(abs(rank.returncode) for rank in ranks))
"""


class Job:
    """A command under init, which is an ordinary process here; `rank.py` and `launcher.py` lie in its folder."""

    def __init__(self, folder: Path, rank: str, *, constants: str = "", **environment: str) -> None:
        self.folder = folder
        self.base = folder / "ml"
        self.base.mkdir()
        self.rank, self.launcher = folder / "rank.py", folder / "launcher.py"
        self.rank.write_text(f"{RANK}\n{rank}")
        self.launcher.write_text(LAUNCHER)
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(AGENT),
            "FOLDER": str(folder),
            "SAGEMAKER_BASE_DIR": str(self.base),
            **environment,
        }
        for name in re.findall(r"init\.(\w+) =", constants):
            assert hasattr(init, name), f"init has no constant {name}"
        run = f"from rerail_agent import init; {constants}; init.main()"
        self.init = (PYTHON, "-c", run, "--") if constants else INIT

    def start(self, *command: object) -> "Job":
        words = [str(word) for word in (*self.init, *(command or (PYTHON, self.rank)))]
        self.process = subprocess.Popen(
            words, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        return self

    def wait_for(self, *names: str) -> "Job":
        deadline = time.monotonic() + HANG_S
        while missing := [name for name in names if not (self.folder / name).exists()]:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, missing
            time.sleep(0.01)
        return self

    def send(self, number: signal.Signals) -> "Job":
        self.process.send_signal(number)
        return self

    def end(self) -> int:
        out, err = self.process.communicate(timeout=HANG_S)
        self.out, self.err = out.decode(), err.decode()
        return self.process.returncode

    def note(self, name: str) -> str | None:
        path = self.folder / name
        return path.read_text() if path.exists() else None

    @property
    def failure(self) -> dict[str, Any] | None:
        path = self.base / "output" / "failure"
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def new_job(tmp_path: Path) -> Any:
    made: list[Job] = []

    def make(rank: str = "listen(); run()", **options: str) -> Job:
        made.append(Job(tmp_path, rank, **options))
        return made[-1]

    yield make
    for job in made:
        if job.process.poll() is None:
            job.process.kill()
            job.process.communicate()


NewJob = Callable[..., Job]


# ---- As PID 1.

needs_namespaces = pytest.mark.skipif(bool(find_refusal()), reason=find_refusal() or "-")
DRIVER = "import subprocess, sys; sys.exit(subprocess.Popen(sys.argv[1:]).wait())"
# What lies between PID 1 and the ranks. tests/container/test_processes.py has a torchrun right below init.
WITH_INIT, WITHOUT_INIT = ("bash", "python Popen", "bash -c torchrun", "mpirun"), ("bash", "python Popen", "torchrun")


@dataclass(frozen=True)
class SignalOutcome:
    """The result of a stop in one process layout."""

    reached: bool
    saved: bool
    # 137 is SageMaker's SIGKILL.
    exit_code: int


def list_layouts(rank: Path) -> dict[str, tuple[tuple[str, ...], int]]:
    """Return commands by the launcher between PID 1 and the ranks, with the number of ranks."""
    one = (PYTHON, str(rank))
    torchrun = (PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=PORT", str(rank))
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", *one)
    # Two commands, so that bash stays: a single one it would replace itself with.
    in_bash = ("bash", "-c", '"$@"; exit $?', "bash")
    layouts = {
        "bash": ((*in_bash, *one), 1),
        "python Popen": ((PYTHON, "-c", DRIVER, *one), 1),  # AWS's toolkit
        "torchrun": (torchrun, 2),
        "bash -c torchrun": ((*in_bash, *torchrun), 2),
    }
    return layouts | ({"mpirun": (mpirun, 2)} if shutil.which("mpirun") else {})


def stop_layout(command: Sequence[str], ranks: int, folder: Path, stop_s: float) -> SignalOutcome:
    """Start a layout, wait for its ranks, send SIGTERM and observe what becomes of their saves."""
    folder.mkdir()
    port = f"--master-port={free_port()}"
    words = [port if word == "--master-port=PORT" else word for word in command]
    place = Namespace(words, folder, RERAIL_GRACE_SECONDS=str(stop_s - 5))
    place.await_files("ready", ranks)
    time.sleep(0.3)  # launchers write a little more before they wait
    place.send(signal.SIGTERM)
    code = place.wait(stop_s)
    reached, saved = (len(list(folder.glob(f"{what}-*"))) == ranks for what in ("heard15", "saved"))
    return SignalOutcome(reached, saved, code)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], SignalOutcome]:
    """The outcomes by layout, without init and with it as PID 1; all run at once, since they mostly sleep."""
    folder = tmp_path_factory.mktemp("matrix")
    rank = folder / "rank.py"
    rank.write_text(f"{RANK}\nlisten(); run({SAVE_S})")
    stop_s = measure_pace().real(STOP_S)
    layouts, wanted = list_layouts(rank), {True: WITH_INIT, False: WITHOUT_INIT}
    cases = [(name, has, *layouts[name]) for has, names in wanted.items() for name in names if name in layouts]
    with ThreadPoolExecutor(len(cases)) as threads:
        runs = {
            (name, has_init): threads.submit(
                stop_layout, [*INIT, *command] if has_init else command, ranks, folder / str(number), stop_s
            )
            for number, (name, has_init, command, ranks) in enumerate(cases)
        }
        return {layout: run.result() for layout, run in runs.items()}


@needs_namespaces
@pytest.mark.parametrize("layout", WITH_INIT)
def test_with_init_every_layout_saves(outcomes: dict[tuple[str, bool], SignalOutcome], layout: str) -> None:
    """The ranks have the signal early enough to save for as long as they need, and the exit code is 0."""
    if (layout, True) not in outcomes:
        pytest.skip("no mpirun here")
    outcome = outcomes[layout, True]
    assert (outcome.reached, outcome.saved, outcome.exit_code) == (True, True, 0)


@needs_namespaces
def test_without_init_the_usual_layouts_ignore_sigterm(outcomes: dict[tuple[str, bool], SignalOutcome]) -> None:
    """What init is for: a PID 1 without a handler never gets SIGTERM, nor do the processes below it."""
    for layout in ("bash", "python Popen"):
        outcome = outcomes[layout, False]
        assert (outcome.reached, outcome.saved, outcome.exit_code) == (False, False, 137)
    assert outcomes["torchrun", False].exit_code == 1  # although both of its ranks have saved and left with 0


@needs_namespaces
def test_as_pid_1_it_leaves_no_zombies(tmp_path: Path) -> None:
    """Orphans come to it and are reaped, while the command runs."""
    script = """
import os, pathlib, subprocess, sys, time
for _ in range(20): subprocess.run(["sh", "-c", "sleep 0.05 & exit 0"])
time.sleep(0.5)
stats = [path.read_text() for path in pathlib.Path("/proc").glob("[0-9]*/stat")]
print(os.getppid(), len(stats), sum(stat.rpartition(")")[2].split()[0] == "Z" for stat in stats))
"""
    place = Namespace([*INIT, PYTHON, "-c", script], tmp_path)
    assert place.wait(HANG_S) == 0
    assert (tmp_path / "out.txt").read_text().split() == ["1", "2", "0"]


@needs_namespaces
def test_as_pid_1_it_keeps_a_signal_that_comes_while_it_starts(tmp_path: Path) -> None:
    """From its first handler on; the rank is asked when it has one of its own, and not killed before."""
    rank = tmp_path / "rank.py"
    rank.write_text(f"{RANK}\nnote('starting'); time.sleep(1); listen(); run()")
    place = Namespace([*INIT, PYTHON, str(rank)], tmp_path)
    place.await_files("starting", 1)
    place.send(signal.SIGTERM)
    assert place.wait(HANG_S) == 0
    assert (tmp_path / "saved-0").exists()


# ---- As an ordinary process.


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -9 $$"), 137),
        (("sh", "-c", "kill -6 $$"), 134),
        (("true",), 0),
        (("/nowhere/train",), 127),
        (("/",), 126),
    ],
)
def test_the_exit_code_is_the_commands(new_job: NewJob, command: tuple[str, ...], code: int) -> None:
    """128+n for a signal; 127 and 126 as a shell has them."""
    assert new_job().start(*command).end() == code


def test_output_passes_unchanged(new_job: NewJob) -> None:
    """Byte for byte, much of it, without a line's end, and while the command still runs."""
    job = new_job("""
os.write(2, b"at once")
while not os.path.exists(f"{folder}/go"): time.sleep(0.01)
for n in range(3000): os.write(2, b"x" * 999 + b"\\r\\xff\\n")
print("out", end="")
os.write(2, b"the end")
""").start()
    assert job.process.stderr is not None
    assert os.read(job.process.stderr.fileno(), 100) == b"at once"
    (job.folder / "go").touch()
    out, err = job.process.communicate(timeout=HANG_S)
    assert (job.process.returncode, out) == (0, b"out")
    assert err == (b"x" * 999 + b"\r\xff\n") * 3000 + b"the end"


def test_a_second_sigterm_changes_nothing(new_job: NewJob) -> None:
    """The rank gets one, and has its time; SIGINT and SIGHUP ask for the same."""
    job = new_job().start().wait_for("ready-0").send(signal.SIGINT)
    time.sleep(0.1)
    job.send(signal.SIGTERM).send(signal.SIGTERM).send(signal.SIGHUP)
    assert job.end() == 0
    assert job.note("saved-0") == "[15]"


def test_launchers_and_data_loaders_are_left_alone(new_job: NewJob) -> None:
    """Each rank is signalled once; neither the launcher above it nor the processes that it has forked."""
    job = new_job("""
listen()
parent = os.getpid()
if not os.fork():
    while os.getppid() == parent and not heard: time.sleep(0.01)
    note("worker-heard" if heard and os.getppid() == parent else "worker-done")
    os._exit(0)
run()
""")
    job.start("sh", "-c", '"$@"; exit $?', "sh", PYTHON, job.launcher, "2", job.rank).wait_for("ready-0", "ready-1")
    assert job.send(signal.SIGTERM).end() == 0
    assert (job.folder / "saved-0").exists()
    assert (job.folder / "saved-1").exists()
    assert not (job.folder / "worker-heard-0").exists()


def test_the_exit_code_is_0_when_all_ranks_saved(new_job: NewJob) -> None:
    """Also when the launcher makes something else of it, as torchrun does; not when one rank failed."""
    job = new_job("listen(); run()")
    job.launcher.write_text(LAUNCHER.replace("sys.exit(max(", "sys.exit(1 + max("))
    assert job.start(PYTHON, job.launcher, "2", job.rank).wait_for("ready-0", "ready-1").send(signal.SIGTERM).end() == 0


def test_a_rank_that_fails_to_save_keeps_the_exit_code(new_job: NewJob) -> None:
    """After a request to stop, nothing is written to the failure file: the rank itself may."""
    job = new_job("listen(); run(); sys.exit(3 if rank == '1' else 0)")
    assert job.start(PYTHON, job.launcher, "2", job.rank).wait_for("ready-0", "ready-1").send(signal.SIGTERM).end() == 3
    assert job.failure is None


def test_the_grace_ends(new_job: NewJob) -> None:
    job = new_job("listen(); run(save_s=600)", constants="init.KILL_S = 0.3", RERAIL_GRACE_SECONDS="0.5")
    job.start(PYTHON, job.launcher, "1", job.rank).wait_for("ready-0")
    job.send(signal.SIGTERM)
    assert job.end() in (137, 143)
    assert job.note("saved-0") is None


def test_a_rank_without_a_handler_is_not_waited_for_when_it_has_started(new_job: NewJob) -> None:
    """It dies of SIGTERM, as it would have without init."""
    job = new_job("note('ready'); time.sleep(600)", constants="init.STARTUP_S = 0.2").start().wait_for("ready-0")
    time.sleep(0.3)
    assert job.send(signal.SIGTERM).end() == 143
    assert job.failure is None


def test_nothing_outlives_the_command(new_job: NewJob) -> None:
    """Orphans in sessions of their own, deaf to SIGTERM, are killed before a successor can meet them."""
    orphan = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
while True:
    open(os.environ["FOLDER"] + "/alive", "w").write(str(time.time())); time.sleep(0.01)
"""
    job = new_job(
        f"subprocess = __import__('subprocess'); subprocess.Popen([sys.executable, '-c', {orphan!r}])\n"
        "while not os.path.exists(folder + '/alive'): time.sleep(0.01)\nsys.exit(5)",
        constants="init.ORPHANS_S = 0.4; init.KILL_S = 0.3",
    )
    assert job.start().end() == 5
    last = job.note("alive")
    time.sleep(0.1)
    assert job.note("alive") == last


def test_ranks_of_a_dead_launcher_may_still_save(new_job: NewJob) -> None:
    """They are asked to, for a short while: torchrun may have been killed, as by SIGUSR1."""
    job = new_job("listen(); run()")
    job.start(PYTHON, job.launcher, "2", job.rank).wait_for("ready-0", "ready-1", "launcher")
    os.kill(int(job.note("launcher") or "0"), signal.SIGKILL)
    assert job.end() == 137
    assert (job.folder / "saved-1").exists()


def test_nothing_outlives_init(new_job: NewJob) -> None:
    job = new_job().start().wait_for("ready-0").send(signal.SIGKILL)
    job.process.wait()
    rank = int(job.note("ready-0") or "0")
    deadline = time.monotonic() + HANG_S
    while Path(f"/proc/{rank}").exists() and "Z" not in Path(f"/proc/{rank}/stat").read_text().split():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    job.process.communicate()


def test_sigusr1_reaches_the_ranks_that_want_it(new_job: NewJob) -> None:
    """No process that it would end gets it: neither a launcher nor a rank without a handler."""
    job = new_job("listen(signal.SIGTERM, *[signal.SIGUSR1] * (rank == '0')); run()")
    job.start(PYTHON, job.launcher, "2", job.rank).wait_for("ready-0", "ready-1").send(signal.SIGUSR1)
    job.wait_for(f"heard{int(signal.SIGUSR1)}-0")
    assert job.send(signal.SIGTERM).end() == 0
    assert [job.note("saved-0"), job.note("saved-1")] == ["[10, 15]", "[15]"]


def test_a_failure_without_a_file_gets_one(new_job: NewJob) -> None:
    """The first rank to die, its cause, its last lines; the step is not known."""
    job = new_job("""
def is_dead(pid):
    try: state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError: return True
    return state in "ZX"
note("pid", os.getpid())
if rank == "0":
    while not os.path.exists(f"{folder}/pid-1") or not is_dead(open(f"{folder}/pid-1").read()): time.sleep(0.05)
    time.sleep(0.7)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
time.sleep(0.8)
raise KeyError("label")
""")
    assert job.start(PYTHON, job.launcher, "2", job.rank).end() == 1
    assert job.failure is not None
    assert job.failure["error"] == "KeyError: 'label'"
    facts = {name: job.failure[name] for name in ("rerail", "cause", "step", "rank", "exit_code")}
    assert facts == {"rerail": 1, "cause": "user_code", "step": None, "rank": 1, "exit_code": 1}
    assert "Connection closed by peer" in job.err


def test_a_signal_that_kills_a_rank_has_a_name(new_job: NewJob) -> None:
    """The launcher's exit code has forgotten it."""
    job = new_job("time.sleep(0.8); os.kill(os.getpid(), signal.SIGSEGV) if rank == '1' else time.sleep(1)")
    assert job.start(PYTHON, job.launcher, "2", job.rank).end() == 11
    assert job.failure is not None
    assert (job.failure["error"], job.failure["cause"]) == ("rank 1 was killed by SIGSEGV", "user_code")
    assert job.failure["exit_code"] == 139


def test_no_rank_starts_on_a_gpu_that_failed_before(new_job: NewJob, tmp_path: Path) -> None:
    """Where it breaks, the report of the rank below a launcher names it; where it comes back, nothing starts."""
    uuids = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(2)]
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\n" + "".join(f"echo {n}, {uuid}, 0, 580.1\n" for n, uuid in enumerate(uuids)))
    driver.chmod(0o755)
    error = "time.sleep(0.8)\nif rank == '1': raise RuntimeError('CUDA error: uncorrectable ECC error encountered')"
    job = new_job(error, PATH=f"{tmp_path}:{os.environ['PATH']}", CUDA_VISIBLE_DEVICES="1,0")
    job.launcher.write_text(LAUNCHER.replace('"RANK": str(rank)', '"RANK": str(rank), "LOCAL_RANK": str(rank)'))
    assert job.start(PYTHON, job.launcher, 2, job.rank).end() == 1
    assert job.failure is not None
    assert (job.failure["cause"], job.failure["gpu"]) == ("hardware", f"{uuids[0]} (driver 580.1)")
    (job.base / "output" / "failure").unlink()
    job.environment[gpus.VARIABLE] = f"1:{uuids[0]}"
    assert job.start("touch", tmp_path / "started").end() == 1
    assert not (tmp_path / "started").exists()
    assert job.failure["error"] == f"algo-1: the GPU that failed in attempt 1 is back: {uuids[0]} (driver 580.1)"


def test_the_first_failure_file_stays(new_job: NewJob) -> None:
    job = new_job(
        "os.makedirs(os.environ['SAGEMAKER_BASE_DIR'] + '/output'); "
        "open(os.environ['SAGEMAKER_BASE_DIR'] + '/output/failure', 'w').write('{}'); sys.exit(1)"
    )
    assert job.start().end() == 1
    assert job.failure == {}


def test_what_the_kernel_has_killed_for_memory_is_counted(tmp_path: Path) -> None:
    """In both generations of control groups, by the path in /proc or, in a container, at the root of the tree."""
    cgroup = tmp_path / "proc/self/cgroup"
    cgroup.parent.mkdir(parents=True)
    cgroup.write_text("0::/docker/abc\n")
    tree = tmp_path / "sys/fs/cgroup"
    assert processes.count_oom_kills(tmp_path) == 0
    (tree / "docker/abc").mkdir(parents=True)
    (tree / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert processes.count_oom_kills(tmp_path) == 2
    (tree / "docker/abc/memory.events").write_text("oom_kill 5\n")
    assert processes.count_oom_kills(tmp_path) == 5
    (tree / "memory.events").unlink()
    cgroup.write_text("4:cpu:/x\n3:memory:/docker/abc\n")
    (tree / "memory").mkdir()
    (tree / "memory/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n")
    assert processes.count_oom_kills(tmp_path) == 7


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_other_pythons_can_run_it(version: str) -> None:
    """An image brings its own Python; the agent beside init needs 3.11, init itself 3.10."""
    python = f"python{version}"
    try:
        subprocess.run([python, "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"no {python} here")
    words = [python, "-m", "rerail_agent.init", "sh", "-c", "exit 7"]
    assert subprocess.run(words, env={**os.environ, "PYTHONPATH": str(AGENT)}, capture_output=True).returncode == 7


def test_init_needs_the_standard_library_alone() -> None:
    """It starts in any image, and at once."""
    script = "import sys, rerail_agent.init; print(*{name.partition('.')[0] for name in sys.modules})"
    words = [PYTHON, "-S", "-c", script]
    done = subprocess.run(words, env={"PYTHONPATH": str(AGENT)}, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {*sys.stdlib_module_names, "__main__", "rerail_agent"}


# ---- Who trains, from tables of processes.


def family(*rows: tuple[int, int, str, dict[str, str] | None, bool]) -> dict[int, LinuxProcess]:
    """pid, parent, command line, environment (None: of no rank), whether it handles SIGTERM."""
    return {
        pid: LinuxProcess(
            pid=pid,
            parent=parent,
            started=pid,
            program=command.split()[0].rsplit("/", 1)[-1],
            command=tuple(command.split()),
            rank_variables=tuple(sorted((marks or {}).items())),
            handles_sigterm=handles_sigterm,
        )
        for pid, parent, command, marks, handles_sigterm in rows
    }


def chosen(table: dict[int, LinuxProcess], **own: str) -> list[int]:
    return [process.pid for process in find_training_processes(table, 1, own=tuple(own.items()))]


R0, R1 = {"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "1"}
LOADER = "python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)"


@pytest.mark.parametrize(
    ("table", "pids"),
    [
        # torchrun: each rank, neither its forked nor its spawned workers
        (
            family(
                (2, 1, "python -m torch.distributed.run train.py", None, True),
                (3, 2, "python train.py", R0, True),
                (4, 2, "python train.py", R1, False),
                (5, 3, "python train.py", R0, True),
                (6, 4, LOADER, R1, True),
            ),
            [3, 4],
        ),
        # mpirun and a torchrun of its own on each host
        (
            family(
                (2, 1, "/usr/bin/mpirun -np 1 torchrun train.py", None, True),
                (3, 2, "python /opt/conda/bin/torchrun train.py", {"OMPI_COMM_WORLD_RANK": "0"}, True),
                (4, 3, "python train.py", {"OMPI_COMM_WORLD_RANK": "0", **R0}, True),
            ),
            [4],
        ),
        # a rank in a shell, and one that has been restarted without a shell
        (
            family(
                (2, 1, "python /opt/conda/bin/torchrun --no-python run.sh", None, True),
                (3, 2, "bash run.sh", R0, False),
                (4, 3, "python train.py", R0, True),
                (5, 2, "python train.py", R1, True),
            ),
            [4, 5],
        ),
        # the stock toolkit: bash, its driver, a shell, the script, which has not yet a handler; and a data loader
        (
            family(
                (2, 1, "bash -m start_with_right_hostname.sh train", None, False),
                (3, 2, "python /opt/conda/bin/train", None, False),
                (4, 3, "/bin/sh -c python train.py --epochs 3", None, False),
                (5, 4, "python train.py --epochs 3", None, False),
                (6, 5, "python train.py --epochs 3", None, True),
            ),
            [5],
        ),
        # a script that listens is asked, whatever it runs beside itself
        (
            family(
                (2, 1, "python train.py", None, True),
                (3, 2, "python -m tensorboard.main", None, True),
                (4, 2, "/usr/bin/wandb-core", None, True),
            ),
            [2],
        ),
        # a script whose name is like a launcher's is none
        (family((2, 1, "python train_deepspeed.py --strategy deepspeed", R0, True)), [2]),
        # a launcher that has not started its ranks, in a shell
        (
            family(
                (2, 1, "sh -c torchrun train.py", None, False),
                (3, 2, "python -u -W once -m torch.distributed.run", None, True),
            ),
            [],
        ),
        # no Python at all: the leaves
        (
            family((2, 1, "sh run.sh", None, False), (3, 2, "/opt/train", None, True), (4, 2, "/opt/log", None, False)),
            [3, 4],
        ),
        # init in init: the inner one is no rank
        (
            family(
                (2, 1, "python -m rerail_agent.init -- python train.py", None, True),
                (3, 2, "python train.py", None, True),
            ),
            [3],
        ),
    ],
)
def test_who_trains(table: dict[int, LinuxProcess], pids: list[int]) -> None:
    """The rank process itself: nothing above it, nothing below it."""
    assert chosen(table) == pids


def test_variables_of_init_itself_mark_no_ranks() -> None:
    """RANK may be the number of the host, set for the whole container."""
    table = family(
        (2, 1, "python -m torch.distributed.run train.py", {"RANK": "0"}, True),
        (3, 2, "python train.py", R0, True),
        (4, 2, "python train.py", R1, True),
    )
    assert chosen(table, RANK="0") == [3, 4]
    assert chosen(family((2, 1, "python train.py", {"RANK": "0"}, True)), RANK="0") == [2]
