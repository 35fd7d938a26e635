"""Add the part of Rerail's core that the agent imports from another folder of the repository."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LICENCE = ("LICENSE", "NOTICE")
# The core is copied into the agent's own package, because a checkout has the whole core as the package `rerail`. The
# path file adds this copy at the end of sys.path, so that Python imports it only if there is no other. The agent adds
# it too, for installations whose path files Python does not read.
FOLDER = "rerail_agent/core"
PATH_FILE = "rerail_agent_core.pth"
CORE = ("__init__.py", "model", "detection", "accounting", "requests")


class CoreHook(BuildHookInterface):  # type: ignore[type-arg]
    """A build hook that includes the core in the wheel and in the source distribution."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Include the core from the repository, or from the source distribution that this builds from."""
        root = Path(self.root)
        repository = root.parent / "lambdas" / "rerail"
        # A source distribution has the core within the package already.
        core = {str(repository / name): f"{FOLDER}/rerail/{name}" for name in CORE}
        build_data["force_include"].update(core if repository.is_dir() else {})
        build_data["force_include"][str(root / PATH_FILE)] = PATH_FILE
        texts = root.parent if repository.is_dir() else root / "rerail_agent"
        build_data["force_include"].update({str(texts / name): f"rerail_agent/{name}" for name in LICENCE})
