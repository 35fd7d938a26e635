"""Remote functions: a decorated function runs as a supervised training job and returns its value or its exception.

Both sides import this package: the caller, and the job, which gets it packed with the code. It imports the standard
library and cloudpickle only; the job also boto3. Modules that the job imports before it has compared the versions of
Python keep to the syntax of Python 3.8.
"""

from .checkpoint_folder import checkpoint_folder
from .decorator import RemoteFunction, attach, remote
from .errors import CallRefused, RemoteError, ResultRefused, RunHeld, RunStopped
from .future import RemoteFuture

__all__ = [
    "CallRefused",
    "RemoteError",
    "RemoteFunction",
    "RemoteFuture",
    "ResultRefused",
    "RunHeld",
    "RunStopped",
    "attach",
    "checkpoint_folder",
    "remote",
]
