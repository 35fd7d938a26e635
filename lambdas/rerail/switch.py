"""The account's kill switch: while it is off, nothing that stops or creates a job is decided or performed."""

from dataclasses import dataclass, replace

from rerail.policy import Mode, Policy
from rerail.ports import Policies, Switch

ON, OFF = "on", "off"


@dataclass(frozen=True, slots=True)
class SwitchedPolicies:
    """The port `Policies`: every policy as it is while the switch is on, and paused while it is off.

    A policy that only observes stops and creates nothing anyway, and is left as it is."""

    policies: Policies
    switch: Switch

    def get(self, name: str) -> Policy:
        policy = self.policies.get(name)
        return policy if policy.mode is Mode.OBSERVE or self.switch.is_on() else replace(policy, mode=Mode.PAUSE)


def read_switch(text: str) -> bool | None:
    """Whether the switch is on, from its parameter's text; None where that is neither "on" nor "off"."""
    return {ON: True, OFF: False}.get(text.strip().lower())
