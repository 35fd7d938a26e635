"""Build the reporter of the `report` function."""

from functools import cache, partial

from rerail.aws.clients import set_bucket_owner
from rerail.aws.cloudwatch import CloudWatchSeries
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.logs import CloudWatchLogs
from rerail.aws.report_pages import S3ReportPages
from rerail.aws.s3 import S3Checkpoints
from rerail.aws.ssm import SsmPolicies
from rerail.incident_report.gather import FactGatherer
from rerail.incident_report.reporter import Reporter
from settings import ReportSettings
from wiring import now


@cache
def make_reporter() -> Reporter:
    """Return the reporter."""
    # Only the `report` function has the layer with the HTML and chart libraries.
    from report_page.page import render_page

    settings = ReportSettings.from_environment()
    set_bucket_owner(settings.account)
    return Reporter(
        gathering=FactGatherer(
            runs=DynamoRuns(settings.table),
            policies=SsmPolicies(settings.policy_prefix, now),
            series=CloudWatchSeries(),
            logs=CloudWatchLogs(),
            checkpoints=S3Checkpoints(is_allowed=not settings.observe_only),
            clock=now,
        ),
        draws=partial(render_page, docs_url=settings.docs_url, region=settings.region),
        pages=S3ReportPages(settings.reports),
    )
