"""Which local folder and command stand for a training image."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]


class UnknownImage(Exception):
    """No folder is configured for this image; the message lists the known images."""


@dataclass(frozen=True)
class Image:
    """A folder that is built into an image."""

    workdir: Path
    # Read from the folder's Dockerfile if empty.
    entrypoint: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, algorithm: Mapping[str, Any]) -> list[str]:
        """Return the argv that SageMaker would run: the request's entrypoint, else the image's with `train`."""
        entrypoint = list(algorithm.get("ContainerEntrypoint", []))
        arguments = list(algorithm.get("ContainerArguments", []))
        if not entrypoint:
            # SageMaker runs `docker run <image> train`; ContainerArguments take the place of `train`.
            entrypoint, arguments = self._own_entrypoint(), arguments or ["train"]
        return [_local_program(entrypoint[0]), *entrypoint[1:], *arguments]

    def _own_entrypoint(self) -> list[str]:
        return list(self.entrypoint) or read_entrypoint(self.workdir)


def default_images() -> dict[str, Image]:
    container = REPOSITORY_ROOT / "container"
    search = ":".join(str(REPOSITORY_ROOT / folder) for folder in ("container", "agent", "lambdas"))
    return {"rerail-training": Image(container, environment={"PYTHONPATH": search})}


def find_image(images: Mapping[str, Image], uri: str) -> Image:
    repository = repository_of(uri)
    if repository not in images:
        raise UnknownImage(f"no folder stands for image repository '{repository}'; known: {', '.join(sorted(images))}")
    return images[repository]


def repository_of(uri: str) -> str:
    """`<account>.dkr.ecr.<region>.amazonaws.com/team/rerail-training:tag@sha256:...` -> `rerail-training`."""
    return uri.split("@")[0].rsplit("/", 1)[-1].split(":")[0]


def read_entrypoint(folder: Path) -> list[str]:
    """Return the last exec-form ENTRYPOINT of the Dockerfile, with paths below its WORKDIR made paths in the folder."""
    dockerfile = folder / "Dockerfile"
    if not dockerfile.is_file():
        raise UnknownImage(f"{dockerfile} does not exist: add one, or give the image an entrypoint")
    entrypoint: list[str] = []
    workdir = None
    for instruction, rest in _instructions(dockerfile.read_text()):
        if instruction == "WORKDIR":
            workdir = rest.rstrip("/")
        if instruction == "ENTRYPOINT":
            entrypoint = _exec_form(rest, dockerfile)
    if not entrypoint:
        raise UnknownImage(f"{dockerfile} has no ENTRYPOINT: add one in exec form, so that it receives SIGTERM")
    return [_in_folder(part, workdir, folder) for part in entrypoint]


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(lines))
    found = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [(word.upper(), rest.strip()) for word, _, rest in found]


def _exec_form(text: str, dockerfile: Path) -> list[str]:
    try:
        parts = json.loads(text)
    except ValueError:
        raise UnknownImage(f'ENTRYPOINT in {dockerfile} must be in exec form, ["program"]: {text}') from None
    return [str(part) for part in parts]


def _in_folder(part: str, workdir: str | None, folder: Path) -> str:
    return f"{folder}{part.removeprefix(workdir)}" if workdir and part.startswith(f"{workdir}/") else part


def _local_program(program: str) -> str:
    return sys.executable if program in ("python", "python3") else program
