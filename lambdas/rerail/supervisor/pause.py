"""The account's pause: while Rerail is paused, nothing that stops or creates a job is decided or performed."""

from dataclasses import dataclass, replace

from rerail.model.policy import Mode, Policy
from rerail.ports import Pause, Policies

# The words of the parameter. Every version reads these two, so a command line works with a stack of another version.
ACTIVE, PAUSED = "on", "off"
MEANINGS = {ACTIVE: False, "active": False, PAUSED: True, "paused": True}


@dataclass(frozen=True, slots=True)
class PausablePolicies:
    """The port `Policies`: every policy as it is, and with the mode `pause` while Rerail is paused.

    A policy that only observes stops and creates nothing anyway, and is left as it is."""

    policies: Policies
    pause: Pause

    def get(self, name: str) -> Policy:
        policy = self.policies.get(name)
        if policy.mode is Mode.OBSERVE or not self.pause.is_paused():
            return policy
        return replace(policy, mode=Mode.PAUSE)


def parse_pause(text: str) -> bool | None:
    """Return whether the parameter's text says that Rerail is paused; None where the text is not valid."""
    return MEANINGS.get(text.strip().lower())
