"""Put the package `rerail_cli` at the top of the wheel; a checkout imports it from cli/entry, without a copy."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ENTRY = "cli/entry/rerail_cli"


class EntryHook(BuildHookInterface):  # type: ignore[type-arg]
    """A build hook that includes the entry package; everything else of the wheel lies below it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Include it in wheels to install, and not in an editable one."""
        if version != "editable":
            build_data["force_include"].update({f"{ENTRY}/{name}": name for name in ("__init__.py", "functions")})
