"""The bucket of the incident reports, one page per run; training roles cannot write to it."""

from aws_cdk import Aws, Duration
from aws_cdk import aws_iam as iam
from constructs import Construct

from rerail.incident_report.location import FLEET_KEY, make_bucket_name, make_page_key
from stacks.parts.closed_bucket import closed_bucket
from stacks.parts.permissions import acknowledge, allow

EVERY_PAGE = make_page_key("*")
# An incident a year ago is still worth a look at the next one.
KEPT = Duration.days(400)
ANY_RUN = "Runs are named by the jobs that ask to be supervised; which ones do is not known here."


class ReportsBucket(Construct):
    """Encrypted, closed to the public, for TLS only; kept when the stack goes.

    The managed policy AmazonSageMakerFullAccess lets a training role write every bucket with "sagemaker" in its name:
    this one has it not, so that no job can change what people on call are shown.
    """

    def __init__(self, scope: Construct, id: str) -> None:
        super().__init__(scope, id)
        name = make_bucket_name(Aws.ACCOUNT_ID, Aws.REGION)
        self._arn = f"arn:{Aws.PARTITION}:s3:::{name}"
        self.bucket = closed_bucket(self, name=name, rule="OldReports", kept=KEPT)
        reason = "Pages that can be drawn anew from the record at any time."
        acknowledge(self.bucket, "AwsSolutions-S1", reason=reason)

    def let_keep(self, role: iam.Role) -> None:
        """Write each run's page, and the page of all runs, whose time it reads; list the runs that have a page."""
        allow(role, "s3:PutObject", on=f"{self._arn}/{EVERY_PAGE}", because=ANY_RUN)
        allow(role, "s3:PutObject", "s3:GetObject", on=f"{self._arn}/{FLEET_KEY}")
        allow(role, "s3:ListBucket", on=self._arn)

    def let_link(self, role: iam.Role) -> None:
        """A signed link lets its reader do what its maker may."""
        allow(role, "s3:GetObject", on=f"{self._arn}/{EVERY_PAGE}", because=ANY_RUN)
        allow(role, "s3:GetObject", on=f"{self._arn}/{FLEET_KEY}")
