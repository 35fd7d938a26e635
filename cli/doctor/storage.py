"""Will the checkpoints be there when they are needed? Questions about the bucket, in the order of the answers."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from botocore.exceptions import ClientError

from cli.doctor.check import Check, Question, broken, ok, warn
from cli.doctor.subject import DAY, Subject
from cli.trouble import get_code, is_missing
from rerail.model.formatting import format_duration

# us-east-1 is where S3 began, and has no name there.
NAMELESS = "us-east-1"
ENABLED = "Enabled"
LUSTRE, AVAILABLE = "FSxLustre", "AVAILABLE"


def checkpoint_bucket(subject: Subject) -> Check | None:
    """It exists, in the job's region: SageMaker takes no other."""
    if not subject.bucket:
        return None
    try:
        where = subject.client("s3").get_bucket_location(Bucket=subject.bucket).get("LocationConstraint") or NAMELESS
    except ClientError as error:
        if is_missing(error):
            return broken(f"there is no bucket {subject.bucket}", f"make it: `aws s3 mb s3://{subject.bucket}`")
        raise
    region = subject.deployment.region
    if where not in (region, "EU" if region == "eu-west-1" else region):
        return broken(f"{subject.bucket} lies in {where}, the job in {region}", f"name a bucket in {region}")
    return ok(f"{subject.bucket} in {where}")


def checkpoint_expiry(subject: Subject) -> Check | None:
    """No lifecycle rule deletes what a relaunch would resume from."""
    if not subject.bucket:
        return None
    try:
        answer = subject.client("s3").get_bucket_lifecycle_configuration(Bucket=subject.bucket)
    except ClientError as error:
        if get_code(error) == "NoSuchLifecycleConfiguration":
            return ok("nothing is deleted by a lifecycle rule")
        raise
    runtime_s = subject.max_runtime_s or DAY
    found = sorted(_expiring(answer.get("Rules", []), subject.prefix), key=lambda rule: rule[1])
    if not found:
        return ok("no lifecycle rule deletes below the folder")
    name, days = found[0]
    said = f"the lifecycle rule {name} deletes" + (f" what is {days} days old" if days else "")
    if days * DAY <= runtime_s:
        return broken(
            f"{said}, and the job may run for {format_duration(timedelta(seconds=runtime_s))}",
            f"leave s3://{subject.bucket}/{subject.prefix} out of the rule, or raise its days",
        )
    return warn(said, "leave the folder out of the rule, if runs may be taken up again after that")


def checkpoint_versions(subject: Subject) -> Check | None:
    """What a script deletes in its folder is deleted in S3 too, unless versions are kept."""
    if not subject.bucket:
        return None
    status = subject.client("s3").get_bucket_versioning(Bucket=subject.bucket).get("Status", "")
    if status == ENABLED:
        return ok("versions are kept: what a script deletes can be had back")
    return ok("no versions are kept: what a script deletes in its folder is gone")


def file_copies(subject: Subject) -> Check | None:
    """A file that the script overwrites has no predecessor but Rerail's copies."""
    if subject.run is None:
        return None
    if problem := subject.run.current.copy_problem:
        what, _, todo = problem.partition(". To do: ")
        return warn(f"the file that the script overwrites is not copied: {what}", todo)
    if subject.run.copies:
        return ok(f"copies of what the script overwrites: {len(subject.run.copies)}; a rollback goes back to one")
    return None


def checkpoint_key(subject: Subject) -> Check | None:
    """The key that encrypts the bucket can be used."""
    if not subject.bucket:
        return None
    key = find_bucket_key(subject)
    if not key:
        return ok("encrypted by S3's own keys")
    described = subject.client("kms").describe_key(KeyId=key)["KeyMetadata"]
    if described["KeyState"] != ENABLED:
        return broken(f"the bucket's key {key} is {described['KeyState']}", "enable it: nothing can be read or saved")
    return ok(f"encrypted with {key}")


def find_bucket_key(subject: Subject) -> str:
    """The KMS key by which the bucket encrypts what is not encrypted otherwise; "" for S3's own."""
    try:
        answer = subject.client("s3").get_bucket_encryption(Bucket=subject.bucket)
    except ClientError as error:
        if get_code(error) == "ServerSideEncryptionConfigurationNotFoundError":
            return ""
        raise
    rules = answer["ServerSideEncryptionConfiguration"]["Rules"]
    return next((name for rule in rules if (name := _key(rule))), "")


def file_systems(subject: Subject) -> Check | None:
    """Each file system that a channel mounts exists, in the job's VPC, with the folder that is named."""
    channels = subject.request.get("InputDataConfig") or []
    sources = [channel["DataSource"].get("FileSystemDataSource") for channel in channels]
    mounted: list[Mapping[str, str]] = [source for source in sources if source]
    if not mounted or subject.deployment.where.is_local:
        return None
    if not subject.request.get("VpcConfig"):
        return broken("a channel mounts a file system, and the request names no VPC", "name its VpcConfig")
    for source in mounted:
        if problem := _find_lustre_problem(subject, source) if source["FileSystemType"] == LUSTRE else None:
            return problem
    return ok(f"{', '.join(source['FileSystemId'] for source in mounted)}: as the request names them")


def _find_lustre_problem(subject: Subject, source: Mapping[str, str]) -> Check | None:
    name = source["FileSystemId"]
    try:
        (found,) = subject.client("fsx").describe_file_systems(FileSystemIds=[name])["FileSystems"]
    except ClientError as error:
        if get_code(error) == "FileSystemNotFound":
            return broken(f"there is no file system {name} here", "name one of this account and region")
        raise
    if found["Lifecycle"] != AVAILABLE:
        return broken(f"the file system {name} is {found['Lifecycle']}", "wait until it is available, or repair it")
    start = f"/{found['LustreConfiguration']['MountName']}"
    if not f"{source['DirectoryPath']}/".startswith(f"{start}/"):
        return broken(
            f"the folder {source['DirectoryPath']} of {name} does not begin with its mount name",
            f"write {start}{source['DirectoryPath']}",
        )
    return None


QUESTIONS: tuple[Question[Subject], ...] = (
    checkpoint_bucket,
    checkpoint_expiry,
    checkpoint_versions,
    file_copies,
    checkpoint_key,
    file_systems,
)


def _expiring(rules: list[Mapping[str, Any]], prefix: str) -> Iterator[tuple[str, int]]:
    """Rules that delete below the prefix, with their days; those that ask for a tag or a size are not for us: nobody
    tags checkpoints."""
    for rule in rules:
        expiration = rule.get("Expiration") or {}
        if rule.get("Status") != ENABLED or not ({"Days", "Date"} & expiration.keys()):
            continue
        filter = rule.get("Filter") or {}
        both = filter.get("And") or {}
        if filter.get("Tag") or both.get("Tags"):
            continue
        of = rule.get("Prefix") or filter.get("Prefix") or both.get("Prefix") or ""
        if prefix.startswith(of) or of.startswith(prefix):
            yield rule.get("ID", "without a name"), int(expiration.get("Days", 0))


def _key(rule: Mapping[str, Any]) -> str:
    return str((rule.get("ApplyServerSideEncryptionByDefault") or {}).get("KMSMasterKeyID", ""))
