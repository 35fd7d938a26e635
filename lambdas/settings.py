"""What each function is told by its environment: read here, and set from here by the stacks."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Settings:
    """Environment variables as typed fields: field `table` is the variable RERAIL_TABLE."""

    @classmethod
    def names(cls) -> dict[str, str]:
        """Field name to the name of its environment variable."""
        return {f.name: f"RERAIL_{f.name.upper()}" for f in fields(cls)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Raises KeyError that names the variable that is missing."""
        return cls(**{name: environment[variable] for name, variable in cls.names().items()})

    def variables(self) -> dict[str, str]:
        """The environment that makes `from_environment` return this."""
        return {variable: getattr(self, name) for name, variable in self.names().items()}


@dataclass(frozen=True, slots=True)
class SuperviseSettings(Settings):
    """The one function that thinks and acts."""

    table: str
    bus: str
    policy_prefix: str
    switch: str
    mailbox: str


@dataclass(frozen=True, slots=True)
class SweepSettings(Settings):
    """The minute's round: reads the world, wakes the supervisor."""

    table: str
    queue_url: str
    policy_prefix: str
    switch: str
    mailbox: str


@dataclass(frozen=True, slots=True)
class NotifySettings(Settings):
    """The voice: from the bus to people."""

    page_topic: str
    inform_topic: str
