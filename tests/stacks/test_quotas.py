"""Every template stays within AWS's quotas, with room left for longer names and for what is added later.

The numbers are the defaults that AWS documents on the quota page of each service, in characters or bytes. References
count as the longest names that CloudFormation would make: those of a StackSet's member.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.iam.grants import Granted
from tests.stacks.template import Template, target

STACK = "StackSet-Rerail-0123abcd-0123-0123-0123-0123456789ab"
# The longest name of a kind, where it is shorter than what CloudFormation puts together.
LONGEST = {"AWS::IAM::Role": 64, "AWS::Lambda::Function": 64, "AWS::SQS::Queue": 80, "AWS::Events::Rule": 64}
ROOM = 0.9

Sizes = Iterator[tuple[str, float]]
Measure = Callable[[Template, Granted], Sizes]
DOCUMENTS = {
    "AWS::S3::BucketPolicy": ("PolicyDocument", 20_480),
    "AWS::SQS::QueuePolicy": ("PolicyDocument", 8_192),
    "AWS::SNS::TopicPolicy": ("PolicyDocument", 30_720),
    "AWS::KMS::Key": ("KeyPolicy", 32_768),
    "AWS::IAM::ManagedPolicy": ("PolicyDocument", 6_144),
    "AWS::IAM::Role": ("AssumeRolePolicyDocument", 2_048),
}
TEXTS = {
    "AWS::Events::Rule": ("Description", 512),
    "AWS::Lambda::Function": ("Description", 256),
    "AWS::CloudWatch::Alarm": ("AlarmDescription", 1_024),
    "AWS::CloudWatch::CompositeAlarm": ("AlarmRule", 10_240),
    "AWS::SSM::Parameter": ("Value", 4_096),
    "AWS::SNS::Topic": ("DisplayName", 100),
}


def size(value: Any) -> int:
    """The length as AWS counts it: without blanks between the parts of a document."""
    return len((value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))).encode())


def documents(template: Template, granted: Granted) -> Sizes:
    for id, resource in template.resources.items():
        if resource["Type"] in DOCUMENTS:
            name, most = DOCUMENTS[resource["Type"]]
            yield id, size(granted.value(resource["Properties"][name])) / most


def inline_policies(template: Template, granted: Granted) -> Sizes:
    """All of a role's together."""
    sizes: Counter[str] = Counter()
    for policy in template.of("IAM::Policy").values():
        for role in policy["Roles"]:
            sizes[target(role)] += size(granted.value(policy["PolicyDocument"]))
    yield from ((role, total / 10_240) for role, total in sizes.items())


def texts(template: Template, granted: Granted) -> Sizes:
    for id, resource in template.resources.items():
        if resource["Type"] in TEXTS:
            name, most = TEXTS[resource["Type"]]
            yield id, size(granted.value(resource["Properties"].get(name, ""))) / most


def environments(template: Template, granted: Granted) -> Sizes:
    for id, function in template.of("Lambda::Function").items():
        variables = granted.value(function["Environment"]["Variables"])
        yield id, sum(size(name) + size(value) for name, value in variables.items()) / 4_096
        yield id, len(function["Layers"]) / 5


def rules(template: Template, granted: Granted) -> Sizes:
    """How many on a bus, how many targets of each, how long patterns and templates are."""
    on_bus: Counter[str] = Counter()
    for id, rule in template.of("Events::Rule").items():
        on_bus[json.dumps(rule.get("EventBusName", "default"))] += 1
        yield id, size(granted.value(rule["EventPattern"])) / 2_048
        yield id, len(rule["Targets"]) / 5
        for one in rule["Targets"]:
            transformer = one.get("InputTransformer", {})
            yield id, size(transformer.get("InputTemplate", "")) / 8_192
            yield id, len(transformer.get("InputPathsMap", {})) / 100
    # The youngest regions allow a hundred.
    yield from ((bus, count / 100) for bus, count in on_bus.items())


def alarms(template: Template, granted: Granted) -> Sizes:
    own = template.of("CloudWatch::Alarm")
    yield "alarms of the region", len(own) / 5_000
    for id, composite in template.of("CloudWatch::CompositeAlarm").items():
        yield id, granted.value(composite["AlarmRule"]).count("ALARM(") / 100
    for id, alarm in (*own.items(), *template.of("CloudWatch::CompositeAlarm").items()):
        yield id, max(len(alarm.get(kind, [])) for kind in ("AlarmActions", "OKActions")) / 5


def dashboards(template: Template, granted: Granted) -> Sizes:
    for id, board in template.of("CloudWatch::Dashboard").items():
        widgets = json.loads(granted.value(board["DashboardBody"]))["widgets"]
        metrics = [len(widget["properties"].get("metrics", [])) for widget in widgets]
        yield id, len(widgets) / 500
        yield id, max(metrics) / 500
        yield id, sum(metrics) / 2_500


def formation(template: Template, granted: Granted) -> Sizes:
    body = template.body
    yield "template", size(body) / 1_000_000
    yield "description", size(body.get("Description", "")) / 1_024
    for name, most in (("Resources", 500), ("Parameters", 200), ("Outputs", 200), ("Mappings", 200)):
        yield name, len(body.get(name, {})) / most


MEASURES = (documents, inline_policies, texts, environments, rules, alarms, dashboards, formation)


@pytest.fixture(scope="module")
def used(templates) -> dict[str, dict[str, float]]:
    """By measure and resource: the share of its quota that is used, the largest of all templates."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for name, template in templates.items():
        names = {
            id: f"{STACK}-{id}-0123456789AB"[: LONGEST.get(resource["Type"], 255)]
            for id, resource in template.resources.items()
        }
        granted = Granted(template.body, region="ap-northeast-1", names=names)
        for measure in MEASURES:
            for about, share in measure(template, granted):
                key = f"{name}: {about}"
                found[measure.__name__][key] = max(share, found[measure.__name__].get(key, 0))
    return found


@pytest.mark.parametrize("measure", [measure.__name__ for measure in MEASURES])
def test_no_quota_is_nearly_used_up(used, measure):
    shares = used[measure]
    assert shares and max(shares.values()) > 0, "nothing was measured"
    assert {about: round(share, 2) for about, share in shares.items() if share > ROOM} == {}


def test_the_functions_fit_into_lambda(assembly):
    """Code and all layers unzipped, with 60 MB for that of Powertools; zipped, so that the console can show them."""
    folders = [path for path in assembly.glob("asset.*") if path.is_dir()]
    sizes = [sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) for folder in folders]
    assert len(sizes) == 3
    assert 100_000 < sum(sizes) < ROOM * (250 - 60) * 2**20
