"""Whether unsigned reports of a run are ignored."""

from rerail.model.policy import Policy
from rerail.model.run import Run


def must_be_signed(run: Run, policy: Policy) -> bool:
    """Return whether unsigned messages are ignored: an agent of the run signs them, or the policy requires it."""
    return (run.seals or policy.mailbox.sealed_only) and bool(run.seal_key)
