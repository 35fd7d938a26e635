"""The causes of failed training jobs."""

from collections.abc import Mapping
from enum import StrEnum


class Cause(StrEnum):
    """The cause of a failure, from which the remedy is chosen."""

    INFRASTRUCTURE = "infrastructure"
    HARDWARE = "hardware"
    CAPACITY = "capacity"
    USER_CODE = "user_code"
    DATA = "data"
    DAMAGED_CHECKPOINT = "damaged_checkpoint"
    OOM = "oom"
    HANG = "hang"
    DIVERGED = "diverged"
    UNKNOWN = "unknown"


# Whether an unchanged relaunch may succeed. Running out of memory, bugs and bad data fail again every time.
RETRY: Mapping[Cause, bool] = {cause: cause not in (Cause.OOM, Cause.DATA, Cause.USER_CODE) for cause in Cause}
