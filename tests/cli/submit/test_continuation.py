"""What `submit --continue` keeps of the job before, and where it uploads what is new."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.submit import continuation, stages
from cli.submit.arguments import with_arguments
from cli.submit.continuation import Continuation, PreviousJob, make_change, upload
from cli.submit.packing import pack
from cli.submit.problem import Problem
from cli.submit.stages import Submission, SubmitMode
from rerail.requests.identity import SCRIPT_SETTING

CODE = "s3://bucket/rerail/gpt/code/abc/sourcedir.tar.gz"


def job_of(folder: Path, arguments=(), *, left: int | None = None, **options) -> PreviousJob:
    """The job that `rerail submit` has started from this folder."""
    source, hyperparameters = with_arguments(pack(folder, **options), arguments, {})
    settings = {"sagemaker_program": source.entry, "sagemaker_submit_directory": CODE}
    archive = source.archive()[:left]
    s3 = SimpleNamespace(get_object=lambda **_: {"Body": io.BytesIO(archive)})
    description = {
        "HyperParameters": {**hyperparameters, **{name: json.dumps(value) for name, value in settings.items()}},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/rerail/gpt/output"},
    }
    return PreviousJob(SimpleNamespace(client=lambda name: s3), "gpt", description)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text("print(1)")
    return code


def test_a_command_stays_as_it_was(folder):
    """The folder alone names no command: without it the script would run with no arguments."""
    command = 'cd /opt/ml/checkpoints && python main.py --lr 3 --name "a b"'
    previous = job_of(folder, command=command)
    assert previous.read_program() == {"command": command}
    previous.description["HyperParameters"][SCRIPT_SETTING] = '"old.py"'
    source, change, arguments, named = make_change(previous, Continuation(pack(folder, command=command)))
    assert (source.files["rerail_command.sh"][0].decode(), arguments, named) == (f"{command}\n", [], {})
    assert SCRIPT_SETTING not in change["HyperParameters"]


@pytest.mark.parametrize("arguments", [[], ["--lr", "3"], ["positional", "-x"]])
def test_a_script_has_no_command_and_keeps_its_arguments(folder, arguments):
    previous = job_of(folder, arguments)
    assert previous.read_program() == {"entry": "main.py"}
    assert previous.read_arguments() == (arguments, {}) or previous.read_arguments() == ([], {"lr": "3"})


def test_a_folder_keeps_the_script_that_it_was_submitted_with(folder, monkeypatch):
    """The folder alone names no script, and its usual one would be another."""
    (folder / "fit.py").write_text("print(2)")
    previous, said = job_of(folder, ["--fast"], entry="fit.py"), []
    monkeypatch.setattr(stages, "read_settings", lambda submission: (SimpleNamespace(is_local=True), {}, {}))
    monkeypatch.setattr(continuation, "find_previous_job", lambda where, run: previous)
    monkeypatch.setattr(continuation, "check_change", lambda previous, change: b"")
    submission = Submission(script=folder, continued="gpt", mode=SubmitMode.DRY_RUN)
    change = stages.continue_run(submission, SimpleNamespace(say=said.append))
    assert change["HyperParameters"][SCRIPT_SETTING] == f'"{folder} --entry fit.py"'
    assert said == ["the script's command line: fit.py --fast"]


@pytest.mark.parametrize("left", [0, 60])
def test_a_command_that_cannot_be_read_is_asked_for(folder, left):
    """Its code is gone, or was cut off."""
    with pytest.raises(Problem, match="cannot read the command of its job"):
        job_of(folder, command="python main.py", left=left).read_program()


def test_new_data_lies_apart_from_the_old(folder, tmp_path):
    """A smaller folder must not be mixed with what was uploaded before; the same files go to the same place."""
    data, uploads = tmp_path / "data", []
    data.mkdir()
    account = SimpleNamespace(
        check_bucket=lambda bucket: None,
        upload_code=lambda source, uri: None,
        upload_input=lambda path, files, uri: uploads.append((sorted(files), uri)),
    )
    previous, channels = job_of(folder), []
    for names in (("a", "b", "c"), ("a",), ("a",)):
        for file in data.iterdir():
            file.unlink() if file.name not in names else None
        for name in names:
            if not (data / name).exists():
                (data / name).write_text(name)
        wanted = Continuation(pack(folder), given={"inputs": {"training": str(data)}})
        source, change, _, _ = make_change(previous, wanted)
        channels.append(change["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"])
        upload(account, previous, source, wanted.given["inputs"])
    assert [uri for _, uri in uploads] == channels
    assert channels[0] != channels[1] == channels[2]
    assert all(uri.startswith("s3://bucket/rerail/gpt/input/training-") and uri.endswith("/") for uri in channels)
