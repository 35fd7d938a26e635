"""From an image's name to the local command."""

import sys

import pytest

from local.sagemaker.images import Image, UnknownImage, default_images, find_image, read_entrypoint, repository_of


def folder_with(tmp_path, dockerfile):
    (tmp_path / "Dockerfile").write_text(dockerfile)
    return tmp_path


@pytest.mark.parametrize(
    "uri",
    [
        "123456789012.dkr.ecr.eu-central-1.amazonaws.com/rerail-training:1.0",
        "123456789012.dkr.ecr.eu-central-1.amazonaws.com/team/rerail-training@sha256:ab",
        "rerail-training",
    ],
)
def test_repository_of(uri):
    """The repository's last part names an image, whatever registry, tag or digest surround it."""
    assert repository_of(uri) == "rerail-training"


def test_default_image():
    """Our own training image stands for the container folder."""
    image = find_image(default_images(), "registry/rerail-training:latest")
    assert image.workdir.name == "container"


def test_unknown_image():
    """The message names what is known."""
    with pytest.raises(UnknownImage, match="'other'; known: rerail-training"):
        find_image(default_images(), "other:1")


def test_entrypoint_of_dockerfile(tmp_path):
    """The last ENTRYPOINT counts, over several lines too; python is this interpreter, WORKDIR is this folder."""
    dockerfile = 'ENTRYPOINT ["old"]\nWORKDIR /opt/app\n# note\nENTRYPOINT ["python", \\\n  "/opt/app/train.py"]\n'
    image = Image(folder_with(tmp_path, dockerfile))
    assert image.command({}) == [sys.executable, f"{tmp_path}/train.py", "train"]
    assert image.command({"ContainerArguments": ["--x"]})[-1] == "--x"
    assert image.command({"ContainerEntrypoint": ["python3", "-c"], "ContainerArguments": ["1"]}) == [
        sys.executable,
        "-c",
        "1",
    ]


@pytest.mark.parametrize(("text", "message"), [("FROM x", "no ENTRYPOINT"), ("ENTRYPOINT python x", "exec form")])
def test_unusable_dockerfile(tmp_path, text, message):
    """Shell form is refused: a shell as PID 1 would swallow SIGTERM."""
    with pytest.raises(UnknownImage, match=message):
        read_entrypoint(folder_with(tmp_path, text))
