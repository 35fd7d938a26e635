"""Who may do what: exactly what the functions call, and nothing by a wildcard that has no reason."""

import pytest

from rerail.model import mailbox
from tests.stacks.template import Template, find_acts, many, target, text

MAILBOX = f"arn:<AWS::Partition>:s3:::{mailbox.make_bucket_name('<AWS::AccountId>', '<AWS::Region>')}"

# Action to the resources that hold a wildcard, and why. Whatever is not here must name its resource in full.
WILDCARDS = {
    "xray:PutTraceSegments": "*",  # takes no resource
    "xray:PutTelemetryRecords": "*",  # takes no resource
    "sagemaker:ListTrainingJobs": "*",  # takes no resource
    "cloudwatch:GetMetricData": "*",  # neither
    "sagemaker:DescribeTrainingJob": ":training-job/*",  # any job may ask to be supervised
    "sagemaker:ListTags": ":training-job/*",
    "sagemaker:DescribeTrainingPlan": ":training-plan/*",  # whose capacity a job ended with
    # SageMaker authorizes the plan of a job, and what it reserves, like the job.
    "sagemaker:CreateTrainingJob": (":training-job/*", ":training-plan/*", ":reserved-capacity/*"),
    "sagemaker:AddTags": ":training-job/*",
    "sagemaker:StopTrainingJob": ":training-job/*",
    "sagemaker:UpdateTrainingJob": ":training-job/*",
    "ssm:GetParameter": ":parameter/rerail/policies/*",  # the job's tag names the policy
    "s3:ListBucket": ":s3:::*sagemaker*",  # context checkpointBuckets
    # The same, and the mailbox: jobs name their runs themselves.
    "s3:GetObject": (
        *(":s3:::*sagemaker*/*", "/runs/*/reports/*.json", "/runs/*/heartbeat.json", "/runs/*/report.html"),
        "/changes/*/*.json",
    ),
    "s3:PutObject": ("/runs/*/command.json", "/runs/*/report.html"),
    "logs:DescribeLogStreams": ":log-group:/aws/sagemaker/TrainingJobs:*",  # all jobs print to this one group
    "logs:GetLogEvents": ":log-group:/aws/sagemaker/TrainingJobs:*",
    "iam:PassRole": ":role/*SageMaker*",  # context trainingRoleArns
}

FUNCTIONS = ("supervise", "sweep", "report", "notify")


def with_action(statements, action):
    """The statements that allow the action; at least one."""
    found = [statement for statement in statements if action in many(statement["Action"])]
    assert found
    return found


def test_no_action_is_a_wildcard(template):
    """One exception: the account's root in the key's policy, AWS's default, without which nobody could manage it."""
    found = [
        (id, action)
        for id, statement in template.statements()
        if statement["Effect"] == "Allow"
        for action in many(statement["Action"])
        if "*" in action
    ]
    keys = list(template.of("KMS::Key"))
    assert found == [(id, "kms:*") for id in keys]


def test_no_principal_is_everybody(template):
    """An open door is only ever a refusal, of those who come without TLS."""
    for _, statement in template.statements():
        if statement["Effect"] == "Allow":
            assert statement.get("Principal") not in ("*", {"AWS": "*"})


def test_every_wildcard_resource_has_its_reason(template):
    """Outside of the table above (and the key's own policy) each statement names its resources in full."""
    for id, statement in template.statements():
        if statement["Effect"] == "Deny" or id in template.of("KMS::Key") or "Resource" not in statement:
            continue
        for resource in map(text, many(statement["Resource"])):
            if "*" in resource:
                for action in many(statement["Action"]):
                    assert action in WILDCARDS, f"{id}: {action} on {resource}"
                    assert resource == "*" or WILDCARDS[action] != "*"
                    assert resource.endswith(WILDCARDS[action]), f"{id}: {action} on {resource}"


@pytest.mark.threat("T21")
def test_only_what_is_marked_is_made(template):
    """A job can be created only with the tag that says which run it belongs to, and no other job is given tags: with
    them any job could be stopped."""
    statements = template.allowed("supervise")
    marked = {"Null": {"aws:RequestTag/rerail:run": "false"}}
    created = {"StringEquals": {"sagemaker:TaggingAction": "CreateTrainingJob"}}
    for action, condition in (("sagemaker:CreateTrainingJob", marked), ("sagemaker:AddTags", marked | created)):
        (statement,) = with_action(statements, action)
        assert statement["Condition"] == condition


@pytest.mark.threat("T21")
@pytest.mark.parametrize("action", ["sagemaker:StopTrainingJob", "sagemaker:UpdateTrainingJob"])
def test_only_what_is_supervised_is_touched(template, action):
    """A job without the tag that asks for it can be neither stopped nor changed; a successor has it too."""
    conditions = [statement["Condition"] for statement in with_action(template.allowed("supervise"), action)]
    assert conditions == [{"Null": {"aws:ResourceTag/rerail:policy": "false"}}]


@pytest.mark.threat("T21")
def test_without_buckets_a_template_only_observes(assemblies, full):
    """Whatever else is chosen: nothing may act on jobs or read users' buckets, and the functions know it.

    tests/stacks/test_options.py has that roles are left out like buckets.
    """
    said = (assemblies / "without_buckets" / "said.txt").read_text()
    assert said.startswith("note: checkpointBuckets is not set, so this template can only observe")
    template = Template.read(assemblies / "without_buckets" / "cdk.out")
    assert find_acts(template) == set()
    assert {"iam:PassRole", "sagemaker:CreateTrainingJob", "sagemaker:StopTrainingJob", "s3:GetObject"} <= find_acts(
        full
    )
    for function in ("supervise", "sweep", "report"):
        variables = template.function(function)["Environment"]["Variables"]
        assert variables["RERAIL_OBSERVE_ONLY"] == "checkpointBuckets is not set"


@pytest.mark.parametrize(
    ("name", "may"),
    [
        (
            "supervise",
            {
                ("s3:PutObject", "/runs/*/command.json"),
                ("s3:GetObject", "/runs/*/reports/*.json"),
                ("s3:GetObject", "/changes/*/*.json"),
            },
        ),
        ("sweep", {("s3:GetObject", "/runs/*/heartbeat.json")}),
    ],
)
def test_the_mailbox_is_used_by_its_keys(template, name, may):
    """Each function is allowed the objects that it reads or writes there; it lists, so that what is not there is told
    from what is forbidden."""
    statements = [s for s in template.allowed(name) if MAILBOX in text(many(s["Resource"])[0])]
    assert {(s["Action"], text(s["Resource"]).removeprefix(MAILBOX)) for s in statements} == {
        *may,
        ("s3:ListBucket", ""),
    }


@pytest.mark.parametrize(
    ("name", "may"),
    [
        # The page of all runs is read for its time; the runs that have a page are listed.
        (
            "report",
            {
                "s3:PutObject": {"/runs/*/report.html", "/runs.html"},
                "s3:GetObject": {"/runs.html"},
                "s3:ListBucket": {""},
            },
        ),
        ("notify", {"s3:GetObject": {"/runs/*/report.html", "/runs.html"}}),
    ],
)
def test_a_page_is_written_by_one_and_linked_by_another(template, name, may):
    """In a bucket that no role for training may write, since its name does not hold "sagemaker"."""
    bucket = text(template.of("S3::Bucket")[target(template.body["Outputs"]["ReportsBucket"]["Value"])]["BucketName"])
    assert "sagemaker" not in bucket.lower()
    prefix, allowed = f"arn:<AWS::Partition>:s3:::{bucket}", dict[str, set[str]]()
    for statement in template.allowed(name):
        for action in many(statement["Action"]):
            places = {text(place) for place in many(statement["Resource"])}
            if found := {place.removeprefix(prefix) for place in places if place.startswith(prefix)}:
                allowed.setdefault(action, set()).update(found)
    assert allowed == may


@pytest.mark.threat("T21")
def test_roles_are_passed_to_sagemaker_only(template):
    """And only roles of this account whose name says that they are for it."""
    (statement,) = with_action(template.allowed("supervise"), "iam:PassRole")
    assert statement["Condition"] == {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    assert text(statement["Resource"]) == "arn:<AWS::Partition>:iam::<AWS::AccountId>:role/*SageMaker*"


def test_the_key_is_used_through_services_only(template):
    """Whoever may use the key may do so by way of DynamoDB, SQS or SNS; Lambda's own reading of the queue aside."""
    for name in FUNCTIONS:
        for statement in template.allowed(name):
            if all(action.startswith("kms:") for action in many(statement["Action"])):
                via = statement.get("Condition", {}).get("StringEquals", {}).get("kms:ViaService")
                fed_by_a_queue = name in ("supervise", "report") and statement["Action"] == "kms:Decrypt"
                assert via or fed_by_a_queue


def test_the_key_knows_its_senders(template):
    """Services that write under their own name may use the key for this account's sake only."""
    ((_, key),) = template.of("KMS::Key").items()
    services = {s["Principal"]["Service"]: s for s in key["KeyPolicy"]["Statement"] if "Service" in s["Principal"]}
    assert set(services) == {"events.amazonaws.com", "cloudwatch.amazonaws.com"}
    for statement in services.values():
        assert set(statement["Action"]) == {"kms:Decrypt", "kms:GenerateDataKey"}
        assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


def test_the_schedule_may_call_the_sweep_and_nothing_else(template):
    """Its role is assumed by Scheduler for this account alone."""
    (schedule,) = template.of("Scheduler::Schedule").values()
    role = target(schedule["Target"]["RoleArn"])
    actions = {action for s in template.allowed_to(role) for action in many(s["Action"])}
    assert actions == {"lambda:InvokeFunction", "sqs:SendMessage", "kms:Decrypt", "kms:GenerateDataKey"}
    (trust,) = template.of("IAM::Role")[role]["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "scheduler.amazonaws.com"}
    assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


def test_the_sweep_writes_nothing_but_what_it_remembers(template):
    """A run's record is not the sweep's to change: its writes are confined to keys of their own."""
    (statement,) = with_action(template.allowed("sweep"), "dynamodb:BatchWriteItem")
    assert many(statement["Action"]) == ["dynamodb:BatchWriteItem"]
    assert statement["Condition"] == {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["watch#*", "round#*"]}}


def test_the_sweep_invokes_itself_alone(template):
    """Of all functions it may invoke its own alone."""
    (statement,) = with_action(template.allowed("sweep"), "lambda:InvokeFunction")
    ((name, _),) = [each for each in template.of("Lambda::Function").items() if each[1]["Handler"] == "sweep.handler"]
    assert statement["Resource"] == {"Fn::GetAtt": [name, "Arn"]}


@pytest.mark.parametrize("name", ["supervise", "sweep"])
def test_the_pause_is_read_and_never_written(template, name):
    """Only people write it. An update of any of its properties would write the template's value, and lift a pause."""
    (pause,) = [p for p in template.of("SSM::Parameter").values() if p["Name"] == "/rerail/switch"]
    assert pause == {
        "AllowedPattern": "on|off",
        "Description": "Rerail: off keeps it from stopping and creating jobs",
        "Name": "/rerail/switch",
        "Type": "String",
        "Value": "on",
    }
    allowed = [str(each["Resource"]) for each in with_action(template.allowed(name), "ssm:GetParameter")]
    assert len(allowed) == 2
    assert any(":parameter" in resource and "Switch" in resource for resource in allowed)
    assert not [each for each in template.allowed(name) if "ssm:PutParameter" in many(each["Action"])]
