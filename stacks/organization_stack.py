"""Rerail in the accounts of an organization: a StackSet that gives each account of its units the supervisor's stack.

The hub is the account that deploys this. A member account has only the name of the hub's bucket with the functions'
code. Every member supervises its own jobs, with its own table, key and alarms."""

from collections.abc import Callable
from typing import Any

import aws_cdk as cdk
from aws_cdk import Aws
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from stacks.options import DeploymentOptions, Organization
from stacks.parts.organization_view import OrganizationView
from stacks.parts.permissions import acknowledge
from stacks.supervisor_stack import SupervisorStack

MEMBER = "Member"
ASSETS, HUB = "RerailOrganizationAssets", "RerailOrganization"
# Lambda takes code from a bucket of its own region only, so there is one in each; a member is told the part before it.
PREFIX = "AssetsPrefix"
# The members' parameter with the ARN of the bus to which they forward run events.
HUB_BUS = "HubBus"
BUCKET = f"rerail-assets-{Aws.ACCOUNT_ID}"


def add_organization(
    app: cdk.App,
    organization: Organization,
    options: DeploymentOptions,
    synthesizer: Callable[[], cdk.IStackSynthesizer],
) -> None:
    """Add the members' template, the buckets for their code and the StackSet to the app."""
    stage = cdk.Stage(app, MEMBER)
    for name, value in options.tags.items():
        cdk.Tags.of(stage).add(name, value)  # those of the app do not reach into a stage
    from_the_hub = cdk.DefaultStackSynthesizer(
        generate_bootstrap_version_rule=False, file_assets_bucket_name=f"${{{PREFIX}}}-${{AWS::Region}}"
    )
    hub_bus = HUB_BUS if organization.has_view else ""
    member = SupervisorStack(stage, "Rerail", options=options, hub_bus=hub_bus, synthesizer=from_the_hub)
    cdk.CfnParameter(member, PREFIX, description="Where the code of the functions is, up to -<region>")
    template = stage.synth().get_stack_artifact(member.artifact_id).template_full_path
    OrganizationAssetsStack(app, ASSETS, organization=organization, synthesizer=synthesizer())
    OrganizationStack(
        app, HUB, organization=organization, options=options, template=template, synthesizer=synthesizer()
    )


class OrganizationAssetsStack(cdk.Stack):
    """The bucket of one region from which members' functions take their code; only the organization may read it."""

    def __init__(self, scope: Construct, id: str, *, organization: Organization, **kwargs: Any) -> None:
        super().__init__(scope, id, description="Rerail: the code of an organization's functions", **kwargs)
        bucket = s3.Bucket(
            self,
            "Bucket",
            bucket_name=f"{BUCKET}-{Aws.REGION}",
            encryption=s3.BucketEncryption.S3_MANAGED,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            enforce_ssl=True,
            versioned=True,
            removal_policy=cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
        )
        bucket.add_to_resource_policy(
            iam.PolicyStatement(
                sid="TheOrganizationReads",
                principals=[iam.AnyPrincipal()],
                actions=["s3:GetObject"],
                resources=[bucket.arn_for_objects("*")],
                conditions={"StringEquals": {"aws:PrincipalOrgID": organization.id}},
            )
        )
        acknowledge(bucket, "AwsSolutions-S1", reason="It holds code that is public in this repository, and no data.")
        acknowledge(bucket, "AwsSolutions-S2", reason="Public access is blocked; the policy names one organization.")
        cdk.CfnOutput(self, "AssetsBucket", value=bucket.bucket_name)


class OrganizationStack(cdk.Stack):
    """The StackSet: a member that leaves keeps its stack, and with it its runs; one region after the other."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        organization: Organization,
        options: DeploymentOptions,
        template: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id, description="Rerail: the accounts of an organization", **kwargs)
        given = {PREFIX: BUCKET}
        if organization.has_view:
            view = OrganizationView(self, "View", organization=organization.id, options=options)
            given[HUB_BUS] = view.bus.attr_arn
            cdk.CfnOutput(self, "HubPageTopicArn", value=view.page.topic_arn)
            cdk.CfnOutput(self, "RunEventsLogGroup", value=view.log_group.log_group_name)
        asset = assets.Asset(self, "Template", path=template)
        cdk.CfnStackSet(
            self,
            "Members",
            stack_set_name="Rerail",
            description="Rerail: keeps SageMaker training runs on their rails",
            permission_model="SERVICE_MANAGED",
            call_as="DELEGATED_ADMIN" if organization.is_delegated else None,
            auto_deployment=cdk.CfnStackSet.AutoDeploymentProperty(enabled=True, retain_stacks_on_account_removal=True),
            managed_execution={"Active": True},
            capabilities=["CAPABILITY_IAM"],
            template_url=asset.http_url,
            parameters=[
                cdk.CfnStackSet.ParameterProperty(parameter_key=name, parameter_value=value)
                for name, value in given.items()
            ],
            operation_preferences=cdk.CfnStackSet.OperationPreferencesProperty(
                region_concurrency_type="SEQUENTIAL", max_concurrent_percentage=25, failure_tolerance_percentage=10
            ),
            stack_instances_group=[
                cdk.CfnStackSet.StackInstancesProperty(
                    deployment_targets=cdk.CfnStackSet.DeploymentTargetsProperty(
                        organizational_unit_ids=list(organization.units)
                    ),
                    regions=list(organization.regions),
                )
            ],
        )
