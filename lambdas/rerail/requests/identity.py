"""Compare a job with the request that would start it: a name is no proof of who has started a job.

Compared is what decides which program runs, and on what: code, image, arguments, environment, channels, and the buckets
of what is written. Machines, role, limits and tags may differ.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from rerail.model.signatures import VARIABLE
from rerail.requests.states import EXECUTION_VARIABLE
from rerail.requests.supervised import CHANNEL

# The hyperparameter with what was given to `rerail submit`: a script, or a folder with its option.
SCRIPT_SETTING = "sagemaker_rerail_script"
# The script that is packed, where a shell command of `rerail submit FOLDER --command` runs instead.
COMMAND_SCRIPT = "rerail_command.sh"
# Hyperparameters with the job's name or place, or what its code says too.
JOBS_OWN = (
    "sagemaker_job_name",
    "sagemaker_region",
    "sagemaker_container_log_level",
    "sagemaker_submit_directory",
    SCRIPT_SETTING,
)
NAMED = 3
# The ECR repository, in any partition, that `rerail submit` pushes the images of Dockerfiles to.
BUILT = "/rerail-submit"


def find_difference(
    expected: Mapping[str, Any], found: Mapping[str, Any], places: Mapping[str, str], *, entry_point: str = ""
) -> str:
    """Return the differences between a job's request and the expected one, in words; "" if there are none.

    `places` are the S3 addresses that channels must have; `entry_point` is a path that differs between machines.
    """
    asked = [dict(_list_parts(request, entry_point)) for request in (expected, found)]
    names = sorted(name for name in asked[0].keys() | asked[1].keys() if asked[0].get(name) != asked[1].get(name))
    if names:
        return f"another {', '.join(names[:NAMED])}"
    return find_other_place(found, places)


def find_other_place(found: Mapping[str, Any], places: Mapping[str, str]) -> str:
    """Return the first channel whose address is not that in `places`, in words; "" if all are the same."""
    uris = {channel["ChannelName"]: _get_uri(channel) for channel in found.get("InputDataConfig", ())}
    elsewhere = sorted(name for name, place in places.items() if uris.get(name, "").rstrip("/") != place.rstrip("/"))
    return f"it reads {elsewhere[0]} from {uris.get(elsewhere[0]) or 'nowhere'}" if elsewhere else ""


def make_digest(request: Mapping[str, Any]) -> str:
    """Return a SHA-256 of what is compared, without the channels' addresses, in hexadecimal."""
    return hashlib.sha256(json.dumps(sorted(_list_parts(request, ""))).encode()).hexdigest()


def _list_parts(request: Mapping[str, Any], entry_point: str) -> Iterator[tuple[str, str]]:
    algorithm = request.get("AlgorithmSpecification", {})
    yield "image", _find_image(algorithm.get("TrainingImage", ""))
    words = [*algorithm.get("ContainerEntrypoint", ()), *algorithm.get("ContainerArguments", ())]
    yield "entry point", json.dumps([word for word in words if word != entry_point])
    hyperparameters = request.get("HyperParameters", {})
    yield "code", hyperparameters.get("sagemaker_submit_directory", "")
    yield from ((f"hyperparameter {name}", text) for name, text in hyperparameters.items() if name not in JOBS_OWN)
    for name, text in request.get("Environment", {}).items():
        if name not in (VARIABLE, EXECUTION_VARIABLE):  # which each run gets anew
            yield f"environment {name}", text
    yield "output bucket", _get_bucket(request.get("OutputDataConfig", {}).get("S3OutputPath", ""))
    yield "checkpoint bucket", _get_bucket(request.get("CheckpointConfig", {}).get("S3Uri", ""))
    for channel in request.get("InputDataConfig", ()):
        name = channel["ChannelName"]
        yield f"channel {name}", _get_bucket(_get_uri(channel)) if name == CHANNEL else ""


def _find_image(image: str) -> str:
    """Return the image, or the repository of one that `rerail submit` builds: each build has a digest of its own."""
    folder, _, name = image.partition("@")[0].rpartition("/")
    repository = f"{folder}/{name.partition(':')[0]}"
    return repository if repository.endswith(BUILT) else image


def _get_uri(channel: Mapping[str, Any]) -> str:
    return str(channel.get("DataSource", {}).get("S3DataSource", {}).get("S3Uri", ""))


def _get_bucket(uri: str) -> str:
    return uri.removeprefix("s3://").partition("/")[0]
