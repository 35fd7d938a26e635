"""Read the state of a remote call's run, its stored result, and the facts to attach to it again."""

from contextlib import closing
from pathlib import Path
from shutil import copyfileobj
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cli.names import explain_unknown_run
from cli.place import Place, client, now
from cli.remote.submission import CALL_VARIABLE, RESULTS, RESULTS_VARIABLE
from cli.submit.account import split
from cli.submit.problem import Problem
from cli.trouble import explain, get_code
from rerail.model.run import JobStatus, Run, RunState
from rerail.requests.relaunch import read_signing_key

RUNNING = "running"
# Bytes of a result that are downloaded at most: everyone with write access to the bucket can store an object there.
RESULT_LIMIT = 1024**3
# Until then the supervisor may take up a job that has failed.
ADOPTED_WITHIN_S = 120.0


def observe(where: Place | None, run: str, folder: str, into: str, known: str) -> dict[str, Any]:
    """Return state, newest job and reason of the run, and whether the job's result was written to the file `into`.

    While the run goes on, a result with the ETag `known` is not downloaded again.
    """
    record = where.runs.load(run) if where else None
    job = next((a.job_name for a in reversed(record.attempts) if a.exists or a.number == 1), run) if record else run
    state, why = _read_state(record) if record else _read_job_state(job, has_supervisor=where is not None)
    tag, problem = _fetch(f"{folder}{RESULTS}{job}", Path(into), known if state == RUNNING else "")
    return {
        "state": state,
        "job": job,
        "why": why,
        "attempts": len(record.attempts) if record else 1,
        "stored": not problem,
        "tag": tag,
        "unreadable": problem,
    }


def find_call(where: Place | None, run: str) -> dict[str, Any]:
    """Return what attaches to the call that a run or one of its jobs has made; raise Problem if it has made none."""
    try:
        description = client("sagemaker").describe_training_job(TrainingJobName=run)
    except (ClientError, BotoCoreError) as error:
        if get_code(error) in ("ValidationException", "ResourceNotFound"):
            raise Problem(
                f"there is no run {run!r} here", explain_unknown_run(where, run)[1] if where else ""
            ) from error
        raise
    environment = description.get("Environment") or {}
    call, results = environment.get(CALL_VARIABLE, ""), environment.get(RESULTS_VARIABLE, "")
    name, _, identifier = call.partition("/")
    key = read_signing_key(description)
    if not (identifier and key and results):
        raise Problem(f"the run {run} is not one of a remote function", f"`rerail follow {run}` follows it")
    return {"run": name, "call": identifier, "key": key, "folder": results.removesuffix(RESULTS)}


def _read_state(run: Run) -> tuple[str, str]:
    if not run.state.is_end or run.is_open:
        return RUNNING, ""
    reason = run.hold_reason if run.state is RunState.HELD else ""
    return run.state.value, reason or run.current.failure_reason


def _read_job_state(job: str, *, has_supervisor: bool) -> tuple[str, str]:
    """Return the state of a run by its only job: where no supervisor is deployed, or it has not taken up the job."""
    description = client("sagemaker").describe_training_job(TrainingJobName=job)
    status = JobStatus(description["TrainingJobStatus"])
    if not status.is_terminal:
        return RUNNING, ""
    is_early = (now() - description["LastModifiedTime"]).total_seconds() < ADOPTED_WITHIN_S
    if status is JobStatus.FAILED and has_supervisor and is_early:
        return RUNNING, ""
    return status.value.lower(), str(description.get("FailureReason", ""))


def _fetch(uri: str, file: Path, known: str) -> tuple[str, str]:
    """Write the object to the file and return its ETag and ""; return `known` and why it was not written.

    One request tells its size and reads it: others may replace it between two.
    """
    bucket, key = split(uri)
    try:
        found = client("s3").get_object(Bucket=bucket, Key=key, **({"IfNoneMatch": known} if known else {}))
    except ClientError as error:
        is_missing = get_code(error) in ("404", "NoSuchKey", "NotFound", "304")
        return known, "nothing is stored" if is_missing else explain(error).what
    # As a context, the body would be urllib3's own stream, without checks of length and checksum.
    with closing(found["Body"]) as content:
        size = found["ContentLength"]
        if size > RESULT_LIMIT:
            problem = f"the stored result has {size:,} bytes, more than {RESULT_LIMIT:,}: write large results to a file"
            return known, problem
        with file.open("wb") as stored:
            copyfileobj(content, stored)
    return found["ETag"], ""
