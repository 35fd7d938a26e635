"""The account's pause: while Rerail is paused, it neither decides nor performs stops and creations of jobs.

A deployment without roles and buckets only observes, whatever its policies are.
"""

from dataclasses import dataclass, replace

from rerail.model.policy import Mode, Policy
from rerail.ports import Pause, Policies

# Values of the SSM parameter. Every version reads `on` and `off`, so the CLI works with a stack of another version.
ACTIVE, PAUSED = "on", "off"
MEANINGS = {ACTIVE: False, "active": False, PAUSED: True, "paused": True}


@dataclass(frozen=True, slots=True)
class PausablePolicies:
    """The `PausedPolicies` port on policies and the account's pause.

    A policy that only observes is unchanged by a pause: it stops and creates nothing.
    """

    policies: Policies
    pause: Pause
    observe_only: bool = False  # the deployment may only observe

    def get(self, name: str) -> Policy:
        return self.policies.get(name)

    def with_pause(self, policy: Policy) -> Policy:
        if self.observe_only:
            return replace(policy, mode=Mode.OBSERVE)
        if policy.mode is Mode.OBSERVE or not self.pause.is_paused():
            return policy
        return replace(policy, mode=Mode.PAUSE)


def parse_pause(text: str) -> bool | None:
    """Return whether the parameter's text says that Rerail is paused; None where the text is not valid."""
    return MEANINGS.get(text.strip().lower())
