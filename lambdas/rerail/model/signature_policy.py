"""Whether unsigned reports of a run are ignored, rather than shown to people."""

from rerail.model.policy import Policy
from rerail.model.run import Run


def must_be_signed(run: Run, policy: Policy) -> bool:
    """Return whether unsigned reports are ignored: the current attempt was given a key, or the policy requires it."""
    was_given = run.requires_signature or run.current.number > 1
    return bool(run.signing_key) and (was_given or policy.mailbox.signed_only)
