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


# They fail again every time, until something is changed.
LASTING = (Cause.OOM, Cause.DATA, Cause.USER_CODE, Cause.DAMAGED_CHECKPOINT)
# Whether an unchanged relaunch may succeed.
RETRY: Mapping[Cause, bool] = {cause: cause not in LASTING for cause in Cause}
