"""What a job has left comes to this machine: packed or not, and nothing leads out of the folder."""

import io
import tarfile
from pathlib import Path

import pytest
from moto import mock_aws

from cli.submit import results
from cli.submit.problem import Problem
from cli.submit.results import AS_DATA, download
from tests.aws.places import make_bucket

JOB = {
    "TrainingJobName": "gpt",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/runs/output/"},
    "ModelArtifacts": {"S3ModelArtifacts": "s3://bucket/runs/output/gpt/output/model.tar.gz"},
}
STORED = "runs/output/gpt/output"


@pytest.fixture
def s3():
    with mock_aws():
        s3 = make_bucket("bucket")
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
    found = download(s3, JOB, tmp_path, print)
    assert names(found, tmp_path) == ["model/code/a.py", "model/model.pt", "output/result.json"]
    assert (tmp_path / "model" / "model.pt").read_text() == "weights"


def test_uncompressed_output_is_downloaded_as_files(s3, tmp_path):
    """CompressionType NONE stores the files themselves."""
    s3.put_object(Bucket="bucket", Key=f"{STORED}/model/deep/model.pt", Body=b"weights")
    s3.put_object(Bucket="bucket", Key=f"{STORED}/model/../../stolen", Body=b"x")
    plain = {**JOB, "ModelArtifacts": {"S3ModelArtifacts": f"s3://bucket/{STORED}/model/"}}
    said: list[str] = []
    found = download(s3, plain, tmp_path / "kept", said.append)
    assert names(found, (tmp_path / "kept").resolve()) == ["model/deep/model.pt"]
    out = f"because it leads out of {tmp_path}/kept/model: '{STORED}/model/../../stolen' of bucket"
    assert said == [f"not downloaded, {out}"]
    assert not (tmp_path / "stolen").exists()
    for number in range(11):
        s3.put_object(Bucket="bucket", Key=f"{STORED}/model/../../{number}", Body=b"x")
    said.clear()
    download(s3, plain, tmp_path / "again", said.append)
    assert (len(said), said[-1]) == (11, "not downloaded for the same reason: 2 files more")


def test_a_job_that_has_left_nothing_gives_nothing(s3, tmp_path):
    """A failed one has no model, and one that wrote no outputs has none."""
    assert download(s3, {**JOB, "ModelArtifacts": {}}, tmp_path, print) == []


LETTERS = "abcdefghijklmnop"
# The real path of the last link has more bytes than a system follows, and its name has few.
LONG = [(f"{'/'.join(['d' * 247] * depth)}/{letter}".lstrip("/"), "d" * 247) for depth, letter in enumerate(LETTERS)]
DEEP = f"{'/'.join(LETTERS)}/{'l' * 254}"


@pytest.mark.threat("T39")
@pytest.mark.parametrize("as_data", [{}, AS_DATA], ids=["an older Python", "this Python"])
@pytest.mark.parametrize(
    "links",
    [
        [("../stolen/out", "stolen")],
        [("deep/down", "."), ("deep/down/out", "../../..")],
        [*LONG, (DEEP, "../" * len(LETTERS)), ("out", f"{DEEP}/../stolen")],
        [("deep/down/link", "../../kept"), ("out", "=deep/down/link")],
    ],
    ids=["by its name", "through another", "too long to follow", "by a second name"],
)
def test_a_link_that_leads_out_of_the_folder_is_refused(s3, tmp_path, monkeypatch, links, as_data):
    """Each alone seems to stay within the folder, and nothing is written through it: a job is not trusted with this
    machine."""
    monkeypatch.setattr(results, "AS_DATA", as_data)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, target in links:
            if target.startswith("d"):
                folder = tarfile.TarInfo(f"{name.rpartition('/')[0]}/{target}".lstrip("/"))
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(folder)
            member = tarfile.TarInfo(name)
            member.type = tarfile.LNKTYPE if target.startswith("=") else tarfile.SYMTYPE
            member.linkname = target.removeprefix("=")
            archive.addfile(member)
        archive.addfile(tarfile.TarInfo("out/file"))
    s3.put_object(Bucket="bucket", Key=f"{STORED}/model.tar.gz", Body=buffer.getvalue())
    (tmp_path / "a" / "stolen").mkdir(parents=True)
    with pytest.raises(Problem, match=r"would write outside|cannot be unpacked"):
        download(s3, JOB, tmp_path / "a", print)
    assert not (tmp_path / "a" / "model" / "out").is_symlink()
    assert not any((tmp_path / "a" / "stolen").iterdir())


@pytest.mark.parametrize(
    "body",
    [b"no archive", packed(**{"model.pt": "weights" * 999})[:60], packed(**{"d": "x", "d/x": "y"})],
    ids=["no archive", "cut off", "a file and folder at once"],
)
def test_a_torn_archive_is_reported(s3, tmp_path, body):
    """One clear sentence, no traceback."""
    s3.put_object(Bucket="bucket", Key=f"{STORED}/model.tar.gz", Body=body)
    with pytest.raises(Problem, match=r"model\.tar\.gz cannot be unpacked"):
        download(s3, JOB, tmp_path, print)
