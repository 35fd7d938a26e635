"""The request of a relaunch: the same job by another name, in a form that SageMaker takes back."""

import copy
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import botocore.session
import pytest
from botocore.validate import ParamValidator

from rerail.model.actions import CreateJob, Machines
from rerail.model.checkpoint_intervals import SaveInterval
from rerail.model.errors import RequestRefused
from rerail.model.thresholds import PlannedChange, Thresholds
from rerail.requests.relaunch import find_refusal, make_request, read_checkpoint_uri, rebuild
from rerail_agent.settings import AgentSettings

DATA = Path(__file__).parent / "data"
OPERATION = botocore.session.get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob")
MEMBERS = frozenset(OPERATION.input_shape.members)
TAGS = {"team": "nlp", "note": "", "rerail:policy": "default", "aws:cloudformation:stack-name": "Research"}
SECOND = CreateJob("gpt-7b-a002", attempt=2, resume_step=1000)


def described(name: str = "full", **changes) -> dict:
    return {**json.loads((DATA / f"describe_{name}.json").read_text()), **changes}


def rebuilt(name: str = "full", **changes) -> dict:
    return rebuild(described(name, **changes), TAGS, members=MEMBERS)


def second(action: CreateJob = SECOND, **changes) -> dict:
    return make_request({**rebuilt(), **changes}, action, run="gpt-7b")


def complaints(request: dict) -> str:
    return ParamValidator().validate(request, OPERATION.input_shape).generate_report()


@pytest.mark.parametrize("name", ["full", "script_mode"])
def test_sagemaker_would_take_it(name):
    """What is rebuilt, and what is made of it, passes the SDK's own validation of CreateTrainingJob."""
    assert complaints(rebuilt(name)) == ""
    assert complaints(make_request(rebuilt(name), SECOND, run="gpt-7b")) == ""


def test_the_samples_have_the_members_of_a_description():
    """Every member of the full sample is one that DescribeTrainingJob returns, so that the test tests something."""
    service = botocore.session.get_session().get_service_model("sagemaker")
    members = set(service.operation_model("DescribeTrainingJob").output_shape.members) | {"ResponseMetadata"}
    for name in ("full", "script_mode"):
        assert set(described(name)) <= members
        assert complaints(described(name)) != "", "a raw description is no request"


def test_what_the_user_asked_for_is_carried():
    """Image, data, machines, retries and isolation are what they were."""
    before, after = described(), rebuilt()
    for name in ("RoleArn", "StoppingCondition", "RetryStrategy", "InfraCheckConfig", "VpcConfig", "CheckpointConfig"):
        assert after[name] == before[name]
    assert after["InputDataConfig"][1] == before["InputDataConfig"][1]
    assert after["EnableInterContainerTrafficEncryption"] is True
    assert after["EnableNetworkIsolation"] is False, "a plain no is an answer, not an empty value"
    assert after["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 1800


def test_what_only_describe_knows_is_left_behind():
    request = rebuilt()
    assert set(request) <= MEMBERS
    assert not {"TrainingJobStatus", "WarmPoolStatus", "ModelArtifacts", "ResponseMetadata"} & set(request)
    assert not {"SelectedInstanceType", "SelectedInstanceCount"} & set(request["ResourceConfig"])
    assert request["ResourceConfig"]["InstancePreferences"] == described()["ResourceConfig"]["InstancePreferences"]


def test_empty_answers_are_left_out_of_the_request():
    """Empty strings, lists and objects disappear at every depth; most of them would be refused."""
    request = rebuilt()
    assert request["OutputDataConfig"] == {"S3OutputPath": "s3://bucket/out/", "CompressionType": "NONE"}
    assert "VolumeKmsKeyId" not in request["ResourceConfig"]
    channel = request["InputDataConfig"][0]
    assert "ContentType" not in channel
    assert "AttributeNames" not in channel["DataSource"]["S3DataSource"]
    assert request["DebugHookConfig"]["CollectionConfigurations"] == [{"CollectionName": "losses"}]
    assert not {"DebugRuleConfigurations", "ProfilerRuleConfigurations"} & set(request)
    assert "Environment" not in rebuilt("script_mode")


def test_an_empty_value_of_the_users_own_means_something():
    """`PYTHONOPTIMIZE=""` and an empty hyperparameter are kept: there the emptiness is the message."""
    request = rebuilt()
    assert request["Environment"]["PYTHONOPTIMIZE"] == ""
    assert request["HyperParameters"]["note"] == ""


@pytest.mark.parametrize("vpc", [{}, {"Subnets": ["sub-1"]}, {"SecurityGroupIds": [], "Subnets": ["sub-1"]}, None])
def test_half_a_network_is_none(vpc):
    assert "VpcConfig" not in rebuilt(VpcConfig=vpc)


def test_the_users_tags_are_carried_and_reserved_ones_are_not():
    """`aws:` tags are SageMaker's own to give; an empty value is a value."""
    assert rebuilt()["Tags"] == [
        {"Key": "team", "Value": "nlp"},
        {"Key": "note", "Value": ""},
        {"Key": "rerail:policy", "Value": "default"},
    ]
    assert "Tags" not in rebuild(described(), {"aws:x": "y"}, members=MEMBERS)


def test_nothing_that_was_given_is_changed():
    description = described()
    request = rebuild(description, TAGS, members=MEMBERS)
    assert description == described()
    before = copy.deepcopy(request)
    make_request(request, SECOND, run="gpt-7b")
    assert request == before


def test_an_attempt_knows_who_it_is():
    """Run, attempt and the step to resume from travel in the environment, beside the user's own variables."""
    assert second()["Environment"] == {
        "NCCL_DEBUG": "INFO",
        "PYTHONOPTIMIZE": "",
        "RERAIL_RUN": "gpt-7b",
        "RERAIL_ATTEMPT": "2",
        "RERAIL_RESUME_STEP": "1000",
    }


def test_a_job_with_a_tracking_run_gets_the_cause_of_its_restart():
    """That of this restart, not of an earlier one."""
    action = replace(SECOND, previous_cause="diverged")
    tracked = {"RERAIL_TRACKING": "on", "RERAIL_PREVIOUS_CAUSE": "oom"}
    assert second(action, Environment=tracked)["Environment"]["RERAIL_PREVIOUS_CAUSE"] == "diverged"
    assert "RERAIL_PREVIOUS_CAUSE" not in second(SECOND, Environment=tracked)["Environment"]
    assert "RERAIL_PREVIOUS_CAUSE" not in second(action)["Environment"]


def test_the_agent_gets_the_thresholds_of_the_policy():
    """Only those that differ from the defaults; what the job itself sets comes first."""
    planned = (PlannedChange(20_000, "sequence length 8192"),)
    changed = Thresholds(patience_rows=40, stall_floor=timedelta(minutes=2), planned=planned)
    given = make_request(rebuilt(), SECOND, run="gpt-7b", detection=changed)["Environment"]["RERAIL_DETECTION"]
    assert AgentSettings.from_environment({"RERAIL_DETECTION": given}, pytest.fail).detection == changed
    own = {**rebuilt(), "Environment": {"RERAIL_DETECTION": "{}"}}
    assert make_request(own, SECOND, run="gpt-7b", detection=changed)["Environment"]["RERAIL_DETECTION"] == "{}"
    assert "RERAIL_DETECTION" not in make_request(rebuilt(), SECOND, run="gpt", detection=Thresholds())["Environment"]


def test_the_agent_gets_the_bounds_of_the_checkpoint_interval_and_the_failure_rate():
    """What the job sets comes before the policy; the estimate of an earlier launch is replaced."""

    def launch(interval: SaveInterval, **own: str) -> dict[str, str]:
        request = {**rebuilt(), "Environment": own}
        return make_request(request, SECOND, run="gpt-7b", interval=interval, mtbf_s=11_124.3)["Environment"]

    changed = SaveInterval(longest=timedelta(minutes=20), most_share=0.02)
    read = AgentSettings.from_environment(launch(changed, RERAIL_MTBF_SECONDS="5"), pytest.fail)
    assert (read.interval, read.mtbf_s) == (changed, 11_124)
    assert launch(SaveInterval(automatic=False))["RERAIL_SAVE_INTERVAL"] == "off"
    assert launch(changed, RERAIL_SAVE_INTERVAL="off")["RERAIL_SAVE_INTERVAL"] == "off"
    assert "RERAIL_SAVE_INTERVAL" not in launch(SaveInterval())


def test_thresholds_never_take_the_last_variable():
    """A job with as many variables as SageMaker allows is launched with the default thresholds."""
    full = {**rebuilt(), "Environment": {f"V{number}": "" for number in range(97)}}
    launched = make_request(full, SECOND, run="gpt-7b", detection=Thresholds(patience_rows=40))["Environment"]
    assert len(launched) == 100 and "RERAIL_DETECTION" not in launched


def test_an_attempt_from_the_start_gets_step_0():
    """A step left over from the request that it is made of would resume from the wrong place."""
    for step in (None, 0):
        assert second(CreateJob("gpt-7b-a002", 2, step))["Environment"]["RERAIL_RESUME_STEP"] == "0"


@pytest.mark.parametrize(
    ("place", "uri"),
    [
        ("", "s3://bucket/gpt"),
        ("s3://bucket/direct/", "s3://bucket/direct/"),
        ("/opt/ml/checkpoints/", "s3://bucket/gpt"),
        ("/opt/ml/checkpoints/night", "s3://bucket/gpt/night"),
        ("/opt/ml/checkpoints-of-mine", ""),
        ("/fsx/checkpoints", ""),
    ],
)
def test_checkpoints_are_looked_for_where_the_job_writes_them(place, uri):
    """A job that writes elsewhere leaves the folder empty that SageMaker copies; a file system nobody else can see."""
    config = {"S3Uri": "s3://bucket/gpt"}
    assert read_checkpoint_uri({"CheckpointConfig": config, "Environment": {"RERAIL_CHECKPOINTS": place}}) == uri
    assert not read_checkpoint_uri({"Environment": {"RERAIL_CHECKPOINTS": place}}) or place.startswith("s3://")


@pytest.mark.parametrize("place", ["/fsx/checkpoints", ""])
def test_an_attempt_with_unreadable_checkpoints_gets_no_step(place):
    """A script that saves to a file system of its own goes on from what lies there; Rerail cannot know of it."""
    request = rebuild(described(), TAGS, members=MEMBERS)
    request["Environment"] = {"RERAIL_RESUME_STEP": "40", "RERAIL_CHECKPOINTS": place}
    if not place:
        del request["CheckpointConfig"]
    launched = make_request(request, CreateJob("gpt-7b-a002", 2, None), run="gpt-7b")
    assert "RERAIL_RESUME_STEP" not in launched["Environment"]


def test_an_attempt_is_found_by_its_tags():
    tags = [{"Key": "rerail:run", "Value": "old"}, {"Key": "team", "Value": "nlp"}]
    assert {tag["Key"]: tag["Value"] for tag in second(Tags=tags)["Tags"]} == {
        "team": "nlp",
        "rerail:run": "gpt-7b",
        "rerail:attempt": "2",
    }


def test_the_job_is_renamed_wherever_its_name_stands():
    """The toolkit reads the job's name from a hyperparameter, in JSON: it has to be the new one."""
    request = second()
    assert request["TrainingJobName"] == "gpt-7b-a002"
    assert request["HyperParameters"]["sagemaker_job_name"] == '"gpt-7b-a002"'
    assert request["HyperParameters"]["epochs"] == "3"


def test_no_hyperparameter_is_invented():
    """Script mode turns each into a flag, and an unknown flag ends the script."""
    plain = second(HyperParameters={"epochs": "3"})
    assert plain["HyperParameters"] == {"epochs": "3"}
    without = {name: value for name, value in rebuilt().items() if name != "HyperParameters"}
    assert "HyperParameters" not in make_request(without, SECOND, run="gpt-7b")


def test_checkpoints_are_a_folder_not_a_prefix():
    """Without the slash `gpt-7b` would restore every checkpoint of `gpt-7b-2` as well."""
    assert second()["CheckpointConfig"] == {
        "S3Uri": "s3://bucket/checkpoints/gpt-7b/",
        "LocalPath": "/opt/ml/checkpoints",
    }
    assert second(CheckpointConfig={"S3Uri": "s3://bucket/x/"})["CheckpointConfig"] == {"S3Uri": "s3://bucket/x/"}
    assert "CheckpointConfig" not in make_request(rebuilt("script_mode"), SECOND, run="gpt-7b")


def test_an_environment_has_room_for_a_hundred():
    """97 of the user's own and 3 of ours are the most that SageMaker takes; one more is refused before it is sent."""
    assert len(second(Environment={f"V{n}": "x" for n in range(97)})["Environment"]) == 100
    with pytest.raises(
        RequestRefused, match="Environment would have 101 variables, at most 100 are allowed; remove some"
    ):
        second(Environment={f"V{n}": "x" for n in range(98)})


@pytest.mark.parametrize(
    ("member", "value", "reason"),
    [
        (
            "AutoMLJobArn",
            "arn:aws:sagemaker:…:automl-job/x",
            "it belongs to an AutoML job, which launches its own jobs",
        ),
        ("TuningJobArn", "arn:aws:sagemaker:…:tuning-job/x", "it belongs to a hyperparameter tuning job, which"),
        ("LabelingJobArn", "arn:aws:sagemaker:…:labeling-job/x", "it belongs to a labeling job, which"),
        ("ServerlessJobConfig", {"JobType": "FineTuning"}, "it is a serverless customization job, whose machines"),
        ("ModelPackageConfig", {"ModelPackageGroupArn": "arn:…"}, "it is a serverless customization job, whose"),
    ],
)
def test_jobs_that_are_not_ours_to_launch_are_refused(member, value, reason):
    """Jobs that another service launches, or that have no machines of their own, can never be launched again by us."""
    assert find_refusal(described(**{member: value})).startswith(reason)


@pytest.mark.parametrize("empty", ["", None, {}])
def test_an_empty_answer_is_no_reason(empty):
    assert find_refusal(described(TuningJobArn=empty, ServerlessJobConfig=empty)) == ""


def moved(machines: Machines, **changes) -> dict:
    on_one_type = {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 4, "KeepAlivePeriodInSeconds": 1800}
    return second(replace(SECOND, machines=machines), **{"ResourceConfig": on_one_type, **changes})


def test_other_machines_replace_the_requests_own():
    request = moved(Machines(("ml.p4de.24xlarge",)), HyperParameters={"sagemaker_instance_type": '"ml.p4d.24xlarge"'})
    assert request["ResourceConfig"] == {
        "InstanceType": "ml.p4de.24xlarge",
        "InstanceCount": 4,
        "KeepAlivePeriodInSeconds": 1800,
    }
    assert request["HyperParameters"]["sagemaker_instance_type"] == '"ml.p4de.24xlarge"'
    assert request["VpcConfig"] == described()["VpcConfig"]
    assert complaints(request) == ""


def test_several_types_are_preferences_of_which_sagemaker_takes_one():
    request = moved(Machines(("ml.p5e.48xlarge", "ml.p5en.48xlarge")))
    assert request["ResourceConfig"] == {
        "InstancePreferences": [{"InstanceType": "ml.p5e.48xlarge"}, {"InstanceType": "ml.p5en.48xlarge"}],
        "InstanceCount": 4,
        "KeepAlivePeriodInSeconds": 1800,
    }
    assert complaints(request) == ""


def test_other_subnets_keep_the_security_groups():
    request = moved(Machines(subnets=("subnet-9",)))
    assert request["VpcConfig"] == {**described()["VpcConfig"], "Subnets": ["subnet-9"]}
    assert request["ResourceConfig"]["InstanceType"] == "ml.p4d.24xlarge"
    assert complaints(request) == ""


def test_a_launch_on_the_runs_own_machines_changes_nothing_about_them():
    """A training plan, preferences and placement are carried over as they are."""
    assert second()["ResourceConfig"] == rebuilt()["ResourceConfig"]
    assert second()["VpcConfig"] == rebuilt()["VpcConfig"]


@pytest.mark.parametrize(
    ("asked", "ours", "sent"),
    [
        ({}, ("", 1.0), {}),
        ({}, ("", 1.0, 2), {"RERAIL_MICROBATCHES": "2"}),
        ({"RERAIL_MICROBATCHES": "4"}, ("", 1.0, 2), {"RERAIL_MICROBATCHES": "8"}),
        ({"RERAIL_MICROBATCHES": "4"}, ("", 1.0), {"RERAIL_MICROBATCHES": "4"}),
        *(
            ({"RERAIL_MICROBATCHES": kept}, ("", 1.0, 2), {"RERAIL_MICROBATCHES": kept})
            for kept in ("few", "0", "\u0664", "5000", "10000")
        ),
        ({}, ("10-19", 0.9), {"RERAIL_SKIP_SAMPLES": "10-19", "RERAIL_LR_SCALE": "0.9"}),
        ({"RERAIL_SKIP_SAMPLES": "30-39"}, ("10-19", 1.0), {"RERAIL_SKIP_SAMPLES": "10-19,30-39"}),
        ({"RERAIL_SKIP_SAMPLES": "15-39"}, ("10-19", 1.0), {"RERAIL_SKIP_SAMPLES": "10-39"}),
        ({"RERAIL_SKIP_SAMPLES": "30-39"}, ("", 1.0), {"RERAIL_SKIP_SAMPLES": "30-39"}),
        ({"RERAIL_LR_SCALE": "0.5"}, ("", 0.9), {"RERAIL_LR_SCALE": "0.45"}),
        ({"RERAIL_LR_SCALE": "0.5"}, ("", 1.0), {"RERAIL_LR_SCALE": "0.5"}),
        ({"RERAIL_SKIP_SAMPLES": "all"}, ("10-19", 1.0), {"RERAIL_SKIP_SAMPLES": "all,10-19"}),
        ({"RERAIL_LR_SCALE": "slow"}, ("", 0.9), {"RERAIL_LR_SCALE": "slow"}),
    ],
)
def test_what_a_remedy_asks_for_comes_on_top_of_what_the_owner_asked_for(asked, ours, sent):
    """Samples are joined, factors multiplied; what cannot be read is left for the script to refuse, with its remedy."""
    action = replace(SECOND, **dict(zip(("skip_samples", "rate", "microbatches"), ours, strict=False)))
    environment = second(action, Environment=asked)["Environment"]
    names = ("RERAIL_SKIP_SAMPLES", "RERAIL_LR_SCALE", "RERAIL_MICROBATCHES")
    assert {name: environment[name] for name in names if name in environment} == sent
