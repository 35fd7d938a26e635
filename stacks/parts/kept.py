"""Record the resources that outlive the stack in a parameter that outlives it too.

A later deployment reads it to reuse the runs, the mailbox, the reports and the key (see cli/deploy/kept.py)."""

from typing import Any

from aws_cdk import CfnDeletionPolicy, CfnResource, RemovalPolicy, Stack
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_ssm as ssm
from constructs import Construct

NAME = "/rerail/kept"
RETAINED = (CfnDeletionPolicy.RETAIN, CfnDeletionPolicy.RETAIN_EXCEPT_ON_CREATE)


class Kept(Construct):
    """The parameter: a JSON object of logical ids and names. It must be made last, since it names what there is."""

    def __init__(self, scope: Construct, id: str) -> None:
        super().__init__(scope, id)
        stack = Stack.of(self)
        names = {stack.get_logical_id(node): _name(node) for node in stack.node.find_all() if _is_kept(node)}
        parameter = ssm.StringParameter(
            self,
            "Parameter",
            parameter_name=NAME,
            string_value=stack.to_json_string(names),
            description="Rerail: what stays when the stack goes",
            # Of the standard tier while it fits.
            tier=ssm.ParameterTier.INTELLIGENT_TIERING,
        )
        parameter.apply_removal_policy(RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE)


def _is_kept(construct: Any) -> bool:
    return isinstance(construct, CfnResource) and construct.cfn_options.deletion_policy in RETAINED


def _name(resource: CfnResource) -> str:
    if isinstance(resource, s3.CfnBucketPolicy):
        return str(resource.bucket)
    # A queue's reference is its URL, which is long; a parameter holds a few thousand characters.
    return str(resource.attr_queue_name if isinstance(resource, sqs.CfnQueue) else resource.ref)
