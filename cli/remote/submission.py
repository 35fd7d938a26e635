"""A remote call as a training job: code of the caller's folder, the signed call beside it, and the job's request."""

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cli.place import Place
from cli.submit import delivery, options
from cli.submit.account import SubmissionAccount
from cli.submit.images import PYTORCH, VERSIONS
from cli.submit.packing import Source, make_patterns, pack_dependencies, read_folder
from cli.submit.problem import Problem
from cli.submit.request import make_training_request
from cli.submit.screen import SubmitScreen
from cli.submit.settings import read_defaults
from cli.submit.stages import make_job, make_settings
from rerail.requests.relaunch import read_signing_key, with_signing_key

# What the job reads: see cli/entry/rerail_cli/functions/job.py.
CALL_VARIABLE, RESULTS_VARIABLE = "RERAIL_REMOTE_CALL", "RERAIL_REMOTE_RESULTS"
RESULTS = "results/"
# The settings of a call; what is packed is apart from them.
KEYS = (
    *("role", "bucket", "policy", "tags", "metrics", "image", "framework", "framework_version", "env", "agent"),
    *("instance_type", "volume", "volume_key", "keep_alive", "spot", "max_runtime", "max_wait", "retries"),
    *("subnets", "security_groups", "encrypt_traffic", "output_key"),
)
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
    settings = make_settings(
        {key: usual[key] for key in KEYS if key in usual}, read_given(asked), is_local=account.is_local
    )
    if not (settings.image or settings.framework or settings.framework_version):
        settings = replace(settings, framework_version=choose_version())
    own_metrics = settings.metrics or (None if source.mentions(*options.AGENT) else {})
    role = account.find_role_arn(settings.role)
    job = make_job(account, settings, source, name=run, role=role, metrics=own_metrics)
    if not account.is_local:
        check_python(job.image)
    marks = {CALL_VARIABLE: f"{run}/{request['call']}", RESULTS_VARIABLE: f"{job.folder}{RESULTS}"}
    job = replace(job, settings=replace(settings, env={**settings.env, **marks}))
    sent = with_signing_key(make_training_request(job), request["key"])
    if read_signing_key(sent) != request["key"]:
        raise Problem("--env: the job has no room for its signing key", "give it fewer environment variables")
    delivery.start(account, job, sent, source, where, screen)
    return job.folder


def read_given(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among the decorator's options, by their keys."""
    named = {**asked, "env": asked["environment"]}
    return {key: named[key] for key in KEYS if named.get(key) not in (None, "", {})}


def pack_call(
    files: Mapping[str, str], entry: str, folder: Path | None, asked: Mapping[str, Any], usual: Mapping[str, Any]
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


def choose_version() -> str:
    """Return the newest version of PyTorch whose image has this Python; "" if none has it."""
    here = f"py3{sys.version_info.minor}"
    return next((full for full, python in reversed(VERSIONS[PYTORCH].values()) if python == here), "")


def check_python(image: str) -> None:
    """Raise Problem if the image's tag names another minor version of Python than this one."""
    found = IMAGE_PYTHON.search(image)
    if found and int(found[1]) != sys.version_info.minor:
        raise Problem(
            f"the function would be pickled with Python 3.{sys.version_info.minor}, and the image {image} has Python "
            f"3.{found[1]}",
            f"choose an image with Python 3.{sys.version_info.minor} by framework_version or --image, or call from "
            f"Python 3.{found[1]}",
        )
