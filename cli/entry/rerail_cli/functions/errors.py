"""Errors of a remote call, beside the function's own exceptions."""


class RemoteError(RuntimeError):
    """A remote function has delivered no value; the text names the run and what to do."""


class CallRefused(RemoteError):
    """The call was refused before a machine was requested: an option, an argument or the function is not valid."""


class RunHeld(RemoteError):
    """Rerail has stopped retrying the run and waits for an operator."""


class RunStopped(RemoteError):
    """The run was stopped or has failed, so that it has no result."""


class ResultRefused(RemoteError):
    """The stored result was not signed with the key of the run for this call, and was not unpickled."""
