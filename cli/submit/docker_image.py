"""`--dockerfile PATH`: an image built from a folder with the docker command, pushed to the account's ECR registry.

The tag is a digest of the folder, so an image that is there already is neither built nor pushed again.
"""

import base64
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from cli.place import client
from cli.submit.images import make_registry
from cli.submit.packing import make_patterns, read_folder
from cli.submit.problem import Problem
from cli.submit.screen import SubmitScreen
from cli.trouble import explain, get_code

REPOSITORY = "rerail-submit"
TAG_LENGTH = 20


def name_image(dockerfile: Path, account: str, region: str) -> str:
    """Return the address that the image of this Dockerfile has once it is pushed; raise Problem if there is no file."""
    if not dockerfile.is_file():
        raise Problem(f"--dockerfile {dockerfile}: there is no such file", "name a Dockerfile, or its folder")
    return f"{make_registry(account, region)}/{REPOSITORY}:{make_tag(dockerfile)}"


def build_image(dockerfile: Path, image: str, screen: SubmitScreen) -> None:
    """Build and push the image of this address, unless it is there."""
    shown = image.rpartition("/")[2]
    if _is_pushed(image.rpartition(":")[2]):
        screen.say(f"the image {shown} was built before")
        return
    docker = shutil.which("docker")
    if not docker:
        raise Problem(
            "--dockerfile: there is no docker command on this machine",
            "install Docker, or build the image elsewhere and name it with --image",
        )
    screen.say(f"building {shown} from {dockerfile}")
    _run([docker, "build", "--platform", "linux/amd64", "-t", image, "-f", str(dockerfile), str(dockerfile.parent)])
    _log_in(docker, image)
    screen.say(f"pushing {shown}")
    _run([docker, "push", image])


def make_tag(dockerfile: Path) -> str:
    """Return the digest of the Dockerfile's folder, without what is never packed and what .dockerignore leaves out."""
    ignore = dockerfile.parent / ".dockerignore"
    ignored = ignore.read_text(encoding="utf-8").splitlines() if ignore.is_file() else []
    source = read_folder(dockerfile.parent, make_patterns(ignored), entry=dockerfile.name)
    return source.digest[:TAG_LENGTH]


def _is_pushed(tag: str) -> bool:
    try:
        client("ecr").describe_images(repositoryName=REPOSITORY, imageIds=[{"imageTag": tag}])
    except (ClientError, BotoCoreError) as error:
        if get_code(error) == "RepositoryNotFoundException":
            _create_repository()
            return False
        if get_code(error) == "ImageNotFoundException":
            return False
        raise Problem(f"--dockerfile: cannot look into ECR: {explain(error).what}", explain(error).remedy) from error
    return True


def _create_repository() -> None:
    try:
        client("ecr").create_repository(
            repositoryName=REPOSITORY,
            imageTagMutability="IMMUTABLE",
            imageScanningConfiguration={"scanOnPush": True},
        )
    except (ClientError, BotoCoreError) as error:
        if get_code(error) != "RepositoryAlreadyExistsException":
            raise Problem(
                f"--dockerfile: cannot create the repository {REPOSITORY}: {explain(error).what}",
                "ask for ecr:CreateRepository, or name an image with --image",
            ) from error


def _log_in(docker: str, image: str) -> None:
    """Give docker a password of ECR, which is valid for twelve hours."""
    try:
        token = client("ecr").get_authorization_token()["authorizationData"][0]["authorizationToken"]
    except (ClientError, BotoCoreError) as error:
        raise Problem(f"--dockerfile: cannot log in to ECR: {explain(error).what}", explain(error).remedy) from error
    user, _, password = base64.b64decode(token).decode().partition(":")
    _run([docker, "login", "--username", user, "--password-stdin", image.partition("/")[0]], password)


def _run(command: Sequence[str], given: str = "") -> None:
    """Run docker with its output on stderr; raise Problem if it fails."""
    done = subprocess.run(command, input=given, text=True, stdout=2, check=False)
    if done.returncode:
        raise Problem(
            f"--dockerfile: `docker {command[1]}` ended with exit code {done.returncode}", "see its output above"
        )
