"""Script mode on this machine: the script finds what AWS's toolkit would give it."""

import json
import sys
from pathlib import Path

import pytest

from cli.submit import script_mode
from cli.submit.arguments import ENTRY, with_arguments
from cli.submit.packing import Source
from rerail.requests.identity import COMMAND_SCRIPT
from tests.cli.submit.capture_toolkit import HYPERPARAMETERS, lay_out

TOOLKIT = Path(__file__).parent / "toolkit.json"
SHOWS = """
import json, os, sys
seen = {"argv": sys.argv[1:], "cwd": os.getcwd(), "path": "/opt/ml/checkpoints"}
seen["sm"] = {name: value for name, value in os.environ.items() if name.startswith("SM_")}
open(os.path.join(os.environ["SM_MODEL_DIR"], "told.json"), "w").write(json.dumps(seen))
print("trained")
"""
FAILS = "import sys\nprint('last words')\nsys.exit(7)\n"


class S3:
    """One object."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def get_object(self, *, Bucket: str, Key: str) -> dict:
        import io

        assert (Bucket, Key) == ("bucket", "code/sourcedir.tar.gz")
        return {"Body": io.BytesIO(self.content)}


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A host of a job, as SageMaker lays it out."""
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    return tmp_path


def run(base: Path, monkeypatch, text: str, **hyperparameters: str) -> int:
    source = Source("train.py", {"train.py": (text.encode(), False)})
    monkeypatch.setattr(script_mode.boto3, "client", lambda service: S3(source.archive()))
    lay_out(base, hyperparameters)
    return script_mode.main()


@pytest.mark.slow
def test_the_script_sees_what_awss_own_toolkit_shows_it(base, monkeypatch):
    """Arguments and variables, word for word, as the toolkit 5.1.4 gives them for the same files."""
    known = json.loads(TOOLKIT.read_text())
    assert run(base, monkeypatch, SHOWS, **HYPERPARAMETERS) == 0
    seen = json.loads((base / "model" / "told.json").read_text().replace(str(base), "BASE"))
    assert seen["argv"] == known["argv"]
    ours, theirs = seen["sm"], known["sm"]
    training = [json.loads(each.pop("SM_TRAINING_ENV")) for each in (ours, theirs)]
    for each in (ours, theirs, *training):
        for of_this_machine in ("SM_NUM_CPUS", "num_cpus"):
            each.pop(of_this_machine, None)
    assert ours == theirs
    assert training[0].items() <= training[1].items()


@pytest.mark.slow
def test_the_script_gets_its_arguments_its_folders_and_its_variables(base, monkeypatch):
    """And /opt/ml is the job's own, so that jobs on one machine do not meet there."""
    code = run(base, monkeypatch, SHOWS, epochs="3", name='"007"', b='"x"', checkpoints='"/opt/ml/checkpoints"')
    seen = json.loads((base / "model" / "told.json").read_text())
    assert code == 0
    assert seen["argv"] == ["-b", "x", "--checkpoints", f"{base}/checkpoints", "--epochs", "3", "--name", "007"]
    assert Path(seen["cwd"]).resolve() == (base / "code").resolve()
    assert seen["path"] == f"{base}/checkpoints"
    assert seen["sm"]["SM_CHANNEL_TRAINING"] == f"{base}/input/data/training"
    assert seen["sm"]["SM_OUTPUT_DATA_DIR"] == f"{base}/output/data"
    assert json.loads(seen["sm"]["SM_HOSTS"]) == ["localhost"] and seen["sm"]["SM_CURRENT_HOST"] == "localhost"
    assert json.loads(seen["sm"]["SM_HPS"])["epochs"] == 3 and seen["sm"]["SM_HP_EPOCHS"] == "3"
    assert not (base / "output" / "failure").exists()


@pytest.mark.slow
def test_a_failing_script_writes_its_failure_file_as_the_toolkit_does(base, monkeypatch, capfdbinary):
    """Exit code, error and command; the output is passed on."""
    assert run(base, monkeypatch, FAILS) == 7
    failure = (base / "output" / "failure").read_text()
    assert failure.startswith("ExecuteUserScriptError:\nExitCode 7\n") and "last words" in failure
    assert f'Command "{sys.executable} train.py"' in failure


@pytest.mark.slow
def test_a_failure_file_of_the_script_itself_is_kept(base, monkeypatch):
    text = "import os\nopen(os.path.join(os.environ['SM_OUTPUT_DIR'], 'failure'), 'w').write('mine')\nos.abort()\n"
    assert run(base, monkeypatch, text) == 128 + 6
    assert (base / "output" / "failure").read_text() == "mine"


def test_torchrun_is_started_on_every_host(base):
    """One process a host here, where there is no GPU."""
    seen = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    command = script_mode.make_launcher({"sagemaker_torch_distributed_enabled": True}, seen)
    assert command[1:] == [
        *("-m", "torch.distributed.run", "--nnodes=2", "--node_rank=1", "--nproc_per_node=1"),
        *("--master_addr=h", "--master_port=1"),
    ]
    assert script_mode.make_launcher({}, seen) == [sys.executable]


@pytest.mark.slow
def test_a_shell_command_gets_its_arguments_word_for_word(base, monkeypatch):
    """Also those that AWS's toolkit would sort, split or quote; a failing line's exit code is the job's."""
    text = 'printf "%s|" "$@" > "$SM_MODEL_DIR/told"; exit 3\n'
    words = ["--b=x y", "*", "--a", "$HOME"]
    source, hyperparameters = with_arguments(
        Source(COMMAND_SCRIPT, {COMMAND_SCRIPT: (text.encode(), True)}), words, {"epochs": "3"}
    )
    assert source.entry == ENTRY
    monkeypatch.setattr(script_mode.boto3, "client", lambda service: S3(source.archive()))
    lay_out(base, hyperparameters)
    config = base / "input" / "config" / "hyperparameters.json"
    settings = {**json.loads(config.read_text()), "sagemaker_program": json.dumps(ENTRY)}
    config.write_text(json.dumps(settings))
    assert script_mode.main() == 3
    assert (base / "model" / "told").read_text() == "".join(f"{word}|" for word in [*words, "--epochs", "3"])
