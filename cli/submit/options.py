"""What the options of a submission mean: names, pairs, paths, buckets, images and metrics."""

import re
from collections.abc import Mapping
from pathlib import Path

from cli.place import now
from cli.submit.account import SubmissionAccount
from cli.submit.channels import check_channel_name
from cli.submit.images import PYTORCH, find_aws_image
from cli.submit.packing import Source
from cli.submit.problem import Problem
from cli.submit.screen import SubmitScreen
from cli.submit.settings import SubmitSettings
from cli.training_logs.expressions import REMEDY, find_flaw_in_time
from rerail.requests.identity import COMMAND_SCRIPT

LOCAL_IMAGE = "rerail-training:local"
LOCAL_BUCKET = "sagemaker-local"
COMMAND_STEM = Path(COMMAND_SCRIPT).stem
# A script that has these in it prints our metric line.
AGENT = ("rerail_agent", "rerail step=")


def make_name(script: Path, source: Source, project: str = "") -> str:
    """Return the name of the script, or of its folder if the script has a usual name, with project and time."""
    path = script.expanduser().resolve()
    stem = Path(source.entry).stem
    name = (path if path.is_dir() else path.parent).name if stem in ("train", "main", COMMAND_STEM) else stem
    words = "-".join(re.findall("[a-zA-Z0-9]+", f"{project} {name}")) or "training"
    return f"{words[:40].rstrip('-')}-{now():%Y%m%d-%H%M%S}"


def check_project(project: str) -> None:
    """Raise Problem if the project's name cannot begin a job's name."""
    if project and not re.fullmatch(r"(?!.{31})[a-zA-Z0-9](-*[a-zA-Z0-9]){0,29}", project):
        raise Problem(
            f"project {project}: not a name that a job's name can begin with",
            "use 1-30 letters and digits, with single - between",
        )


def parse_pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """Return NAME=VALUE options by name; raise Problem if a name repeats."""
    found: dict[str, str] = {}
    for text in given or ():
        name, is_pair, value = text.partition("=")
        if not is_pair or not name:
            raise Problem(f"{option} {text}: not NAME=VALUE", f"write {option} NAME=VALUE")
        if name in found:
            raise Problem(f"{option} {name}: given twice", "give it once")
        found[name] = value
    return found


def check_local_path(option: str, given: str | Path) -> Path:
    """Return the absolute path, which need not exist; raise Problem if no file system accepts the name."""
    try:
        path = Path(given).expanduser().resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Problem(f"{option} {str(given)[:200]}: {why}", "give a path of this machine") from error
    return path


def check_inputs(paths: Mapping[str, str]) -> None:
    """Raise Problem for a channel's name that SageMaker refuses, and for a path that does not exist."""
    for channel, path in paths.items():
        check_channel_name("--input", channel)
        if not path.startswith("s3://") and not check_local_path("--input", path).exists():
            raise Problem(f"--input {channel}={path}: there is no such file or folder", "give a path or s3://...")


def find_wheel(given: str) -> str:
    """Return the agent's wheel, a local file or an S3 URI."""
    if given and not given.endswith(".whl"):
        raise Problem(f"--agent {given}: not a wheel", "make one: pip wheel --no-deps ./agent")
    if given and not given.startswith("s3://") and not check_local_path("--agent", given).is_file():
        raise Problem(f"--agent {given}: there is no such file", "make one: pip wheel --no-deps ./agent")
    return given


def find_bucket(account: SubmissionAccount, bucket: str) -> str:
    """Return the given bucket, or the default one."""
    if bucket:
        return bucket.removeprefix("s3://").rstrip("/")
    return LOCAL_BUCKET if account.is_local else account.find_default_bucket()


def find_image(account: SubmissionAccount, settings: SubmitSettings) -> str:
    """Return the image of the settings, or AWS's; the local AWS has one of its own."""
    if settings.image or account.is_local:
        return settings.image or LOCAL_IMAGE
    machine = _typed(settings.instance_type)
    return find_aws_image(settings.framework or PYTORCH, settings.framework_version, machine, account.region)


def find_recipe(settings: SubmitSettings, *, is_local: bool) -> Path | None:
    """Return the Dockerfile of the image to build, or None; raise Problem if another image is named too."""
    if not settings.dockerfile:
        return None
    if settings.image or settings.framework or settings.framework_version or is_local:
        raise Problem(
            "dockerfile: it is built for SageMaker, in place of --image and AWS's images",
            "leave out --image, framework, framework_version and --local",
        )
    path = Path(settings.dockerfile)
    return path / "Dockerfile" if path.is_dir() else path


def _typed(machine: str) -> str:
    if len(machine.split(".")) != 3:
        raise Problem(f"--instance-type {machine}: not a type of SageMaker's", "they look like ml.g5.xlarge")
    return machine


def find_metrics(source: Source, own: dict[str, str], screen: SubmitScreen) -> dict[str, str] | None:
    """Return the given metric definitions, Rerail's own if the script prints its line, or none."""
    if own:
        return own
    if source.mentions(*AGENT):
        return None
    screen.say(f"the loss is not watched: name it in the log with --metric; {REMEDY}")
    return {}


def check_metrics(given: dict[str, str], screen: SubmitScreen) -> dict[str, str]:
    """Return the metric definitions; raise Problem for one that would misread the loss, and say what else is odd."""
    for name in sorted(given.keys() & {"loss", "grad_norm"}):
        if flaw := find_flaw_in_time(given[name]):
            if flaw.is_certain:
                raise Problem(f"--metric {name}: the expression {flaw.text}", REMEDY)
            screen.say(f"--metric {name}: the expression {flaw.text}; {REMEDY}")
    return given
