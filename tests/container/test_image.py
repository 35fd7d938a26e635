"""The image's build file, and the command line that launch.py makes of SageMaker's files."""

import json
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

import launch
import mpi
import parallel
import train
from job import TrainingCluster, TrainingJob
from tests.house.sources import imports, modules, top

CONTAINER = Path(launch.__file__).parent
ROOT = CONTAINER.parent
DOCKERFILE = (CONTAINER / "Dockerfile").read_text()
REQUIRED = dict(
    line.split("==") for line in (CONTAINER / "requirements.txt").read_text().splitlines() if not line.startswith("#")
)
# In the base image, or part of another requirement, or the build's.
GIVEN = {"torch", "smdistributed", "botocore", "s3torchconnectorclient", "setuptools"}
# A script that uses one of these has it.
FRAMEWORKS = {"transformers", "lightning", "pytorch_lightning"}


def test_every_target_starts_launch_py_without_a_shell() -> None:
    """Only an entry point in exec form is PID 1 and gets SIGTERM; its path is relative to the work folder."""
    entry_points = [json.loads(words) for words in re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)]
    assert entry_points == [["python", "launch.py"]] * 2
    assert (CONTAINER / "launch.py").exists()
    assert "CMD" not in DOCKERFILE


def test_both_targets_take_their_base_image_as_an_argument() -> None:
    arguments = re.findall(r"^ARG (\w+)=\S+$", DOCKERFILE, re.MULTILINE)
    stages = {name: base for base, name in re.findall(r"^FROM (\S+) AS (\w+)$", DOCKERFILE, re.MULTILINE)}
    assert stages == {"code": "scratch", "smddp": "${SMDDP_IMAGE}", "nccl": "${NCCL_IMAGE}"}
    assert arguments == ["SMDDP_IMAGE", "NCCL_IMAGE"]
    assert "2.5.1" in DOCKERFILE.split("SMDDP_IMAGE=")[1].splitlines()[0]


def test_requirements_are_pinned() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+", name) for name in REQUIRED)
    assert all(re.fullmatch(r"[0-9.]+", version) for version in REQUIRED.values())


def copied() -> dict[str, str]:
    """Source to target of every file that the Dockerfile copies from the repository, paths from its root."""
    found = {}
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            paths = [path for each in ROOT.glob(source) for path in ([each] if each.is_file() else each.rglob("*.py"))]
            assert paths, f"COPY {source}: there is no such file"
            base = ROOT / source if (ROOT / source).is_dir() else (ROOT / source).parent
            found |= {str(path.relative_to(ROOT)): f"{target.rstrip('/')}/{path.relative_to(base)}" for path in paths}
    return found


def test_the_image_has_all_that_its_code_imports() -> None:
    """The scripts, the agent, and Rerail's core without what calls AWS; everything else is a requirement."""
    there = copied()
    targets = set(there.values())
    assert {
        "/opt/rerail/train.py",
        "/opt/rerail/rerail_agent/init.py",
        "/opt/rerail/rerail/model/mailbox.py",
    } <= targets
    assert not [path for path in there if "rerail/aws" in path]
    for path in modules("container"):
        for name in imports(path):
            if top(name) not in {*sys.stdlib_module_names, *REQUIRED, *GIVEN, *FRAMEWORKS}:
                places = [f"/opt/rerail/{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py")]
                parent = f"/opt/rerail/{'/'.join(name.split('.')[:-1])}"
                places += [f"{parent}.py", f"{parent}/__init__.py"]  # a name in a module
                assert targets & set(places), f"{path.name} imports {name}"


def test_the_build_context_has_what_is_copied_and_little_else() -> None:
    """The context is the whole repository, and an .dockerignore with the Dockerfile's name keeps most of it out."""
    lines = (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]

    def is_sent(path: str) -> bool:
        sent = True
        for rule in rules:
            pattern = rule.removeprefix("!").removeprefix("**/")
            parts = Path(path).parts
            whole = [str(Path(*parts[: n + 1])) for n in range(len(parts))]
            if any(fnmatch(each, pattern) for each in (parts if "**/" in rule else whole)):
                sent = rule.startswith("!")
        return sent

    assert all(is_sent(path) for path in copied() if not path.endswith("setup.py"))
    kept_out = (".venv/x.py", ".git/config", "lambdas/rerail/aws/s3.py", "container/__pycache__/x.pyc", "tests/x.py")
    assert not [path for path in kept_out if is_sent(path)]


def test_the_readme_names_every_file() -> None:
    listed = set(re.findall(r"^(\w+\.py) ", (CONTAINER / "README.md").read_text(), re.MULTILINE))
    assert listed == {path.name for path in CONTAINER.glob("*.py")}


def test_hyperparameters_become_options() -> None:
    """Values of the API are plain, those of the SDK are JSON; what is not the script's is left out."""
    table = {"learning_rate": "1e-3", "model_size": '"tiny"', "sagemaker_program": '"x.py"', "steps": "5"}
    options = launch.make_arguments({key: launch.decode(value) for key, value in table.items()})
    assert options == ["--learning_rate=1e-3", "--model_size=tiny", "--steps=5"]
    assert train.read_options(options).model_size == "tiny"


def test_a_mistyped_hyperparameter_is_an_error_with_a_name() -> None:
    """It raises, so that it ends up in the failure file instead of in an exit code 2."""
    with pytest.raises(ValueError, match="hyperparameters: unrecognized arguments: --lerning_rate=1"):
        train.read_options(["--lerning_rate=1"])
    with pytest.raises(ValueError, match="keep must be at least 1"):
        train.read_options(["--keep=0"])


def test_hosts_are_ranked_in_natural_order(tmp_path: Path) -> None:
    """algo-10 comes after algo-2, and algo-1 is the master on every host."""
    config = tmp_path / "input" / "config"
    config.mkdir(parents=True)
    table = {"hosts": ["algo-10", "algo-2", "algo-1"], "current_host": "algo-10"}
    (config / "resourceconfig.json").write_text(json.dumps(table))
    cluster = TrainingCluster.read(tmp_path)
    assert (cluster.node_rank, cluster.hosts[0]) == (2, "algo-1")
    assert launch.choose_rendezvous(cluster, {}) == {"MASTER_ADDR": "algo-1", "MASTER_PORT": "7777"}
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    assert launch.choose_rendezvous(cluster, given) == given


def test_one_host_meets_itself_on_a_free_port(tmp_path: Path) -> None:
    assert launch.choose_rendezvous(TrainingCluster.read(tmp_path), {})["MASTER_ADDR"] == "127.0.0.1"


def test_a_host_without_gpus_runs_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment outweighs the hyperparameter, and both the number of GPUs."""
    monkeypatch.delenv("RERAIL_PROCESSES_PER_NODE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert launch.count_processes({}) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert launch.count_processes({}) == 3
    assert launch.count_processes({"RERAIL_PROCESSES_PER_NODE": "2"}) == 2
    monkeypatch.setenv("RERAIL_PROCESSES_PER_NODE", "8, ml.m5.xlarge=4")
    assert (launch.count_processes({}, "ml.m5.large"), launch.count_processes({}, "ml.m5.xlarge")) == (8, 4)
    monkeypatch.setenv("RERAIL_PROCESSES_PER_NODE", "zero")
    with pytest.raises(ValueError, match="RERAIL_PROCESSES_PER_NODE='zero'"):
        launch.count_processes({})


P4D = "ml.p4d.24xlarge"


def test_one_mpirun_starts_the_ranks_of_all_hosts(tmp_path: Path) -> None:
    """The first host runs it, the others accept it; a rank only gets the path of its host's environment."""
    first = TrainingCluster(("algo-1", "algo-2"), "algo-1", P4D, "eth0")
    place = tmp_path / "environment.json"
    command = mpi.make_command(first, 8, ["python", "train.py", "--steps=5"], place=place, smddp=True)
    text = " ".join(command)
    assert command[2:5] == ["lead", "algo-2", "mpirun"]
    assert "--host algo-1:8,algo-2:8 -np 16 --allow-run-as-root" in text
    assert "-mca btl_tcp_if_include eth0 -mca oob_tcp_if_include eth0" in text
    assert "-x SMDATAPARALLEL_USE_HOMOGENEOUS=1 -x SMDATAPARALLEL_SERVER_ADDR=algo-1" in text
    assert command[command.index("smddprun") + 2 :][1:] == ["rank", str(place), "python", "train.py", "--steps=5"]
    assert "tag-output" not in text
    second = TrainingCluster(first.hosts, "algo-2", P4D, "eth0")
    assert mpi.make_command(second, 8, ["python"], place=place, smddp=True)[2:] == ["follow"]


@pytest.mark.parametrize(("instance", "smddp"), [(P4D, True), (P4D, False), ("ml.p5.48xlarge", True)])
def test_smddprun_is_for_p4d_alone(tmp_path: Path, instance: str, smddp: bool) -> None:
    """And for images that have it; one host needs neither ssh nor a network."""
    command = mpi.make_command(
        TrainingCluster(("algo-1",), "algo-1", instance, "eth0"), 8, ["x"], place=tmp_path, smddp=smddp
    )
    assert ("smddprun" in command, "SMDATAPARALLEL_USE_SINGLENODE=1" in command) == (instance == P4D and smddp,) * 2
    assert command[2:4] == ["lead", ""]
    assert "localhost:8" in command
    assert "eth0" not in command


def test_a_host_leaves_its_environment_to_its_ranks_alone(tmp_path: Path) -> None:
    (tmp_path / "rerail-environment.json").write_text("of an attempt before")
    place = mpi.write_environment(tmp_path, {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"})
    assert json.loads(place.read_text()) == {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}
    assert place.stat().st_mode & 0o777 == 0o600


def test_torchrun_keeps_its_hands_off_the_output(tmp_path: Path) -> None:
    """CloudWatch reads the metric line from stdout."""
    cluster = TrainingCluster(("algo-1", "algo-2"), "algo-2", "", "")
    meeting = {"MASTER_ADDR": "algo-1", "MASTER_PORT": "7777"}
    command = launch.make_torchrun_command(cluster, 8, ["--steps=5"], meeting)
    words = ["--nnodes=2", "--node-rank=1", "--nproc-per-node=8", "--master-addr=algo-1", "--master-port=7777"]
    assert [word for word in command if word in words] == words
    assert not [word for word in command if word.startswith(("--redirects", "--tee", "--log"))]
    assert command[-2:] == [str(launch.TRAIN), "--steps=5"]


def test_another_launcher_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment or as a hyperparameter, which train.py does not see."""
    monkeypatch.delenv("RERAIL_LAUNCHER", raising=False)
    assert launch.choose_launcher({}) == "torchrun"
    assert launch.choose_launcher({"RERAIL_LAUNCHER": "mpirun"}) == "mpirun"
    assert launch.make_arguments({"RERAIL_LAUNCHER": "mpirun"}) == []
    monkeypatch.setenv("RERAIL_LAUNCHER", "srun")
    with pytest.raises(ValueError, match="RERAIL_LAUNCHER='srun'"):
        launch.choose_launcher({})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TRAINING_JOB_NAME": "night"}, ("night", 1, None)),
        ({"TRAINING_JOB_NAME": "night-a002", "RERAIL_RUN": "night", "RERAIL_ATTEMPT": "2"}, ("night", 2, None)),
        ({"RERAIL_RUN": "night", "RERAIL_ATTEMPT": "2", "RERAIL_RESUME_STEP": "60"}, ("night", 2, 60)),
        ({"RERAIL_RUN": "night", "RERAIL_ATTEMPT": "2", "RERAIL_RESUME_STEP": "0"}, ("night", 2, 0)),
    ],
)
def test_where_an_attempt_may_resume(environment: dict[str, str], expected: tuple[str, int, int | None]) -> None:
    """A successor takes the named checkpoint, or none; a first job any, as one whose folder Rerail cannot read."""
    job = TrainingJob.from_environment(environment)
    assert (job.run, job.attempt, job.resume_at_most) == expected


def test_a_resume_step_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="RERAIL_RESUME_STEP='latest'"):
        TrainingJob.from_environment({"RERAIL_RESUME_STEP": "latest"})


def test_smddp_is_chosen_only_where_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parallel.choose_backend("cuda", "ml.p4d.24xlarge") == "nccl"
    monkeypatch.setattr(parallel, "is_smddp_installed", lambda: True)
    assert parallel.choose_backend("cuda", "ml.p4d.24xlarge") == "smddp"
    assert parallel.choose_backend("cuda", "ml.p5.48xlarge") == "nccl"
    assert parallel.choose_backend("cpu", "ml.p4d.24xlarge") == "gloo"
