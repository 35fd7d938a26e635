"""What can go wrong, in the words of whoever has to mend it."""


class RerailError(Exception):
    """Anything that Rerail reports on purpose."""


class PolicyError(RerailError):
    """A policy is malformed; the message names the policy, the field and the remedy."""


class UnknownPolicy(PolicyError):
    """No policy of that name is deployed."""


class BadMessage(RerailError):
    """A message on the queue is not one of ours, or lacks a field that we need."""


class BadMailboxObject(BadMessage):
    """An object in the mailbox is not one of ours, or malformed; the message names the field.

    `defect` is one of a few words for the kind of defect: people are told once of each.
    """

    def __init__(self, message: str, *, defect: str = "content") -> None:
        super().__init__(message)
        self.defect = defect


class BadManifest(RerailError):
    """A checkpoint's manifest cannot be believed; the message names the object and the field."""


class Conflict(RerailError):
    """The run was changed by somebody else since it was loaded: load it again and decide again."""


class JobNotFound(RerailError):
    """SageMaker knows no training job of that name."""


class JobExists(RerailError):
    """A training job of that name exists already."""


class RequestRefused(RerailError):
    """SageMaker will never accept this request as it stands; the message is SageMaker's."""


class CapacityRefused(RerailError):
    """There is no quota or capacity for this request now; a later one may be accepted."""


class Throttled(RerailError):
    """The service asked us to come back later; nothing was done."""


class CallFailed(RerailError):
    """A call failed in a way that says neither yes nor no: the action stays pending and is tried again."""


class CommandNotStored(RerailError):
    """The mailbox took no command: it stays pending and is tried again, and the supervisor does without the agent."""


class ActionUnfinished(RerailError):
    """Part of an action is done and time is up: it stays pending, and the next turn goes on."""


class QuarantineFailed(RerailError):
    """What has to be set aside cannot be; the message says what is lacking, and the remedy."""


class StateUnknown(RerailError):
    """The world could not be asked: nothing is known, so nothing is done."""
