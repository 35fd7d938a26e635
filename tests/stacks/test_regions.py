"""One template, deployed by repeating it: nothing in one region stands in the way of another."""

import json

from tests.stacks.template import Template, text

# What is named once in an account, whatever the region, and by which properties. A dashboard belongs to all regions.
GLOBAL = {
    "AWS::IAM::Role": ("RoleName",),
    "AWS::IAM::Policy": (),  # part of its role
    "AWS::IAM::ManagedPolicy": ("ManagedPolicyName",),
    "AWS::IAM::User": ("UserName",),
    "AWS::IAM::Group": ("GroupName",),
    "AWS::IAM::InstanceProfile": ("InstanceProfileName",),
    "AWS::S3::Bucket": ("BucketName",),
    "AWS::CloudWatch::Dashboard": ("DashboardName",),
    "AWS::CloudFront::Distribution": (),
    "AWS::Route53::HostedZone": ("Name",),
}


def names(template: Template, region: str) -> set[tuple[str, str]]:
    """The names of one region that all regions share."""
    return {
        (resource["Type"], text(resource["Properties"][name]).replace("<AWS::Region>", region))
        for resource in template.resources.values()
        for name in GLOBAL.get(resource["Type"], ())
        if name in resource.get("Properties", {})
    }


def test_two_regions_of_an_account_share_no_name(template):
    """Buckets carry their region; roles are named by CloudFormation, with a part that is new each time."""
    one, other = (names(template, region) for region in ("us-east-1", "eu-west-1"))
    assert one
    assert not one & other


def test_no_region_is_written_into_the_template(template):
    """The same template goes everywhere; an ARN asks where it is."""
    body = json.dumps(template.body)
    for region in ("us-east-1", "us-west-2", "eu-west-1", "eu-central-1", "ap-northeast-1"):
        assert region not in body


def test_no_partition_is_written_into_the_template(template):
    """Also in GovCloud and in China an ARN names its own partition."""
    for _, statement in template.statements():
        assert "arn:aws:" not in json.dumps(statement)
