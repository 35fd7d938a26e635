"""What `rerail deploy` says of permissions and resources, asked of the synthesized template and of changed ones."""

import json
from copy import deepcopy

import pytest

from cli.deploy import changes, kept, permissions
from cli.deploy.permissions import Grant
from tests.stacks.template import many


@pytest.fixture
def reasons(assembly):
    return permissions.read_reasons(json.loads((assembly / "Rerail.metadata.json").read_text()))


@pytest.fixture
def changed(template):
    """The template, to be changed by a test."""
    return deepcopy(dict(template.body))


def role_of(template, function):
    return template.function(function)["Role"]["Fn::GetAtt"][0]


def statements(body, role):
    (policy,) = (
        resource["Properties"]["PolicyDocument"]["Statement"]
        for resource in body["Resources"].values()
        if resource["Type"] == "AWS::IAM::Policy" and resource["Properties"]["Roles"] == [{"Ref": role}]
    )
    return policy


def test_every_statement_of_the_template_is_reported(template, reasons):
    """No permission stays unsaid: each action of each statement is a grant or a refusal."""
    reported = {(grant.action, grant.may) for grant in permissions.find_grants(template.body, reasons)}
    for _, statement in template.statements():
        for action in many(statement.get("Action", [])):
            assert (action, statement["Effect"] == "Allow") in reported


def test_every_wildcard_comes_with_its_reason(template, reasons):
    """A person who reads the difference sees why, not only that."""
    wild = [grant for grant in permissions.find_grants(template.body, reasons) if grant.is_wild]
    assert wild
    assert [grant for grant in wild if not grant.because] == []


def test_the_same_template_changes_nothing(template):
    assert not permissions.find_changes(template.body, template.body)


def test_a_wider_resource_is_one_permission_more_and_one_fewer(template, changed, reasons):
    """Who may do what, on what, under which condition."""
    role = role_of(template, "supervise")
    (passing,) = (s for s in statements(changed, role) if s["Action"] == "iam:PassRole")
    passing["Resource"] = "*"
    change = permissions.find_changes(template.body, changed, reasons)
    (more,), (fewer,) = change.added, change.removed
    when = "iam:PassedToService is sagemaker.amazonaws.com"
    assert more == Grant("the function supervise", True, "iam:PassRole", "*", when)
    assert (fewer.on, fewer.when) == ("arn:aws:iam::<AWS::AccountId>:role/*SageMaker*", when)
    assert permissions.format_lines(change.added)["the function supervise"][0].startswith(
        "may iam:PassRole on *, where iam:"
    )


def test_a_removed_condition_is_reported(template, changed):
    """A permission without its condition is another one."""
    (creating,) = (
        s
        for s in statements(changed, role_of(template, "supervise"))
        if "sagemaker:CreateTrainingJob" in many(s["Action"])
    )
    del creating["Condition"]
    change = permissions.find_changes(template.body, changed)
    assert {(grant.action, grant.when) for grant in change.added} == {("sagemaker:CreateTrainingJob", "")}
    assert {grant.when for grant in change.removed} == {"aws:RequestTag/rerail:run is given"}


def test_principals_of_roles_and_queues_are_reported(template, changed):
    """Trust and resource policies count as permissions."""
    changed["Resources"][role_of(template, "sweep")]["Properties"]["AssumeRolePolicyDocument"]["Statement"].append(
        {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::999999999999:root"}, "Action": "sts:AssumeRole"}
    )
    id, policy = next((i, r) for i, r in changed["Resources"].items() if r["Type"] == "AWS::SQS::QueuePolicy")
    statement = policy["Properties"]["PolicyDocument"]["Statement"][0]
    policy["Properties"]["PolicyDocument"]["Statement"].append({**statement, "Effect": "Allow", "Condition": {}})
    change = permissions.find_changes(template.body, changed)
    reported = permissions.format_lines(change.added)
    assert reported["arn:aws:iam::999999999999:root"] == ["may act as the function sweep"]
    assert reported[permissions.ANYBODY][0].startswith("may sqs:* on the queue ")
    assert not change.removed, id


def test_what_is_retained_is_what_a_removal_names(template):
    """The runs, the key and the mailbox outlive the stack; the signals in flight do not."""
    types = set(kept.find_retained(template.body).values())
    assert {"AWS::DynamoDB::Table", "AWS::KMS::Key", "AWS::S3::Bucket", "AWS::Logs::LogGroup"} <= types
    signals = template.body["Outputs"]["SignalsQueueUrl"]["Value"]["Ref"]
    assert signals not in kept.find_retained(template.body)


def test_the_stack_writes_down_all_that_it_leaves_behind(template):
    """The parameter that a later deployment reads names each of them, and stays itself."""
    ((id, parameter),) = ((i, p) for i, p in template.of("SSM::Parameter").items() if p["Name"] == kept.NAME)
    assert set(_names(parameter)) == set(kept.find_retained(template.body)) - {id}
    assert template.resources[id]["DeletionPolicy"] == "RetainExceptOnCreate"


def _names(parameter):
    """The logical ids in a JSON text that is joined of pieces."""
    text = "".join(piece if isinstance(piece, str) else "name" for piece in parameter["Value"]["Fn::Join"][1])
    return json.loads(text)


def test_all_that_stays_can_be_imported_alone(template):
    """CloudFormation takes up what there is in a step of its own: a template that points at nothing else."""
    found = {id: f"name-of-{id}" for id in kept.find_retained(template.body)}
    alone, listed = kept.make_import(template.body, found)
    assert set(alone["Resources"]) == set(found) == {each["LogicalResourceId"] for each in listed}
    assert all("DeletionPolicy" in resource for resource in alone["Resources"].values())
    policies = {id for id, kind in kept.find_retained(template.body).items() if kind == kept.BUCKET_POLICY}
    assert len(policies) == 2  # what is deployed next must differ, since an import changes nothing
    assert all(alone["Resources"][id]["Properties"] != template.resources[id]["Properties"] for id in policies)


def test_what_needs_something_that_is_gone_is_not_imported(template):
    """Without its key, a queue that lies under it is made anew."""
    found = {id: f"name-of-{id}" for id, kind in kept.find_retained(template.body).items() if kind != "AWS::KMS::Key"}
    alone, _ = kept.make_import(template.body, found)
    types = {resource["Type"] for resource in alone["Resources"].values()}
    assert "AWS::S3::Bucket" in types
    assert "AWS::SQS::Queue" not in types


def modified(kind, replacement):
    change = {
        "Action": "Modify",
        "LogicalResourceId": "Thing0123ABCD",
        "ResourceType": kind,
        "Replacement": replacement,
    }
    return changes.read([{"Type": "Resource", "ResourceChange": {**change, "Details": []}}])


@pytest.mark.parametrize("replacement", ["True", "Conditional"])
@pytest.mark.parametrize("kind", sorted(changes.STATEFUL))
def test_what_keeps_data_is_not_replaced_unasked(kind, replacement):
    """Also where CloudFormation cannot say beforehand."""
    assert list(changes.find_refused(modified(kind, replacement), []))
    assert not list(changes.find_refused(modified(kind, replacement), ["Thing"]))
    assert not list(changes.find_refused(modified(kind, "False"), []))


def test_what_keeps_no_data_may_be_replaced():
    assert not list(changes.find_refused(modified("AWS::Lambda::Function", "True"), []))
