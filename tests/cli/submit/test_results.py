"""What a job has left comes to this machine: packed or not, and nothing leads out of the folder."""

import io
import tarfile
from pathlib import Path

import pytest
from moto import mock_aws

from cli.submit.problem import Problem
from cli.submit.results import download
from rerail.aws.clients import client
from tests.aws.places import REGION

JOB = {
    "TrainingJobName": "gpt",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/runs/output/"},
    "ModelArtifacts": {"S3ModelArtifacts": "s3://bucket/runs/output/gpt/output/model.tar.gz"},
}
STORED = "runs/output/gpt/output"


@pytest.fixture
def s3():
    with mock_aws():
        s3 = client("s3")
        s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION})
        yield s3


def packed(**files: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def names(paths: list[Path], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in paths]


def test_the_model_and_the_outputs_are_unpacked(s3, tmp_path):
    s3.put_object(
        Bucket="bucket", Key=f"{STORED}/model.tar.gz", Body=packed(**{"code/a.py": "x", "model.pt": "weights"})
    )
    s3.put_object(Bucket="bucket", Key=f"{STORED}/output.tar.gz", Body=packed(**{"result.json": "{}"}))
    found = download(s3, JOB, tmp_path)
    assert names(found, tmp_path) == ["model/code/a.py", "model/model.pt", "output/result.json"]
    assert (tmp_path / "model" / "model.pt").read_text() == "weights"


def test_uncompressed_output_is_downloaded_as_files(s3, tmp_path):
    """CompressionType NONE stores the files themselves."""
    s3.put_object(Bucket="bucket", Key=f"{STORED}/model/deep/model.pt", Body=b"weights")
    plain = {**JOB, "ModelArtifacts": {"S3ModelArtifacts": f"s3://bucket/{STORED}/model/"}}
    assert names(download(s3, plain, tmp_path), tmp_path.resolve()) == ["model/deep/model.pt"]


def test_a_job_that_has_left_nothing_gives_nothing(s3, tmp_path):
    """A failed one has no model, and one that wrote no outputs has none."""
    assert download(s3, {**JOB, "ModelArtifacts": {}}, tmp_path) == []


def test_an_archive_that_leads_out_of_the_folder_is_refused(s3, tmp_path):
    """What a job has written is not trusted with this machine."""
    s3.put_object(Bucket="bucket", Key=f"{STORED}/model.tar.gz", Body=packed(**{"../../escaped": "x"}))
    with pytest.raises(Problem, match="would write outside"):
        download(s3, JOB, tmp_path / "a" / "b")
    assert not (tmp_path / "escaped").exists()


def test_a_link_that_leads_through_another_is_refused(s3, tmp_path):
    """Each alone stays within the folder; the second one, followed through the first, does not."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, target in (("deep/down", "."), ("deep/down/out", "../../..")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    s3.put_object(Bucket="bucket", Key=f"{STORED}/model.tar.gz", Body=buffer.getvalue())
    with pytest.raises(Problem, match=r"would write outside|cannot be unpacked"):
        download(s3, JOB, tmp_path / "a")
    assert not (tmp_path / "a" / "model" / "deep" / "out").is_symlink()


@pytest.mark.parametrize(
    "body",
    [b"no archive", packed(**{"model.pt": "weights" * 999})[:60], packed(**{"d": "x", "d/x": "y"})],
    ids=["no archive", "cut off", "a file and folder at once"],
)
def test_a_torn_archive_is_reported(s3, tmp_path, body):
    """One clear sentence, no traceback."""
    s3.put_object(Bucket="bucket", Key=f"{STORED}/model.tar.gz", Body=body)
    with pytest.raises(Problem, match=r"model\.tar\.gz cannot be unpacked"):
        download(s3, JOB, tmp_path)
