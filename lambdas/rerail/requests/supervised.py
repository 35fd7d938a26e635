"""One line in a launching script has a job supervised: `supervised(...)`, for boto3 and SageMaker's Python SDK."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from rerail.model.errors import RequestRefused
from rerail.model.metrics import MetricNames, definitions
from rerail.model.policy import NAME
from rerail.requests.relaunch import ENVIRONMENT_LIMIT, POLICY_TAG, TAG_LIMIT

METRICS_LIMIT = 40
OUR_TAGS = 2  # of a successor: its run and its attempt
CREATE = "provide-client-params.sagemaker.CreateTrainingJob"
V3_ALONE = ("compute", "source_code", "training_image", "algorithm_name")
CHANNEL, CHANNELS_LIMIT = "rerail", 20
# How AWS's PyTorch images start, and how init becomes PID 1 in front of it: a wheel is a zip, Python reads from it.
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
) -> T:
    """The same job, supervised by Rerail under this policy: tag, metric definitions, checkpoint folder, environment.

    `job` is a CreateTrainingJob request, or the keyword arguments of an Estimator of the SDK's version 2: these come
    back as a new dict. Or it is an Estimator, a ModelTrainer of version 3, or a boto3 Session, whose jobs will all be
    supervised: these are changed, and come back. What the job says itself stands.

    `checkpoints` is an S3 folder, for a session the one above its jobs'; where it is left out, all but an Estimator are
    given one of their own. `metrics=False` leaves out the definitions of Rerail's metric line, for a script that does
    not print it. `agent` is the agent's wheel in S3, for a request or a session: its init becomes PID 1, so that
    SIGTERM reaches the ranks, where the image starts as AWS's do or ContainerEntrypoint says what it runs.

    Raises RequestRefused, which names the field and the remedy, and TypeError for anything else.
    """
    if not NAME.fullmatch(policy):
        raise RequestRefused(f"policy {policy!r}: must be 1-63 letters, digits, '.', '_' or '-', as its file is called")
    if checkpoints and not checkpoints.startswith("s3://"):
        raise RequestRefused(f"checkpoints {checkpoints!r}: must be a folder in S3, s3://bucket/folder/")
    if agent and not (agent.startswith("s3://") and agent.endswith(".whl")):
        raise RequestRefused(f"agent {agent!r}: must be the agent's wheel in S3, s3://bucket/.../rerail_agent-....whl")
    wishes = JobAdditions(policy, _folder(checkpoints) if checkpoints else "", metrics, dict(environment or {}), agent)
    if isinstance(job, Mapping):
        return wishes.in_arguments(job) if _is_snake(job) else wishes.in_request(job)  # type: ignore[return-value]
    if hasattr(job, "with_metric_definitions"):
        wishes.in_trainer(job)
    elif hasattr(job, "metric_definitions") and hasattr(job, "checkpoint_s3_uri"):
        wishes.in_estimator(job)
    elif hasattr(job, "events") and hasattr(job.events, "register"):
        job.events.register(CREATE, wishes.in_parameters)
    else:
        raise TypeError(
            f"supervised() takes a CreateTrainingJob request, an Estimator or its arguments, a ModelTrainer or a boto3 "
            f"Session, not a {type(job).__name__}"
        )
    return job


class JobAdditions:
    """What is added to a job, in each of the shapes that a job comes in."""

    def __init__(
        self, policy: str, checkpoints: str, metrics: bool, environment: Mapping[str, str], agent: str
    ) -> None:
        self.tags = {POLICY_TAG: policy}
        self.checkpoints, self.environment, self.agent = checkpoints, environment, agent
        self.definitions = definitions() if metrics else []

    def in_request(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """A request for boto3's create_training_job."""
        request = dict(job)
        algorithm = dict(request.get("AlgorithmSpecification") or {})
        pairs = {tag["Key"]: tag["Value"] for tag in request.get("Tags") or []}
        request["Tags"] = [{"Key": key, "Value": value} for key, value in self._tagged(pairs).items()]
        if found := self._measured(algorithm.get("MetricDefinitions") or [], "Name"):
            request["AlgorithmSpecification"] = {**algorithm, "MetricDefinitions": found}
        if told := self._told(request.get("Environment") or {}):
            request["Environment"] = told
        config = request.get("CheckpointConfig") or {}
        if place := self._place(config.get("S3Uri", "")) or _own_place(request):
            request["CheckpointConfig"] = {**config, "S3Uri": place}
        return under_init(request, self.agent) if self.agent else request

    def in_parameters(self, params: dict[str, Any], **_: Any) -> None:
        """A request on its way through a boto3 session. A policy of its own stands, and it has a folder of its own."""
        tags = [tag["Key"] for tag in params.get("Tags") or []]
        place = f"{self.checkpoints}{params.get('TrainingJobName', '')}/" if self.checkpoints else ""
        here = JobAdditions("", place, bool(self.definitions), self.environment, self.agent)
        here.tags = {} if POLICY_TAG in tags else self.tags
        params.update(here.in_request(params))

    def in_arguments(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments of an Estimator, SDK version 2."""
        if strangers := [name for name in V3_ALONE if name in job]:
            raise RequestRefused(f"{strangers[0]} belongs to a ModelTrainer: make one, and call supervised(trainer)")
        self._refuse_agent("an Estimator")
        arguments = dict(job)
        arguments["tags"] = self._tags_of_version_2(job.get("tags"))
        if found := self._measured(job.get("metric_definitions") or [], "Name"):
            arguments["metric_definitions"] = found
        if place := self._place(job.get("checkpoint_s3_uri") or ""):
            arguments["checkpoint_s3_uri"] = place
        if told := self._told(job.get("environment") or {}):
            arguments["environment"] = told
        return arguments

    def in_estimator(self, estimator: Any) -> None:
        """An Estimator, SDK version 2, before `fit`."""
        names = ("tags", "metric_definitions", "checkpoint_s3_uri", "environment")
        for name, value in self.in_arguments({name: getattr(estimator, name, None) for name in names}).items():
            setattr(estimator, name, value)

    def in_trainer(self, trainer: Any) -> None:
        """A ModelTrainer, SDK version 3, before `train`. It makes its own models of the plain values."""
        self._refuse_agent("a ModelTrainer")
        pairs = {_field(tag, "key"): _field(tag, "value") for tag in trainer.tags or []}
        trainer.tags = [{"key": key, "value": value} for key, value in self._tagged(pairs).items()]
        trainer.environment = self._told(trainer.environment or {})
        own = [
            {"name": _field(each, "name"), "regex": _field(each, "regex")}
            for each in getattr(trainer, "_metric_definitions", None) or []
        ]
        ours = [{"name": each["Name"], "regex": each["Regex"]} for each in self.definitions]
        if found := self._measured(own, "name", ours):
            trainer.with_metric_definitions(found)
        config = trainer.checkpoint_config or trainer.with_checkpoint_config().checkpoint_config
        # Without an address the SDK fills in a folder of each job's own.
        if place := self._place(config.s3_uri or ""):
            config.s3_uri = place

    def _refuse_agent(self, job: str) -> None:
        if self.agent:
            raise RequestRefused(f"agent: {job} has no field for it; give supervised() the boto3 session instead")

    def _tagged(self, tags: Mapping[str, str]) -> dict[str, str]:
        asked, there = self.tags.get(POLICY_TAG), tags.get(POLICY_TAG)
        if asked and there and there != asked:
            raise RequestRefused(f"the job has the tag {POLICY_TAG}={there} already, not {asked}; name one of the two")
        if len(tags.keys() | self.tags.keys()) > TAG_LIMIT - OUR_TAGS:
            raise RequestRefused(f"the job has {len(tags)} tags: a relaunch needs 3 of the {TAG_LIMIT}; remove some")
        return {**tags, **self.tags}

    def _tags_of_version_2(self, tags: Any) -> list[dict[str, str]]:
        """The SDK takes a list of pairs, and a plain dict too."""
        pairs = tags if isinstance(tags, Mapping) else {tag["Key"]: tag["Value"] for tag in tags or []}
        return [{"Key": key, "Value": value} for key, value in self._tagged(pairs).items()]

    def _measured(
        self, own: Iterable[Mapping[str, str]], key: str, ours: list[dict[str, str]] | None = None
    ) -> list[dict[str, str]]:
        """A job with a loss or a step of its own is read by those alone: ours would only be missed in its log."""
        found = [dict(each) for each in own]
        names = {each[key] for each in found}
        if names & {MetricNames().step, MetricNames().loss}:
            return found
        found += [each for each in (self.definitions if ours is None else ours) if each[key] not in names]
        if len(found) > METRICS_LIMIT:
            raise RequestRefused(f"{len(found)} metric definitions are too many, at most {METRICS_LIMIT}; remove some")
        return found

    def _place(self, own: str) -> str:
        place = own or self.checkpoints
        return _folder(place) if place else ""

    def _told(self, own: Mapping[str, str]) -> dict[str, str]:
        told = {**self.environment, **own}
        if len(told) > ENVIRONMENT_LIMIT - OUR_TAGS:
            raise RequestRefused(f"Environment would have {len(told)} variables: a relaunch needs a few; remove some")
        return told


def under_init(request: Mapping[str, Any], wheel: str) -> dict[str, Any]:
    """The request with the agent's init as PID 1 in front of what its container runs, and the wheel as a channel."""
    channels = list(request.get("InputDataConfig") or [])
    if any(channel["ChannelName"] == CHANNEL for channel in channels):
        return dict(request)  # it is there already
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


def _is_snake(job: Mapping[str, Any]) -> bool:
    return not any(name[:1].isupper() for name in job)


def _folder(uri: str) -> str:
    # Without the slash `runs/a-1` would also restore every checkpoint of `runs/a-10`.
    return uri if uri.endswith("/") else f"{uri}/"


def _own_place(request: Mapping[str, Any]) -> str:
    if "RERAIL_CHECKPOINTS" in (request.get("Environment") or {}):
        return ""  # it saves elsewhere
    output = (request.get("OutputDataConfig") or {}).get("S3OutputPath", "")
    name = request.get("TrainingJobName", "")
    return f"{_folder(output)}{name}/checkpoints/" if output and name else ""


def _field(thing: Any, name: str) -> Any:
    return thing[name] if isinstance(thing, Mapping) else getattr(thing, name)
