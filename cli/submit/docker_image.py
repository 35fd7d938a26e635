"""The setting `dockerfile`: an image built from a folder with the docker command, pushed to the account's ECR registry.

The tag has a digest of the folder; jobs name the image by the digest that docker has pushed.
"""

import base64
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from cli.place import client
from cli.submit.images import make_registry
from cli.submit.packing import Source, make_patterns, read_folder
from cli.submit.problem import Problem
from cli.submit.screen import SubmitScreen
from cli.trouble import explain, get_code

REPOSITORY = "rerail-submit"
TAG_LENGTH = 20
STDERR = 2
LONGEST_S = 7200.0  # of one command, whose progress is shown


def name_image(dockerfile: Path, account: str, region: str) -> str:
    """Return the address that the image of this Dockerfile has once it is pushed; raise Problem if there is no file."""
    if not dockerfile.is_file():
        raise Problem(f"dockerfile {dockerfile}: there is no such file", "name a Dockerfile, or its folder")
    return f"{make_registry(account, region)}/{REPOSITORY}:{make_tag(dockerfile)}"


def build_image(dockerfile: Path, image: str, screen: SubmitScreen) -> str:
    """Build and push the image of this address; return the address of what was pushed, by its digest.

    Docker gets what is packed of the folder, and no secret of it. An image that the registry has under the tag is not
    used, since others may have pushed it: docker keeps the layers that have not changed.
    """
    shown = image.rpartition("/")[2]
    docker = shutil.which("docker")
    if not docker:
        raise Problem(
            "dockerfile: there is no docker command on this machine",
            "install Docker, or build the image elsewhere and name it with --image",
        )
    _ensure_repository()
    screen.say(f"building {shown} from {dockerfile}")
    build = [docker, "build", "--platform", "linux/amd64", "-t", image, "-f", dockerfile.name, "-"]
    _run(build, _read_context(dockerfile).archive())
    built = _ask(docker, image, "{{.Id}}").removeprefix("sha256:")
    pushed = f"{image}-{built[:TAG_LENGTH]}"  # tags are immutable, and another machine builds another image
    _run([docker, "tag", image, pushed])
    _log_in(docker, image)
    screen.say(f"pushing {shown}")
    _run([docker, "push", pushed])
    repository = image.rpartition(":")[0]
    digests = _ask(docker, pushed, "{{json .RepoDigests}}")
    for digest in json.loads(digests):
        if digest.rpartition("@")[0] == repository:
            return str(digest)
    raise Problem(f"dockerfile: docker knows no digest of {pushed}: {digests}", "push it yourself; give --image")


def make_tag(dockerfile: Path) -> str:
    """Return the digest of the Dockerfile's folder, without what is never packed and what .dockerignore leaves out."""
    return _read_context(dockerfile).digest[:TAG_LENGTH]


def _read_context(dockerfile: Path) -> Source:
    ignore = dockerfile.parent / ".dockerignore"
    ignored = ignore.read_text(encoding="utf-8").splitlines() if ignore.is_file() else []
    source = read_folder(dockerfile.parent, make_patterns(ignored), entry=dockerfile.name)
    return replace(source, files={**source.files, dockerfile.name: (dockerfile.read_bytes(), False)})


def _ensure_repository() -> None:
    try:
        client("ecr").describe_repositories(repositoryNames=[REPOSITORY])
    except (ClientError, BotoCoreError) as error:
        if get_code(error) != "RepositoryNotFoundException":
            raise Problem(f"dockerfile: cannot look into ECR: {explain(error).what}", explain(error).remedy) from error
        _create_repository()


def _create_repository() -> None:
    try:
        client("ecr").create_repository(
            repositoryName=REPOSITORY, imageTagMutability="IMMUTABLE", imageScanningConfiguration={"scanOnPush": True}
        )
    except (ClientError, BotoCoreError) as error:
        if get_code(error) != "RepositoryAlreadyExistsException":
            raise Problem(
                f"dockerfile: cannot create the repository {REPOSITORY}: {explain(error).what}",
                "ask for ecr:CreateRepository, or name an image with --image",
            ) from error


def _log_in(docker: str, image: str) -> None:
    """Give docker a password of ECR, which is valid for twelve hours."""
    try:
        token = client("ecr").get_authorization_token()["authorizationData"][0]["authorizationToken"]
    except (ClientError, BotoCoreError) as error:
        raise Problem(f"dockerfile: cannot log in to ECR: {explain(error).what}", explain(error).remedy) from error
    user, _, password = base64.b64decode(token).decode().partition(":")
    _run([docker, "login", "--username", user, "--password-stdin", image.partition("/")[0]], password.encode())


def _run(command: Sequence[str], given: bytes = b"", *, output: int = STDERR) -> str:
    """Run docker with its output on stderr or in the result; raise Problem if it fails or does not end in time."""
    try:
        done = subprocess.run(command, input=given, stdout=output, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Problem(f"dockerfile: `docker {command[1]}` was stopped after {LONGEST_S:g} s", "give --image") from error
    if done.returncode:
        raise Problem(f"dockerfile: `docker {command[1]}` ended with exit code {done.returncode}", "see its output")
    return (done.stdout or b"").decode().strip()


def _ask(docker: str, image: str, template: str) -> str:
    """Return what docker knows of an image of this machine."""
    return _run([docker, "image", "inspect", "--format", template, image], output=subprocess.PIPE)
