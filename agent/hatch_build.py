"""Add the part of Rerail's core that the agent imports from another folder of the repository."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LICENCE = ("LICENSE", "NOTICE")
CORE = ("__init__.py", "model", "detection", "accounting", "requests")


class CoreHook(BuildHookInterface):  # type: ignore[type-arg]
    """A build hook that includes the core in the wheel and in the source distribution."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Include the core from the repository, or from the source distribution that this builds from."""
        root = Path(self.root)
        repository = root.parent / "lambdas" / "rerail"
        core = repository if repository.is_dir() else root / "rerail"
        build_data["force_include"].update({str(core / name): f"rerail/{name}" for name in CORE})
        texts = root.parent if repository.is_dir() else root / "rerail_agent"
        build_data["force_include"].update({str(texts / name): f"rerail_agent/{name}" for name in LICENCE})
