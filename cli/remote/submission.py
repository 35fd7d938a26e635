"""A remote call as a training job: code of the caller's folder, the signed call beside it, and the job's request."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.place import Place
from cli.submit import delivery, options
from cli.submit.account import SubmissionAccount
from cli.submit.command import DAY, USUAL_INSTANCE, make_local_entrypoint
from cli.submit.defaults import read_defaults, read_protection
from cli.submit.images import PYTORCH, VERSIONS
from cli.submit.packing import Source, make_patterns, pack_dependencies, read_folder
from cli.submit.problem import Problem
from cli.submit.request import JobRequest, make_training_request, parse_seconds
from cli.submit.screen import SubmitScreen
from cli.submit.training_role import PREFIX
from rerail.requests.relaunch import read_signing_key, with_signing_key
from rerail.requests.supervised import CHANNEL

# What the job reads: see cli/entry/rerail_cli/functions/job.py.
CALL_VARIABLE, RESULTS_VARIABLE = "RERAIL_REMOTE_CALL", "RERAIL_REMOTE_RESULTS"
RESULTS = "results/"
# AWS's images have their Python in the tag, such as 2.8.0-gpu-py312.
IMAGE_PYTHON = re.compile(r"[:-]py3(\d{1,2})(?!\d)")


def submit_call(
    request: Mapping[str, Any], account: SubmissionAccount, where: Place | None, screen: SubmitScreen
) -> str:
    """Start the job of a call and return its S3 folder; raise Problem if anything is not valid."""
    asked, run = request["options"], request["run"]
    folder = Path(asked["source"]) if asked["source"] else None
    usual = read_defaults(folder or Path.cwd(), Path.home())
    source = pack_call(request["files"], request["entry"], folder, asked, usual)
    machine = asked["instance_type"] or usual.get("instance_type", USUAL_INSTANCE)
    image = options.find_image(
        account, asked["image"], asked["framework_version"] or choose_version(usual), usual, machine
    )
    if not account.is_local:
        check_python(image)
    bucket = options.find_bucket(account, asked["bucket"] or usual.get("bucket", ""))
    store = f"s3://{bucket}/{PREFIX}/"
    folder_uri = f"{store}{run}/"
    wheel = options.find_wheel(asked["agent"] or usual.get("agent", ""))
    runtime = parse_seconds("--max-runtime", asked["max_runtime"] or usual.get("max_runtime", DAY))
    patience = asked["max_wait"] or usual.get("max_wait", "")
    warm = asked["keep_alive"] or usual.get("keep_alive", "")
    marks = {CALL_VARIABLE: f"{run}/{request['call']}", RESULTS_VARIABLE: f"{folder_uri}{RESULTS}"}
    job_request = JobRequest(
        name=run,
        role=account.find_role_arn(asked["role"] or usual.get("role", "")),
        region=account.region,
        image=image,
        folder=folder_uri,
        program=source.entry,
        code=f"{store}code/{source.digest}/sourcedir.tar.gz",
        instance_type=machine,
        volume_gb=asked["volume"] if asked["volume"] is not None else usual.get("volume", 30),
        policy=asked["policy"] or usual.get("policy", "default"),
        max_runtime_s=runtime,
        max_wait_s=parse_seconds("--max-wait", patience) if patience else runtime + 86400,
        keep_alive_s=parse_seconds("--keep-alive", warm) if warm else 0,
        spot=asked["spot"] if asked["spot"] is not None else usual.get("spot", False),
        tags={**usual.get("tags", {}), **asked["tags"]},
        environment={**usual.get("env", {}), **asked["environment"], **marks},
        metrics=usual.get("metrics") or (None if source.mentions(*options.AGENT) else {}),
        agent="" if account.is_local else options.make_uri(wheel, f"{store}agent/{Path(wheel).name}"),
        entrypoint=make_local_entrypoint(bool(wheel)) if account.is_local and not asked["image"] else (),
        **read_protection(usual),
        retries=usual.get("retries", 0),
    )
    sent = with_signing_key(make_training_request(job_request), request["key"])
    if read_signing_key(sent) != request["key"]:
        raise Problem("--env: the job has no room for its signing key", "give it fewer environment variables")
    uploads = {CHANNEL: wheel} if job_request.agent else {}
    delivery.start(account, job_request, sent, source, uploads, where, screen)
    return folder_uri


def pack_call(
    files: Mapping[str, str],
    entry: str,
    folder: Path | None,
    asked: Mapping[str, Any],
    usual: Mapping[str, Any],
) -> Source:
    """Return the caller's folder with the call and what runs it; raise Problem if names collide."""
    patterns = make_patterns((*usual.get("exclude", ()), *asked["exclude"]))
    if folder and folder in (Path.home(), Path(folder.anchor)):
        raise Problem(f"the whole folder {folder} would be packed", "put the program into a folder of its own")
    own = dict(read_folder(folder, patterns, entry=entry).files) if folder else {}
    own |= pack_dependencies([*usual.get("dependencies", ()), *asked["dependencies"]], patterns, own)
    if taken := sorted(own.keys() & files.keys()):
        raise Problem(f"{taken[0]} of {folder} has the name of a file that runs the call", "rename it")
    return Source(entry, {**own, **{name: (Path(path).read_bytes(), False) for name, path in files.items()}})


def choose_version(usual: Mapping[str, Any]) -> str:
    """Return the newest version of PyTorch whose image has this Python; "" if the project names one, or none has it."""
    if any(usual.get(name) for name in ("image", "framework", "framework_version")):
        return ""
    here = f"py3{sys.version_info.minor}"
    return next((full for full, python in reversed(VERSIONS[PYTORCH].values()) if python == here), "")


def check_python(image: str) -> None:
    """Raise Problem if the image's tag names another minor version of Python than this one."""
    found = IMAGE_PYTHON.search(image)
    if found and int(found[1]) != sys.version_info.minor:
        raise Problem(
            f"the function would be pickled with Python 3.{sys.version_info.minor}, and the image {image} has Python "
            f"3.{found[1]}",
            f"choose an image with Python 3.{sys.version_info.minor} by --framework-version or --image, or call from "
            f"Python 3.{found[1]}",
        )
