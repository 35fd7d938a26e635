"""Decide which checkpoints a job may load: those that its run has signed, and unsigned ones from before the first."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rerail_agent.checkpoints.manifest import Manifest, read_signing_key
from rerail_agent.identity import Identity

UNTRUSTED = "its manifest is not signed with the run's key"


@dataclass(frozen=True, slots=True)
class ManifestTrust:
    """The rule by which a job trusts manifests; without a key it trusts all of them."""

    has_key: bool
    run: str
    attempt: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "ManifestTrust":
        identity = Identity.from_environment({"RERAIL_MAILBOX": "off", **environment}, lambda message: None)
        return cls(bool(read_signing_key()), identity.run, identity.attempt)

    def find_untrusted(self, manifests: Iterable[Manifest], *, signs_all: bool = True) -> set[int]:
        """Return the steps whose manifests this run may not have written.

        The first job of a run may have had no key, and an older agent signs none: what they saved comes before the
        first signed step, and is of an earlier attempt or of another run. Any other unsigned manifest is not trusted.
        Without `signs_all` this attempt may have unsigned ones too, which a script has written by itself.
        """
        if not self.has_key:
            return set()
        listed = list(manifests)
        first = min((manifest.step for manifest in listed if manifest.signature), default=None)
        return {
            manifest.step
            for manifest in listed
            if not manifest.signature
            and (
                (first is not None and manifest.step >= first)
                or (signs_all and manifest.run == self.run and manifest.attempt >= self.attempt)
            )
        }
