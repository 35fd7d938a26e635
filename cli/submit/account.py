"""The AWS account of a submission: its role, its bucket, what is uploaded, and what it refuses, in clear words."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

from cli.place import client
from cli.submit.packing import Source, find_secret_patterns, walk
from cli.submit.problem import Problem
from cli.trouble import DENIED, explain_credentials, get_code, get_message
from rerail.model.formatting import format_files

# How long a new role may be unknown to SageMaker, and how often the job is tried meanwhile.
ROLE_KNOWN_WITHIN_S, ROLE_PAUSE_S = 60, 5
ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/.+")
NO_ROLE = (
    "--role: the job needs a role that SageMaker may take on",
    "give --role NAME-OR-ARN, or `role` in rerail.toml; `aws iam list-roles` lists them. A new one: --create-role, "
    "then add it to trainingRoleArns of Rerail's deployment",
)


@dataclass(frozen=True, slots=True)
class SubmissionAccount:
    """One account and region. `is_local` is the one on this machine, where buckets are made as they are needed."""

    is_local: bool = False

    @property
    def region(self) -> str:
        try:
            return str(client("sagemaker").meta.region_name)
        except NoRegionError as error:
            raise Problem("no AWS region is set", "set AWS_DEFAULT_REGION or AWS_PROFILE") from error

    def find_role_arn(self, role: str) -> str:
        """Return the ARN of a role that is given by name or by ARN."""
        if ROLE_ARN.fullmatch(role):
            return role
        if self.is_local:
            return f"arn:aws:iam::000000000000:role/{role or 'SageMakerRole'}"
        if not role:
            raise Problem(*NO_ROLE)
        try:
            return str(client("iam").get_role(RoleName=role.rsplit("/", 1)[-1])["Role"]["Arn"])
        except (ClientError, BotoCoreError) as error:
            if get_code(error) == "NoSuchEntity":
                raise Problem(f"--role {role}: this account has no such role", NO_ROLE[1]) from error
            raise _other(error, f"look up the role {role}; its whole ARN as --role needs no look-up") from error

    def find_default_bucket(self) -> str:
        """Return the name of the bucket that SageMaker's own SDK uses."""
        return f"sagemaker-{self.region}-{self.find_number('the default bucket; --bucket NAME needs no look-up')}"

    def find_number(self, needed_for: str = "the address of its registry") -> str:
        """Return the account's number."""
        try:
            return str(client("sts").get_caller_identity()["Account"])
        except (ClientError, BotoCoreError) as error:
            raise _other(error, f"find out the account's number, for {needed_for}") from error

    def check_bucket(self, bucket: str) -> str:
        """Return the number of the account that owns the bucket.

        Raise Problem if the bucket does not exist, may not be used or is another account's, also in later calls.
        """
        owner = self.expect_own_buckets()
        try:
            client("s3").head_bucket(Bucket=bucket)
        except (ClientError, BotoCoreError) as error:
            if get_code(error) not in ("404", "NoSuchBucket"):
                raise _other(error, f"use the bucket {bucket} as one of account {owner}", "--bucket") from error
            if not self.is_local:
                remedy = f"make it with `aws s3 mb s3://{bucket}`, or name another with --bucket"
                raise Problem(f"--bucket {bucket}: there is no such bucket", remedy) from error
            client("s3").create_bucket(Bucket=bucket)
        return owner

    def expect_own_buckets(self) -> str:
        """Have S3 refuse each call of this process to a bucket of another account; return the account's number."""
        from rerail.aws.clients import set_bucket_owner

        owner = self.find_number("the owner of the bucket")
        set_bucket_owner(owner)
        return owner

    def upload_code(self, source: Source, uri: str) -> bool:
        """Upload the archive if it is not there yet; return whether it was uploaded."""
        bucket, key = split(uri)
        try:
            client("s3").head_object(Bucket=bucket, Key=key)
            return False
        except (ClientError, BotoCoreError) as error:
            # Without s3:ListBucket a missing object is a 403.
            if get_code(error) not in ("404", "NoSuchKey", "NotFound", "403"):
                raise _other(error, f"look for {uri}") from error
        try:
            client("s3").put_object(Bucket=bucket, Key=key, Body=source.archive())
        except (ClientError, BotoCoreError) as error:
            raise _other(error, f"upload the code to {uri}", "--bucket") from error
        return True

    def upload_input(self, path: Path, files: Mapping[str, Path], uri: str) -> None:
        """Upload the files of `path`, by their names below it, to the S3 folder."""
        bucket, prefix = split(uri)
        try:
            for name, file in files.items():
                client("s3").upload_file(str(file), bucket, f"{prefix}{name}")
        except (ClientError, BotoCoreError) as error:
            raise _other(error, f"upload {path} to {uri}", "--input") from error

    def create(
        self, request: Mapping[str, Any], *, role_is_new: bool = False, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Create the training job; while a new role is not known to SageMaker yet, try again."""
        for remaining_s in range(ROLE_KNOWN_WITHIN_S if role_is_new else 0, -1, -ROLE_PAUSE_S):
            try:
                client("sagemaker").create_training_job(**request)
                return
            except (ClientError, BotoCoreError) as error:
                if not remaining_s or "assume" not in get_message(error).lower():
                    raise find_refusal(error, request) from error
            sleep(ROLE_PAUSE_S)


def split(uri: str) -> tuple[str, str]:
    """`s3://bucket/a/b` -> (`bucket`, `a/b`)."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def find_refusal(error: Exception, request: Mapping[str, Any]) -> Problem:
    """Return SageMaker's refusal of a job as a problem with its remedy."""
    code, message = get_code(error), get_message(error)
    machine = request["ResourceConfig"].get("InstanceType", "machines")
    if code == "ResourceInUse":
        return Problem(f"--name {request['TrainingJobName']}: a job of that name exists", "give another --name")
    if code == "ResourceLimitExceeded":
        kind = "spot training job usage" if request.get("EnableManagedSpotTraining") else "training job usage"
        return Problem(
            f"--instance-type {machine}: the account's quota does not allow it: {message}",
            f"ask for '{machine} for {kind}' under Service Quotas > Amazon SageMaker, wait for other jobs to end, or "
            "take another --instance-type or a smaller --count",
        )
    if "PassRole" in message:
        return Problem(
            f"--role {request['RoleArn']}: you may not hand it to SageMaker: {message}",
            "ask for iam:PassRole on it with iam:PassedToService = sagemaker.amazonaws.com",
        )
    if "assume" in message.lower() and "role" in message.lower():
        return Problem(
            f"--role {request['RoleArn']}: SageMaker may not take it on: {message}",
            "let its trust policy trust sagemaker.amazonaws.com, or take another --role",
        )
    if "image" in message.lower() or "ECR" in message:
        return Problem(
            f"--image: {message}", "check its address and region, and that the role may pull it; or name no --image"
        )
    return _other(error, "create the training job")


def _other(error: Exception, doing: str, option: str = "") -> Problem:
    code, named = get_code(error), f"{option}: " if option else ""
    if trouble := explain_credentials(error):
        return Problem(f"cannot {doing}: {trouble.what}", trouble.remedy)
    if code in DENIED:
        return Problem(f"{named}cannot {doing}: {get_message(error)}", "ask for the permission that it names")
    if code in ("301", "PermanentRedirect"):
        return Problem(f"{named}cannot {doing}: it lies in another region", "name one of this region")
    if code.startswith("Throttling"):
        return Problem(f"cannot {doing}: AWS is busy with this account's calls", "try again in a minute")
    return Problem(f"{named}cannot {doing}: {get_message(error)}", "fix what the message names, and try again")


def describe_upload(source: Source, inputs: Mapping[str, Mapping[str, Path]]) -> str:
    """Return what is uploaded, in words: the code, and the local files of each channel."""
    of_code = sum(len(text) for text, _ in source.files.values())
    parts = [f"{format_files(len(source.files))} of code, {_format_size(of_code)}"]
    for channel, files in inputs.items():
        size = sum(file.stat().st_size for file in files.values())
        parts.append(f"{channel}: {format_files(len(files))}, {_format_size(size)}")
    return "; ".join(parts)


def _format_size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def list_input_files(path: Path) -> dict[str, Path]:
    """Return a file, or the files of a folder without those of passwords and keys, by their names below it.

    Raise Problem for a link to something outside of the project.
    """
    if path.is_file():
        return {path.name: path}
    try:
        return {name: path / name for name in walk(path, find_secret_patterns())}
    except Problem as problem:
        remedy = "put the files themselves there, or name their folder as another --input"
        raise Problem(f"--input {path}: {problem.what}", remedy) from problem
