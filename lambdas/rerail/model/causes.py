"""Why a training job died, in nine words."""

from collections.abc import Mapping
from enum import StrEnum


class Cause(StrEnum):
    """The cause of a failure: what a remedy is chosen by."""

    INFRASTRUCTURE = "infrastructure"
    HARDWARE = "hardware"
    CAPACITY = "capacity"
    USER_CODE = "user_code"
    DATA = "data"
    OOM = "oom"
    HANG = "hang"
    DIVERGED = "diverged"
    UNKNOWN = "unknown"


# May the same job, relaunched unchanged, get further? Running out of memory, a bug and bad data come back every time.
RETRY: Mapping[Cause, bool] = {cause: cause not in (Cause.OOM, Cause.DATA, Cause.USER_CODE) for cause in Cause}
