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
    pause_parameter: str
    mailbox: str


@dataclass(frozen=True, slots=True)
class SweepSettings(Settings):
    """The minute's round: reads the world, wakes the supervisor."""

    table: str
    queue_url: str
    policy_prefix: str
    pause_parameter: str
    mailbox: str


@dataclass(frozen=True, slots=True)
class ReportSettings(Settings):
    """The incident reports: `reports` is their bucket, `region` that of the console that they link to, `docs_url` where
    the runbooks are served, "" for nowhere."""

    table: str
    policy_prefix: str
    reports: str
    region: str
    docs_url: str = ""


@dataclass(frozen=True, slots=True)
class NotifySettings(Settings):
    """The voice: from the bus to people. What is not there is "": topics for chat, the bucket of the reports, where the
    docs are served; `pager` and `webhook` are "on" where something on the bus waits for what is rendered for them,
    `report_links` is "signed" for links that anyone who has the notice can open, or "console"."""

    page_topic: str
    inform_topic: str
    chat_page_topic: str = ""
    chat_inform_topic: str = ""
    bus: str = ""
    pager: str = ""
    webhook: str = ""
    reports: str = ""
    report_links: str = ""
    docs_url: str = ""
