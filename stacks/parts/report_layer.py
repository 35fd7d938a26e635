"""The Lambda layer with the libraries of the report function, copied from this installation."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from aws_cdk import RemovalPolicy
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from stacks.parts.code import make_readable

DRAWS_WITH = ("jinja2", "markdown-it-py", "pygal")
# Compiled parts are of this machine, and the libraries do without them; the rest is about the installation.
LEFT_OUT = (".pyc", ".so", ".pyd", ".c", ".pyi", "RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "WHEEL")
REQUIREMENT = re.compile(r"^[A-Za-z0-9._-]+")


class ReportLayer(lambda_.LayerVersion):
    """Pure Python for any runtime and architecture; its content, and so its hash, is that of the pinned packages."""

    def __init__(self, scope: Construct, id: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            fill(Path(folder) / "python")
            make_readable(Path(folder))
            super().__init__(
                scope,
                id,
                code=lambda_.Code.from_asset(folder),
                compatible_runtimes=[lambda_.Runtime.PYTHON_3_13],
                description="Rerail: what incident reports are drawn with",
                removal_policy=RemovalPolicy.DESTROY,
            )


def fill(folder: Path) -> None:
    """Copy the libraries, with all that they need, as Lambda wants them; raises PackageNotFoundError."""
    for package in closure(*DRAWS_WITH):
        for file in package.files or ():
            if ".." in file.parts or file.name.endswith(LEFT_OUT) or "__pycache__" in file.parts:
                continue
            place = folder / file
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(str(package.locate_file(file))), place)


def closure(*names: str) -> Iterator[Distribution]:
    """The distributions with all that they require here; extras and what another Python would need are left out."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            if name in names:
                raise
            continue  # its marker says that this Python has it already
        yield found
        for requirement in found.requires or ():
            if "extra ==" not in requirement and (match := REQUIREMENT.match(requirement)):
                waiting.append(match[0])
