"""Enable supervision of a job in a launch script: `supervised(...)`, for boto3 and SageMaker's Python SDK."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, TypeVar

from rerail.model.errors import RequestRefused
from rerail.model.metrics import MetricNames, make_definitions
from rerail.model.policy import NAME
from rerail.requests.relaunch import (
    ENVIRONMENT_LIMIT,
    POLICY_TAG,
    RUN_TAG,
    TAG_LIMIT,
    read_signing_key,
    with_signing_key,
)

METRICS_LIMIT = 40
RETRIES_LIMIT = 30
OUR_TAGS = 2  # of a successor: its run and its attempt
CREATE = "provide-client-params.sagemaker.CreateTrainingJob"
V3_ALONE = ("compute", "source_code", "training_image", "algorithm_name")
CHANNEL, CHANNELS_LIMIT = "rerail", 20
# How AWS's PyTorch images start, and the command that makes init PID 1; Python can import from a wheel directly.
IMAGES_OWN, TRAIN = ("bash", "-m", "start_with_right_hostname.sh"), ("train",)
UNDER_INIT = 'export PYTHONPATH=$0${PYTHONPATH:+:$PYTHONPATH}; exec python -m rerail_agent.init "$@"'
T = TypeVar("T")


def supervised(
    job: T,
    policy: str = "default",
    *,
    checkpoints: str = "",
    metrics: bool = True,
    environment: Mapping[str, str] | None = None,
    agent: str = "",
    signed: bool = True,
    retries: int = 0,
) -> T:
    """Return the job with what supervision needs: policy tag, metric definitions, checkpoint folder, environment.

    `job` is a CreateTrainingJob request, or the keyword arguments of an Estimator of the SDK's version 2: these are
    returned as a new dict. Or it is an Estimator, a ModelTrainer of version 3, or a boto3 Session, whose jobs will all
    be supervised: these are changed and returned. Values that the job already sets are kept.

    `checkpoints` is an S3 folder, for a session the parent of its jobs' folders. Without it, all but an Estimator get a
    folder of their own. `metrics=False` omits the definitions of Rerail's metric line, for a script that does not print
    it. `agent` is the agent's wheel in S3, for a request or a session: its init becomes PID 1, so that SIGTERM reaches
    the ranks. That requires an AWS PyTorch image, or ContainerEntrypoint in the request. `signed=False` leaves out the
    key with which the agent signs its reports: unsigned ones are only shown to people. `retries` is how often SageMaker
    itself tries again after an internal error, 1 to 30. Data in FSx or EFS is named as without supervision.

    Raise RequestRefused, which names the field and the remedy, and TypeError for any other kind of job.
    """
    if not NAME.fullmatch(policy):
        raise RequestRefused(f"policy {policy!r}: must be 1-63 letters, digits, '.', '_' or '-', as its file is called")
    if checkpoints and not checkpoints.startswith("s3://"):
        raise RequestRefused(f"checkpoints {checkpoints!r}: must be a folder in S3, s3://bucket/folder/")
    if agent and not (agent.startswith("s3://") and agent.endswith(".whl")):
        raise RequestRefused(f"agent {agent!r}: must be the agent's wheel in S3, s3://bucket/.../rerail_agent-....whl")
    if not 0 <= retries <= RETRIES_LIMIT:
        raise RequestRefused(f"retries {retries}: SageMaker takes 1 to {RETRIES_LIMIT}; leave it out for none")
    additions = JobAdditions(
        tags={POLICY_TAG: policy},
        checkpoints=_with_slash(checkpoints) if checkpoints else "",
        definitions=make_definitions() if metrics else [],
        environment=dict(environment or {}),
        agent=agent,
        signed=signed,
        retries=retries,
    )
    if isinstance(job, Mapping):
        is_request = any(name[:1].isupper() for name in job)
        return additions.in_request(job) if is_request else additions.in_arguments(job)  # type: ignore[return-value]
    if hasattr(job, "with_metric_definitions"):
        additions.in_trainer(job)
    elif hasattr(job, "metric_definitions") and hasattr(job, "checkpoint_s3_uri"):
        additions.in_estimator(job)
    elif hasattr(job, "events") and hasattr(job.events, "register"):
        job.events.register(CREATE, additions.in_parameters)
    else:
        raise TypeError(
            f"supervised() takes a CreateTrainingJob request, an Estimator or its arguments, a ModelTrainer or a boto3 "
            f"Session, not a {type(job).__name__}"
        )
    return job


@dataclass(frozen=True, slots=True)
class JobAdditions:
    """The additions of supervision to a job, for each representation of a job."""

    tags: Mapping[str, str]
    checkpoints: str
    definitions: list[dict[str, str]]
    environment: Mapping[str, str]
    agent: str
    signed: bool
    retries: int

    def in_request(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request for boto3's create_training_job with the additions."""
        request = dict(job)
        algorithm = dict(request.get("AlgorithmSpecification") or {})
        pairs = {tag["Key"]: tag["Value"] for tag in request.get("Tags") or []}
        request["Tags"] = [{"Key": key, "Value": value} for key, value in self._tagged(pairs).items()]
        if metrics := self._with_metrics(algorithm.get("MetricDefinitions") or [], "Name"):
            request["AlgorithmSpecification"] = {**algorithm, "MetricDefinitions": metrics}
        if environment := self._with_environment(request.get("Environment") or {}):
            request["Environment"] = environment
        config = request.get("CheckpointConfig") or {}
        if place := self._place(config.get("S3Uri", "")) or _make_checkpoint_uri(request):
            request["CheckpointConfig"] = {**config, "S3Uri": place}
        if self.retries:
            request.setdefault("RetryStrategy", {"MaximumRetryAttempts": self.retries})
        return wrap_in_init(request, self.agent) if self.agent else request

    def in_parameters(self, params: dict[str, Any], **_: Any) -> None:
        """Change a request that a boto3 session is about to send; its own policy tag and checkpoint folder are kept."""
        tags = [tag["Key"] for tag in params.get("Tags") or []]
        place = f"{self.checkpoints}{params.get('TrainingJobName', '')}/" if self.checkpoints else ""
        here = replace(self, checkpoints=place, tags={} if POLICY_TAG in tags else self.tags)
        params.update(here.in_request(params))

    def in_arguments(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of an Estimator (SDK version 2) with the additions."""
        if unknown := [name for name in V3_ALONE if name in job]:
            raise RequestRefused(f"{unknown[0]} belongs to a ModelTrainer: make one, and call supervised(trainer)")
        self._refuse_agent("an Estimator")
        arguments = dict(job)
        arguments["tags"] = self._tags_of_version_2(job.get("tags"))
        if metrics := self._with_metrics(job.get("metric_definitions") or [], "Name"):
            arguments["metric_definitions"] = metrics
        if place := self._place(job.get("checkpoint_s3_uri") or ""):
            arguments["checkpoint_s3_uri"] = place
        if environment := self._with_environment(job.get("environment") or {}):
            arguments["environment"] = environment
        if self.retries and arguments.get("max_retry_attempts") is None:
            arguments["max_retry_attempts"] = self.retries
        return arguments

    def in_estimator(self, estimator: Any) -> None:
        """Change an Estimator (SDK version 2) before `fit`."""
        names = ["tags", "metric_definitions", "checkpoint_s3_uri", "environment"]
        names += ["max_retry_attempts"] if self.retries else []
        for name, value in self.in_arguments({name: getattr(estimator, name, None) for name in names}).items():
            setattr(estimator, name, value)

    def in_trainer(self, trainer: Any) -> None:
        """Change a ModelTrainer (SDK version 3) before `train`; it converts plain values to its own models."""
        self._refuse_agent("a ModelTrainer")
        if self.retries:
            raise RequestRefused("retries: a ModelTrainer has with_retry_strategy() for it; call that instead")
        pairs = {_field(tag, "key"): _field(tag, "value") for tag in trainer.tags or []}
        trainer.tags = [{"key": key, "value": value} for key, value in self._tagged(pairs).items()]
        trainer.environment = self._with_environment(trainer.environment or {})
        own = [
            {"name": _field(metric, "name"), "regex": _field(metric, "regex")}
            for metric in getattr(trainer, "_metric_definitions", None) or []
        ]
        ours = [{"name": metric["Name"], "regex": metric["Regex"]} for metric in self.definitions]
        if metrics := self._with_metrics(own, "name", ours):
            trainer.with_metric_definitions(metrics)
        config = trainer.checkpoint_config or trainer.with_checkpoint_config().checkpoint_config
        # Without a URI the SDK uses a separate folder for each job.
        if place := self._place(config.s3_uri or ""):
            config.s3_uri = place

    def _refuse_agent(self, job: str) -> None:
        if self.agent:
            raise RequestRefused(f"agent: {job} has no field for it; give supervised() the boto3 session instead")

    def _tagged(self, tags: Mapping[str, str]) -> dict[str, str]:
        policy, present = self.tags.get(POLICY_TAG), tags.get(POLICY_TAG)
        if policy and present and present != policy:
            raise RequestRefused(f"the job has the tag {POLICY_TAG}={present} already, not {policy}; name one of them")
        if RUN_TAG in tags:
            raise RequestRefused(f"the job has the tag {RUN_TAG}, which only relaunches may have; remove it")
        if len(tags.keys() | self.tags.keys()) > TAG_LIMIT - OUR_TAGS:
            raise RequestRefused(f"the job has {len(tags)} tags: a relaunch needs 3 of the {TAG_LIMIT}; remove some")
        return {**tags, **self.tags}

    def _tags_of_version_2(self, tags: Any) -> list[dict[str, str]]:
        """Return the tags as a list of pairs; the SDK accepts a plain dict too."""
        pairs = tags if isinstance(tags, Mapping) else {tag["Key"]: tag["Value"] for tag in tags or []}
        return [{"Key": key, "Value": value} for key, value in self._tagged(pairs).items()]

    def _with_metrics(
        self, own: Iterable[Mapping[str, str]], key: str, ours: list[dict[str, str]] | None = None
    ) -> list[dict[str, str]]:
        """Return the job's metric definitions with Rerail's added.

        A job that already defines a loss or a step keeps its own only, because its log has no metric line of Rerail.
        """
        metrics = [dict(metric) for metric in own]
        names = {metric[key] for metric in metrics}
        if names & {MetricNames().step, MetricNames().loss}:
            return metrics
        metrics += [m for m in (self.definitions if ours is None else ours) if m[key] not in names]
        if len(metrics) > METRICS_LIMIT:
            raise RequestRefused(
                f"{len(metrics)} metric definitions are too many, at most {METRICS_LIMIT}; remove some"
            )
        return metrics

    def _place(self, own: str) -> str:
        place = own or self.checkpoints
        return _with_slash(place) if place else ""

    def _with_environment(self, own: Mapping[str, str]) -> dict[str, str]:
        environment = {**self.environment, **own}
        if len(environment) > ENVIRONMENT_LIMIT - OUR_TAGS:
            raise RequestRefused(
                f"Environment would have {len(environment)} variables: a relaunch needs a few; remove some"
            )
        has_key = not self.signed or read_signing_key({"Environment": environment})
        signed: dict[str, str] = with_signing_key({"Environment": environment}, token_hex(32))["Environment"]
        return environment if has_key else signed


def wrap_in_init(request: Mapping[str, Any], wheel: str) -> dict[str, Any]:
    """Return the request with the agent's init as PID 1 before the container's command, and the wheel as a channel."""
    channels = list(request.get("InputDataConfig") or [])
    if any(channel["ChannelName"] == CHANNEL for channel in channels):
        return dict(request)  # already added
    if len(channels) >= CHANNELS_LIMIT:
        raise RequestRefused(f"the agent's channel would be one more than {CHANNELS_LIMIT}; join some channels")
    algorithm = dict(request.get("AlgorithmSpecification") or {})
    command, arguments = algorithm.get("ContainerEntrypoint") or [], algorithm.get("ContainerArguments") or []
    if not command:
        if "pytorch-training" not in algorithm.get("TrainingImage", ""):
            raise RequestRefused("agent: what the image starts is not known; name it in ContainerEntrypoint")
        command, arguments = [*IMAGES_OWN], arguments or [*TRAIN]
    place = f"/opt/ml/input/data/{CHANNEL}/{wheel.rpartition('/')[2]}"
    source = {"S3DataType": "S3Prefix", "S3Uri": wheel, "S3DataDistributionType": "FullyReplicated"}
    channel = {"ChannelName": CHANNEL, "InputMode": "File", "DataSource": {"S3DataSource": source}}
    entry = {"ContainerEntrypoint": ["/bin/sh", "-c", UNDER_INIT, place], "ContainerArguments": [*command, *arguments]}
    return {**request, "AlgorithmSpecification": {**algorithm, **entry}, "InputDataConfig": [*channels, channel]}


def _with_slash(uri: str) -> str:
    # Without the slash `runs/a-1` would also restore every checkpoint of `runs/a-10`.
    return uri if uri.endswith("/") else f"{uri}/"


def _make_checkpoint_uri(request: Mapping[str, Any]) -> str:
    if "RERAIL_CHECKPOINTS" in (request.get("Environment") or {}):
        return ""  # its checkpoints are stored elsewhere
    output = (request.get("OutputDataConfig") or {}).get("S3OutputPath", "")
    name = request.get("TrainingJobName", "")
    return f"{_with_slash(output)}{name}/checkpoints/" if output and name else ""


def _field(thing: Any, name: str) -> Any:
    return thing[name] if isinstance(thing, Mapping) else getattr(thing, name)
