"""Whether unsigned reports of a run are ignored."""

from rerail.model.policy import Policy
from rerail.model.run import Run


def must_be_signed(run: Run, policy: Policy) -> bool:
    """Return whether unsigned messages are ignored: an agent of the run signs them, or the policy requires it."""
    return (run.requires_signature or policy.mailbox.signed_only) and bool(run.signing_key)
