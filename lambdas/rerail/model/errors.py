"""The exceptions of the core; their messages are written for the person who has to fix the problem."""


class RerailError(Exception):
    """The base class of all errors that Rerail raises deliberately."""


class PolicyError(RerailError):
    """A policy is malformed; the message names the policy, the field and the remedy."""


class UnknownPolicy(PolicyError):
    """A policy of that name is not deployed."""


class BadMessage(RerailError):
    """A message on the queue is not in a known format, or lacks a required field."""


class ForgedMessage(BadMessage):
    """A message on the queue was sent by a role that does not send such messages."""


class BadMailboxObject(BadMessage):
    """An object in the mailbox is unknown or malformed; the message names the field.

    `defect` is a word for the kind of defect; each kind is reported to people once.
    """

    def __init__(self, message: str, *, defect: str = "content") -> None:
        super().__init__(message)
        self.defect = defect
        self.is_unsigned = False  # it was read, and is not signed with the run's key


class BadManifest(RerailError):
    """A checkpoint's manifest is malformed; the message names the object and the field."""


class Conflict(RerailError):
    """The run was changed concurrently since it was loaded: load it again and repeat the decision."""


class JobNotFound(RerailError):
    """SageMaker has no training job of that name."""


class JobExists(RerailError):
    """A training job of that name exists already."""


class RequestRefused(RerailError):
    """SageMaker rejects this request and will not accept it unchanged; the message is SageMaker's."""


class RequestTooLarge(RerailError):
    """The request of a job is too long to be stored, so the job cannot be supervised; the message has the remedy."""


class CapacityRefused(RerailError):
    """There is no quota or capacity for this request now; a later one may be accepted."""


class Throttled(RerailError):
    """The service throttled the call; nothing was done."""


class CallFailed(RerailError):
    """A call failed without a definite answer: the action stays pending and is tried again."""


class CommandNotStored(RerailError):
    """The command could not be stored: it stays pending, and the supervisor meanwhile acts without the agent."""


class NotSigned(RerailError):
    """KMS has not signed a link: the notice is sent without it."""


class ActionUnfinished(RerailError):
    """Only part of an action was done in time: it stays pending and is continued later."""


class QuarantineFailed(RerailError):
    """Checkpoints could not be quarantined; `message` says why, `advice` what to do."""

    def __init__(self, message: str, *, advice: str) -> None:
        super().__init__(f"{message}. To do: {advice}")
        self.message = message
        self.advice = advice


class StateUnknown(RerailError):
    """AWS could not be queried: the state is unknown, so nothing is done."""


class BoundsExceeded(StateUnknown):
    """The checkpoints of one run are more than Rerail reads; `message` says what was exceeded, `advice` what to do.

    `may_pass` says that the cause may be a slow answer, so that another try may succeed.
    """

    def __init__(self, message: str, *, advice: str, may_pass: bool = False) -> None:
        super().__init__(f"{message}. To do: {advice}")
        self.message = message
        self.advice = advice
        self.may_pass = may_pass
