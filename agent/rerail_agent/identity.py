"""Who is this process: which run, attempt and job, which rank of it, and where is its mailbox?"""

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
    """One attempt of a run, and its restart in place, as seen from inside; no `run` outside SageMaker, no `bucket`
    without a mailbox.

    `rank` and `size` are what the launcher said, None and 1 where it said nothing: torch.distributed knows better.
    `signing_key` is what reports and heartbeats are sealed with, where the job was handed one.
    """

    run: str = ""
    attempt: int = 1
    restart: int = 0
    job: str = ""
    bucket: str = ""
    region: str = ""
    rank: int | None = None
    size: int = 1
    base: Path = Path("/opt/ml")
    signing_key: str = field(default="", repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], tell: Callable[[str], None]) -> "Identity":
        """Never raises: what cannot be read is told, and done without."""
        arn = ARN.fullmatch(environment.get("TRAINING_JOB_ARN", ""))
        job = environment.get("TRAINING_JOB_NAME") or (arn["job"] if arn else "")
        return cls(
            run=(environment.get("RERAIL_RUN") or job) if job else "",
            attempt=_whole_number(environment, "RERAIL_ATTEMPT", tell) or 1,
            restart=_whole_number(environment, "RERAIL_RESTART", tell) or 0,
            job=job,
            bucket=_bucket(environment, arn, tell) if job else "",
            region=arn["region"] if arn else environment.get("AWS_REGION", ""),
            rank=_first(environment, RANKS, tell),
            size=_first(environment, SIZES, tell) or 1,
            base=Path(environment.get("SAGEMAKER_BASE_DIR") or "/opt/ml"),
            signing_key=_signing_key(environment, tell),
        )


def _bucket(environment: Mapping[str, str], arn: re.Match[str] | None, tell: Callable[[str], None]) -> str:
    asked = environment.get("RERAIL_MAILBOX", "")
    if asked.lower() == "off":
        return ""
    if asked:
        named = BUCKET.fullmatch(asked)
        if not named:
            tell(f"RERAIL_MAILBOX={asked!r}: must be s3://bucket or off; there is no mailbox now")
        return named[1] if named else ""
    if not arn:
        tell("TRAINING_JOB_ARN is missing, so nobody can ask for a checkpoint; set RERAIL_MAILBOX=s3://bucket or off")
        return ""
    return make_bucket_name(arn["account"], arn["region"])


def _signing_key(environment: Mapping[str, str], tell: Callable[[str], None]) -> str:
    key = environment.get(VARIABLE, "")
    if key and not KEY.fullmatch(key):
        tell(f"{VARIABLE} must be 64 hexadecimal digits; what this job reports is not sealed")
        return ""
    return key


def _first(environment: Mapping[str, str], names: tuple[str, ...], tell: Callable[[str], None]) -> int | None:
    return next((found for name in names if (found := _whole_number(environment, name, tell)) is not None), None)


def _whole_number(environment: Mapping[str, str], name: str, tell: Callable[[str], None]) -> int | None:
    text = environment.get(name, "")
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    if text:
        tell(f"{name}={text!r}: must be a whole number; going on as if it were not set")
    return None
