"""The image's build file, and the command line that launch.py makes of SageMaker's files."""

import json
import re
from pathlib import Path

import pytest

import launch
import parallel
import train
from job import Cluster, Job

CONTAINER = Path(launch.__file__).parent
DOCKERFILE = (CONTAINER / "Dockerfile").read_text()


def test_every_target_starts_launch_py_without_a_shell() -> None:
    """Only an entry point in exec form is PID 1 and hears SIGTERM; its path is relative to the work folder."""
    entry_points = [json.loads(words) for words in re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)]
    assert entry_points == [["python", "launch.py"]] * 2
    assert (CONTAINER / "launch.py").exists()
    assert "CMD" not in DOCKERFILE


def test_both_targets_take_their_base_image_as_an_argument() -> None:
    """Another region or another release needs no change of the file."""
    arguments = re.findall(r"^ARG (\w+)=\S+$", DOCKERFILE, re.MULTILINE)
    stages = {name: base for base, name in re.findall(r"^FROM (\S+) AS (\w+)$", DOCKERFILE, re.MULTILINE)}
    assert stages == {"code": "scratch", "smddp": "${SMDDP_IMAGE}", "nccl": "${NCCL_IMAGE}"}
    assert arguments == ["SMDDP_IMAGE", "NCCL_IMAGE"]
    assert "2.5.1" in DOCKERFILE.split("SMDDP_IMAGE=")[1].splitlines()[0]


def test_requirements_are_pinned() -> None:
    """An image built next year has the same packages."""
    lines = [line for line in (CONTAINER / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z]+==[0-9.]+", line) for line in lines)


def test_the_readme_names_every_file() -> None:
    """Whoever reads the README finds each module in it, and no other."""
    listed = set(re.findall(r"^(\w+\.py) ", (CONTAINER / "README.md").read_text(), re.MULTILINE))
    assert listed == {path.name for path in CONTAINER.glob("*.py")}


def test_hyperparameters_become_options() -> None:
    """Values of the API are plain, those of the SDK are JSON; what is not the script's is left out."""
    table = {"learning_rate": "1e-3", "model_size": '"tiny"', "sagemaker_program": '"x.py"', "steps": "5"}
    options = launch.command_line({key: launch.decoded(value) for key, value in table.items()})
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
    cluster = Cluster.read(tmp_path)
    assert (cluster.node_rank, cluster.hosts[0]) == (2, "algo-1")
    assert launch.rendezvous(cluster, {}) == {"MASTER_ADDR": "algo-1", "MASTER_PORT": "7777"}
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    assert launch.rendezvous(cluster, given) == given


def test_one_host_meets_itself_on_a_free_port(tmp_path: Path) -> None:
    """Jobs side by side on one machine do not meet each other."""
    assert launch.rendezvous(Cluster.read(tmp_path), {})["MASTER_ADDR"] == "127.0.0.1"


def test_a_host_without_gpus_runs_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment outweighs the hyperparameter, and both the number of GPUs."""
    monkeypatch.delenv("RERAIL_PROCESSES_PER_NODE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert launch.processes_per_node({}) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert launch.processes_per_node({}) == 3
    assert launch.processes_per_node({"RERAIL_PROCESSES_PER_NODE": "2"}) == 2
    monkeypatch.setenv("RERAIL_PROCESSES_PER_NODE", "zero")
    with pytest.raises(ValueError, match="RERAIL_PROCESSES_PER_NODE='zero'"):
        launch.processes_per_node({})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TRAINING_JOB_NAME": "night"}, ("night", 1, None)),
        ({"TRAINING_JOB_NAME": "night-a002", "RERAIL_RUN": "night", "RERAIL_ATTEMPT": "2"}, ("night", 2, 0)),
        ({"RERAIL_RUN": "night", "RERAIL_ATTEMPT": "2", "RERAIL_RESUME_STEP": "60"}, ("night", 2, 60)),
        ({"RERAIL_RUN": "night", "RERAIL_ATTEMPT": "2", "RERAIL_RESUME_STEP": ""}, ("night", 2, 0)),
    ],
)
def test_where_an_attempt_may_resume(environment: dict[str, str], expected: tuple[str, int, int | None]) -> None:
    """A first job takes any checkpoint, a successor the one it is told, or none."""
    job = Job.from_environment(environment)
    assert (job.run, job.attempt, job.resume_at_most) == expected


def test_a_resume_step_that_is_no_number_is_refused() -> None:
    """The variable is named."""
    with pytest.raises(ValueError, match="RERAIL_RESUME_STEP='latest'"):
        Job.from_environment({"RERAIL_RESUME_STEP": "latest"})


def test_smddp_is_chosen_only_where_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """P4d with SMDDP installed; NCCL on every other GPU; gloo without one."""
    assert parallel.choose_backend("cuda", "ml.p4d.24xlarge") == "nccl"
    monkeypatch.setattr(parallel, "smddp_is_installed", lambda: True)
    assert parallel.choose_backend("cuda", "ml.p4d.24xlarge") == "smddp"
    assert parallel.choose_backend("cuda", "ml.p5.48xlarge") == "nccl"
    assert parallel.choose_backend("cpu", "ml.p4d.24xlarge") == "gloo"
