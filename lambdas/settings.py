"""Settings of each function: read from its environment, and written there by the stacks."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Settings:
    """Environment variables as typed fields: field `table` is the variable RERAIL_TABLE."""

    @classmethod
    def names(cls) -> dict[str, str]:
        """Return the environment variable of each field."""
        return {f.name: f"RERAIL_{f.name.upper()}" for f in fields(cls)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the settings. Raises KeyError with the name of a missing variable."""
        return cls(**{name: environment[variable] for name, variable in cls.names().items()})

    def variables(self) -> dict[str, str]:
        """Return the environment from which `from_environment` makes these settings."""
        return {variable: getattr(self, name) for name, variable in self.names().items()}


@dataclass(frozen=True, slots=True)
class SuperviseSettings(Settings):
    """Settings of `supervise`, the function that decides and acts."""

    table: str
    bus: str
    policy_prefix: str  # of the SSM parameters with the policies
    pause_parameter: str  # SSM parameter
    mailbox: str  # bucket
    account: str  # that owns every bucket
    commands: str  # ARN of the queue to which only EventBridge may write
    reports: str = ""  # bucket of the incident reports
    quarantine_folders: str = "{}"  # JSON: the folders in which a role's checkpoints may be moved, by role ARN
    observe_only: str = ""  # why this deployment may only observe; "" if it may act


@dataclass(frozen=True, slots=True)
class SweepSettings(Settings):
    """Settings of `sweep`, which checks all open runs each minute and wakes the supervisor."""

    table: str
    queue_url: str
    policy_prefix: str  # of the SSM parameters with the policies
    pause_parameter: str  # SSM parameter
    mailbox: str  # bucket
    account: str  # that owns every bucket
    observe_only: str = ""  # why this deployment may only observe; "" if it may act


@dataclass(frozen=True, slots=True)
class ReportSettings(Settings):
    """Settings of `report`, which renders the incident reports."""

    table: str
    policy_prefix: str  # of the SSM parameters with the policies
    reports: str  # bucket
    account: str  # that owns every bucket
    region: str  # of the console that the reports link to
    docs_url: str = ""  # where the runbooks are served; "" if they are not
    observe_only: str = ""  # why this deployment may only observe; "" if it may act


@dataclass(frozen=True, slots=True)
class NotifySettings(Settings):
    """Settings of `notify`, which sends notices to people; "" for what is not configured."""

    page_topic: str
    inform_topic: str
    chat_page_topic: str = ""
    chat_inform_topic: str = ""
    bus: str = ""
    targets: str = ""  # names of the notification targets that a rule on the bus forwards to, separated by commas
    reports: str = ""  # bucket
    report_links: str = ""  # "signed" (anyone with the notice can open the link) or "console"
    docs_url: str = ""  # where the runbooks are served
    answer_url: str = ""  # where proposals are answered; "" if only the command line answers them
    answer_key: str = ""  # KMS key that signs links to proposals


@dataclass(frozen=True, slots=True)
class AnswerSettings(Settings):
    """Settings of `answer`, which shows proposals to people with a link and takes their answers."""

    table: str
    bus: str
    answer_key: str  # KMS key that has signed the links


@dataclass(frozen=True, slots=True)
class OrchestrateSettings(Settings):
    """Settings of `orchestrate`, which answers the systems that wait for runs."""

    table: str
    bus: str
    policy_prefix: str  # of the SSM parameters with the policies
    reports: str = ""  # bucket of the incident reports
