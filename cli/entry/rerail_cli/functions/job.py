"""The job's side of a remote function: verify the call, run it, and store the signed result.

A value and an exception of the function both end the call: the job completes, because a relaunch would raise the same
exception again. An exception of the machine, and of the types in `retry_on`, fails the job: Rerail diagnoses it and
relaunches within its budgets.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .checkpoint_folder import CALL_VARIABLE
from .envelope import KEY_VARIABLE, BadEnvelope, make_name, sign, verify

# Where results are stored, as s3://BUCKET/FOLDER/; each under the name of its job.
RESULTS_VARIABLE = "RERAIL_REMOTE_RESULTS"
CALL_FILE = "rerail_remote_call.bin"
ENTRY = "rerail_remote_call.py"
ENTRY_TEXT = '''"""Run the remote call that is packed beside this file."""

import sys
from pathlib import Path

from rerail_cli.functions.job import main

sys.exit(main(Path(__file__).resolve().parent))
'''
# Texts of errors that a machine or its network causes, though they reach Python as exceptions of general types.
MACHINE_ERRORS = re.compile(
    r"CUDA error|CUDA out of memory|NCCL|cuDNN error|cublas|uncorrectable ECC|is killed by signal|"
    r"Connection (reset|closed by peer|timed out)|Broken pipe",
    re.I,
)
# Errors of the network that do not inherit from Python's own; by name, because the image may lack their packages.
NETWORK_ERRORS = {
    "botocore.exceptions.ConnectionError",
    "botocore.exceptions.HTTPClientError",
    "requests.exceptions.ConnectionError",
    "requests.exceptions.Timeout",
    "socket.gaierror",
    "urllib3.exceptions.NewConnectionError",
    "urllib3.exceptions.ProtocolError",
    "urllib3.exceptions.TimeoutError",
}
VALUE, EXCEPTION, ERROR = "value", "exception", "error"


def main(folder: Path) -> int:
    """Run the packed call; return the exit status of the job."""
    call = os.environ[CALL_VARIABLE]
    run, _, identifier = call.partition("/")
    key = os.environ.get(KEY_VARIABLE, "")
    job = os.environ.get("TRAINING_JOB_NAME", run)
    # An image without boto3, or a role without the permission, must fail before the function runs, not after.
    _store(f"{os.environ[RESULTS_VARIABLE]}{job}.begun", b"")
    header, content = _run_call(folder / CALL_FILE, make_name("call", run, identifier), key)
    if not key:
        sys.stderr.write("rerail: the job has no key, so its result cannot be signed: submit the call again\n")
        return 1
    result = sign(header, content, make_name("result", run, identifier, job), key)
    _store(os.environ[RESULTS_VARIABLE] + job, result)
    sys.stdout.write(f"rerail: stored the result, {len(result)} bytes\n")
    sys.stdout.flush()
    return 0 if header["final"] else 1


def _run_call(file: Path, name: str, key: str) -> tuple[dict[str, Any], bytes]:
    """Return header and content of the result."""
    try:
        header, content = verify(file.read_bytes(), name, key)
    except BadEnvelope as error:
        return _make_error(f"the packed call was refused and not unpickled: {error}")
    here = "{}.{}".format(*sys.version_info)
    if header["python"] != here:
        return _make_error(
            "the call was made with Python {} and the image has Python {}: a pickled function needs the same minor "
            "version. Choose an image with Python {}, or call from Python {}.".format(
                header["python"], here, header["python"], here
            )
        )
    try:
        function, arguments, named = pickle.loads(content)  # nosec B301: signed with the run's key
    except Exception as error:
        traceback.print_exc()
        return _make_error(
            f"the call cannot be loaded in the job: {type(error).__name__}: {error}. Modules in the folder of the "
            "program are packed; name others in source= or dependencies=, or have them in the image."
        )
    try:
        value = function(*arguments, **named)
    except (Exception, SystemExit) as error:
        return _pickle_exception(error, header.get("retry_on", ()))
    return _pickle_value(value)


def _pickle_value(value: object) -> tuple[dict[str, Any], bytes]:
    import cloudpickle

    try:
        return {"kind": VALUE, "final": True}, cloudpickle.dumps(value)
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        return _make_error(
            f"the function has returned a {kind} that cannot be pickled: {error}. Return plain data, or save it to a "
            "file and return its address."
        )


def _pickle_exception(error: BaseException, retry_on: Collection[str]) -> tuple[dict[str, Any], bytes]:
    """Return the exception as a result; one that cannot be pickled is its text."""
    import cloudpickle

    # The first frame is that of this module.
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, inner))
    sys.stderr.write(text)
    final = not is_retried(error, retry_on)
    does = "the call ends with it" if final else "the job fails, and Rerail decides about a relaunch"
    sys.stderr.write(f"rerail: the function has raised {type(error).__name__}; {does}\n")
    header = {"kind": EXCEPTION, "final": final, "type": type(error).__qualname__, "traceback": text}
    header["text"] = "".join(traceback.format_exception_only(type(error), error)).strip()
    if not isinstance(error, Exception):  # raised again, sys.exit() of the job would end the caller's program
        return {**header, "kind": ERROR}, b""
    try:
        content = cloudpickle.dumps(error)
        pickle.loads(content)  # nosec B301: pickled in the line above
    except Exception as problem:
        header.update(kind=ERROR, text="{} (not picklable: {})".format(header["text"], problem))
        content = b""
    return header, content


def is_retried(error: BaseException, retry_on: Collection[str]) -> bool:
    """Return whether the error or its cause is one of the machine, or the error's type is named in `retry_on`."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if names & set(retry_on) or is_machine_error(error, names):
        return True
    return error.__cause__ is not None and is_retried(error.__cause__, ())


def is_machine_error(error: BaseException, names: Collection[str]) -> bool:
    """Return whether the machine or its network has caused the error; `names` are those of its type's bases."""
    if isinstance(error, (ConnectionError, TimeoutError, MemoryError)) or NETWORK_ERRORS & set(names):
        return True
    text = "".join(traceback.format_exception_only(type(error), error))
    return isinstance(error, RuntimeError) and MACHINE_ERRORS.search(text) is not None


def _make_error(text: str) -> tuple[dict[str, Any], bytes]:
    sys.stderr.write(f"rerail: {text}\n")
    return {"kind": ERROR, "final": True, "type": "RemoteError", "text": text, "traceback": ""}, b""


def _store(uri: str, content: bytes) -> None:
    """Store the result, or fail with what the job's role needs."""
    import boto3

    bucket, _, key = uri[len("s3://") :].partition("/")
    account = os.environ.get("TRAINING_JOB_ARN", "").split(":")[4:5]
    owner = {"ExpectedBucketOwner": account[0]} if account else {}
    try:
        boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=content, **owner)
    except Exception:
        sys.stderr.write(f"rerail: cannot store the result: the job's role needs s3:PutObject on {uri}\n")
        raise
