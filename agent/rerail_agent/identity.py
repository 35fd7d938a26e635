"""Read from the environment which run, attempt, job and rank this process is, and where its mailbox is."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rerail.model.mailbox import make_bucket_name
from rerail.model.signatures import KEY, VARIABLE

ARN = re.compile(r"arn:(?P<partition>[\w-]+):sagemaker:(?P<region>[\w-]+):(?P<account>\d{12}):training-job/(?P<job>.+)")
BUCKET = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/?")
# Launchers: torchrun and SageMaker's, Open MPI, other MPIs, Slurm.
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")  # not Slurm's: one process may run alone in an allocation of many


@dataclass(frozen=True, slots=True)
class Identity:
    """One attempt of a run, and its restart in place, as its environment describes it."""

    # Empty outside SageMaker.
    run: str = ""
    attempt: int = 1
    restart: int = 0
    job: str = ""
    # The mailbox; empty without one.
    bucket: str = ""
    region: str = ""
    # The job's account, which owns the mailbox; empty if TRAINING_JOB_ARN is missing.
    account: str = ""
    # As the launcher set it, or None; torch.distributed takes precedence.
    rank: int | None = None
    # As the launcher set it, or 1.
    size: int = 1
    base: Path = Path("/opt/ml")
    # The key that signs reports and heartbeats, where the job has one.
    signing_key: str = field(default="", repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], log: Callable[[str], None]) -> "Identity":
        """Read the environment; log a variable that cannot be read, and continue without it."""
        arn = ARN.fullmatch(environment.get("TRAINING_JOB_ARN", ""))
        job = environment.get("TRAINING_JOB_NAME") or (arn["job"] if arn else "")
        return cls(
            run=(environment.get("RERAIL_RUN") or job) if job else "",
            attempt=_read_number(environment, "RERAIL_ATTEMPT", log) or 1,
            restart=_read_number(environment, "RERAIL_RESTART", log) or 0,
            job=job,
            bucket=_read_bucket(environment, arn, log) if job else "",
            region=arn["region"] if arn else environment.get("AWS_REGION", ""),
            account=arn["account"] if arn else "",
            rank=_read_first_number(environment, RANKS, log),
            size=_read_first_number(environment, SIZES, log) or 1,
            base=Path(environment.get("SAGEMAKER_BASE_DIR") or "/opt/ml"),
            signing_key=_read_signing_key(environment, log),
        )


def _read_bucket(environment: Mapping[str, str], arn: re.Match[str] | None, log: Callable[[str], None]) -> str:
    asked = environment.get("RERAIL_MAILBOX", "")
    if asked.lower() == "off":
        return ""
    if asked:
        named = BUCKET.fullmatch(asked)
        if not named:
            log(f"RERAIL_MAILBOX={asked!r}: must be s3://bucket or off; there is no mailbox now")
        return named[1] if named else ""
    if not arn:
        log("TRAINING_JOB_ARN is missing, so no checkpoint can be requested; set RERAIL_MAILBOX=s3://bucket or off")
        return ""
    return make_bucket_name(arn["account"], arn["region"])


def _read_signing_key(environment: Mapping[str, str], log: Callable[[str], None]) -> str:
    key = environment.get(VARIABLE, "")
    if key and not KEY.fullmatch(key):
        log(f"{VARIABLE} must be 64 hexadecimal digits; this job's reports are not signed")
        return ""
    return key


def _read_first_number(
    environment: Mapping[str, str], names: tuple[str, ...], log: Callable[[str], None]
) -> int | None:
    return next((found for name in names if (found := _read_number(environment, name, log)) is not None), None)


def _read_number(environment: Mapping[str, str], name: str, log: Callable[[str], None]) -> int | None:
    text = environment.get(name, "")
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    if text:
        log(f"{name}={text!r}: must be a whole number; going on as if it were not set")
    return None
