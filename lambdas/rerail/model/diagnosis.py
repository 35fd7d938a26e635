"""The result of diagnosing a failed job."""

from dataclasses import dataclass

from rerail.model.causes import Cause

CALLED_COMPLETED = "SageMaker calls the job Completed; by its policy it is handled as failed"
# The rule of a job that completed long before its last step.
FEW_STEPS = "few-steps"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis of a failed job."""

    cause: Cause
    # The text that the rule matched.
    evidence: str
    # The name of the rule.
    rule: str
    # Equal for the same root error on other ranks, hosts and days.
    fingerprint: str
    step: int | None = None
    exit_code: int | None = None
    # What the diagnosis could not use, such as a log that cannot be read; empty where it had all it needed.
    limitation: str = ""
    # How far the last losses of the log were from those before; empty if they were not far.
    last_loss: str = ""
    # The only rank that printed the error, or the first one by the words of its launcher.
    rank: int | None = None
    # The GPU that failed, with its UUID first; empty if none is named, or the cause is another.
    gpu: str = ""
