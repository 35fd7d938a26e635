"""Rerail for the accounts of an organization: off unless units are named; a member knows the hub by a bucket alone."""

import json
import re
from collections import Counter

import pytest

from cli.deploy import permissions
from cli.deploy.organization import find_member
from stacks.options import BadOption, Organization
from tests.stacks.template import Template, text
from tests.stacks.test_options import Context
from tools.variants import ORGANIZATION


def test_nothing_of_it_is_there_unless_it_is_asked_for(assembly):
    """An account alone has no StackSet, and no bucket that others may read."""
    assert not list(assembly.glob("RerailOrganization*"))
    assert not list(assembly.glob("assembly-*"))


def test_a_member_is_given_what_the_hub_has(organization):
    """The same kinds of resources, and not one permission more or less."""
    member, hub = find_member(organization).template, Template.read(organization).body
    kinds = [Counter(r["Type"] for r in each["Resources"].values()) for each in (member, hub)]
    assert kinds[0] == kinds[1]
    assert not permissions.find_changes(hub, member)


def test_a_member_knows_the_hub_by_its_bucket_alone(organization):
    """No account is written into the template; the parameter that names the bucket is used for code alone."""
    member = find_member(organization).template
    assert set(re.findall(r"\b\d{12}\b", json.dumps(member))) <= {"111122223333"}, "only CHOICES name an account"
    assert "bootstrap" not in json.dumps(member)
    for id, resource in member["Resources"].items():
        code = json.dumps(resource["Properties"].pop("Code", None) or resource["Properties"].pop("Content", None))
        assert "AssetsPrefix" not in json.dumps(resource), id
        if resource["Type"] == "AWS::Lambda::Function":
            assert json.loads(code)["S3Bucket"] == {"Fn::Sub": "${AssetsPrefix}-${AWS::Region}"}


def test_the_stack_set_gives_every_account_of_the_units_its_stack(organization):
    """Also those that join later; an account that leaves keeps its stack, and so its runs."""
    (members,) = Template.read(organization, "RerailOrganization").of("CloudFormation::StackSet").values()
    assert (members["PermissionModel"], members["CallAs"]) == ("SERVICE_MANAGED", "DELEGATED_ADMIN")
    assert members["AutoDeployment"] == {"Enabled": True, "RetainStacksOnAccountRemoval": True}
    (group,) = members["StackInstancesGroup"]
    assert group["DeploymentTargets"]["OrganizationalUnitIds"] == ORGANIZATION["organizationalUnits"]
    assert group["Regions"] == ["us-east-1", "eu-west-1"]
    (parameter,) = members["Parameters"]
    assert text(parameter["ParameterValue"]) == "rerail-assets-<AWS::AccountId>"


def test_the_code_is_read_by_the_organization_alone(organization):
    """The one statement that allows anything asks for the organization, and it allows reading."""
    (policy,) = Template.read(organization, "RerailOrganizationAssets").of("S3::BucketPolicy").values()
    (allowed,) = (s for s in policy["PolicyDocument"]["Statement"] if s["Effect"] == "Allow")
    assert allowed["Action"] == "s3:GetObject"
    assert allowed["Condition"] == {"StringEquals": {"aws:PrincipalOrgID": ORGANIZATION["organizationId"]}}
    (bucket,) = Template.read(organization, "RerailOrganizationAssets").of("S3::Bucket").values()
    assert text(bucket["BucketName"]) == "rerail-assets-<AWS::AccountId>-<AWS::Region>"


@pytest.mark.parametrize("missing", ["organizationId", "organizationRegions"])
def test_half_an_organization_is_refused(missing):
    with pytest.raises(BadOption, match=missing):
        Organization.from_context(Context(**{**ORGANIZATION, missing: ""}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("organizationId", "123456789012"), ("organizationalUnits", ["everybody"]), ("organizationRegions", ["Dublin"])],
)
def test_a_malformed_organization_is_refused(name, value):
    with pytest.raises(BadOption, match=name):
        Organization.from_context(Context(**{**ORGANIZATION, name: value}))


def test_no_unit_is_no_organization():
    assert Organization.from_context(Context(organizationalUnits=[])) is None
    assert Organization.from_context(Context()) is None


def test_an_account_is_in_one_organization():
    """Two ids are one mistake, and it is named."""
    with pytest.raises(BadOption, match="context 'organizationId' names 2 organizations"):
        Organization.from_context(Context(**ORGANIZATION | {"organizationId": ["o-a1b2c3d4e5", "o-f6a1b2c3d4"]}))
