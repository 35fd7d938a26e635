"""The jobs of an acceptance: their requests, made as `rerail submit` makes them, and the agent that they are given."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from cli.acceptance.cleanup import STORE, TAG
from cli.acceptance.trials import INSTANCE_TYPE, LOSS_METRIC, MAX_RUNTIME_S, STEP_METRIC, AcceptanceTrial
from cli.place import Place
from cli.project import ROOT
from cli.submit import delivery
from cli.submit.account import SubmissionAccount
from cli.submit.packing import Source
from cli.submit.request import WARMEST_S, JobRequest, make_training_request
from cli.submit.screen import SubmitScreen
from cli.submit.settings import SubmitSettings
from cli.submit.stages import make_local_entrypoint
from rerail.requests.relaunch import with_signing_key

PROGRAM = "acceptance_job.py"
# What the agent needs beside what AWS's PyTorch image has; its toolkit installs the file.
REQUIREMENTS = b"xxhash>=3.4\n"
WHEEL = "rerail_agent-0-py3-none-any.whl"
# Of Rerail's core, what the agent imports: the same as in agent/hatch_build.py.
CORE = ("__init__.py", "model", "detection", "accounting", "requests")


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The settings that all jobs of an acceptance share."""

    id: str
    role: str
    bucket: str
    image: str
    policy: str
    region: str
    scale: float
    is_local: bool
    # The settings of the network and encryption that the account demands.
    protection: Mapping[str, Any] = field(default_factory=dict)

    @property
    def store(self) -> str:
        """The S3 folder of everything that is uploaded and written, but what is quarantined."""
        return f"s3://{self.bucket}/{STORE}{self.id}/"

    def make_request(self, trial: AcceptanceTrial, code: Source) -> JobRequest:
        """Return the trial's job as a submission."""
        name = f"{self.id}-{trial.name}"
        metrics = {} if trial.agent else {"step": STEP_METRIC, "loss": LOSS_METRIC}
        return JobRequest(
            name=name,
            role=self.role,
            region=self.region,
            image=self.image,
            folder=f"{self.store}{name}/",
            program=code.entry,
            code=f"{self.store}code/{code.digest}/sourcedir.tar.gz",
            settings=SubmitSettings(
                instance_type=INSTANCE_TYPE,
                volume=trial.volume_gb,
                policy=self.policy,
                # The local AWS divides them by its scale; Rerail's own waits keep real time under an unscaled policy.
                max_runtime=f"{round(MAX_RUNTIME_S * self.scale)}s",
                max_wait=f"{round(2 * MAX_RUNTIME_S * self.scale)}s",
                keep_alive=f"{round(min(trial.scenario.keep_alive * self.scale, WARMEST_S))}s",
                spot=trial.scenario.spot,
                tags={TAG: self.id},
                env=dict(trial.make_environment(self.scale)),
                **self.protection,
            ),
            metrics=metrics or None,
            agent=f"{self.store}agent/{WHEEL}" if trial.agent and not self.is_local else "",
            entrypoint=make_local_entrypoint(trial.agent) if self.is_local else (),
        )


def pack_code() -> Source:
    """Return the job's script and what it requires."""
    return Source(
        PROGRAM,
        {PROGRAM: ((ROOT / "container" / PROGRAM).read_bytes(), False), "requirements.txt": (REQUIREMENTS, False)},
    )


def write_agent(folder: Path) -> Path:
    """Write the agent as an archive from which Python can import; return its path."""
    files = {"rerail_agent": ROOT / "agent" / "rerail_agent"}
    files |= {f"rerail/{name}": ROOT / "lambdas" / "rerail" / name for name in CORE}
    path = folder / WHEEL
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in files.items():
            for file in [source] if source.is_file() else sorted(source.rglob("*.py")):
                inner = name if source.is_file() else f"{name}/{file.relative_to(source).as_posix()}"
                archive.write(file, inner)
    return path


def start(plan: JobPlan, request: JobRequest, code: Source, wheel: str, where: Place) -> Mapping[str, Any]:
    """Upload what the job needs and start it; return what SageMaker was sent. Raise Problem if it is refused."""
    sent = with_signing_key(make_training_request(request), token_hex(32))
    job = replace(request, settings=replace(request.settings, agent=wheel))
    delivery.start(SubmissionAccount(plan.is_local), job, sent, code, where, QuietScreen(as_json=True))
    return sent


class QuietScreen(SubmitScreen):
    """The screen of a submission that this command starts: it has lines of its own."""

    def say(self, text: str) -> None:
        return
