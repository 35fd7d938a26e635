"""A Lambda layer of Python packages, copied from this installation."""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePath

from aws_cdk import RemovalPolicy
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from stacks.parts.code import make_readable

# Compiled parts are of this machine, and the libraries do without them; the rest is about the installation.
LEFT_OUT = (".pyc", ".so", ".pyd", ".c", ".pyi", "RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "WHEEL")
REQUIREMENT = re.compile(r"^[A-Za-z0-9._-]+")


class PythonLayer(lambda_.LayerVersion):
    """Pure Python for any runtime and architecture; its content, and so its hash, is that of the pinned packages."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        packages: tuple[str, ...],
        description: str,
        is_needed: Callable[[PurePath], bool] = lambda file: True,
    ) -> None:
        """`is_needed` chooses among the packages' files."""
        with tempfile.TemporaryDirectory() as folder:
            fill(Path(folder) / "python", packages, is_needed)
            make_readable(Path(folder))
            super().__init__(
                scope,
                id,
                code=lambda_.Code.from_asset(folder),
                compatible_runtimes=[lambda_.Runtime.PYTHON_3_13],
                description=description,
                removal_policy=RemovalPolicy.DESTROY,
            )


def fill(folder: Path, packages: tuple[str, ...], is_needed: Callable[[PurePath], bool] = lambda file: True) -> None:
    """Copy the packages, with all that they need, as Lambda wants them; raises PackageNotFoundError."""
    for package in closure(*packages):
        for file in package.files or ():
            if ".." in file.parts or file.name.endswith(LEFT_OUT) or "__pycache__" in file.parts:
                continue
            if not is_needed(file):
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
