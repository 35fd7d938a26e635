"""Build the reporters of the `report` function."""

from functools import cache, partial

from rerail.aws.clients import set_bucket_owner
from rerail.aws.cloudwatch import CloudWatchSeries
from rerail.aws.detector_states import DynamoDetections
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.logs import CloudWatchLogs
from rerail.aws.report_pages import S3ReportPages
from rerail.aws.s3 import S3Checkpoints
from rerail.aws.ssm import SsmPolicies
from rerail.incident_report.gather import FactGatherer
from rerail.incident_report.location import make_page_key
from rerail.incident_report.reporter import FleetReporter, Reporter
from rerail.notices.notifiers.links import NoticeOrigin, make_report_console_link
from settings import ReportSettings
from wiring import now


@cache
def report_settings() -> ReportSettings:
    """Return the settings from the environment."""
    settings = ReportSettings.from_environment()
    set_bucket_owner(settings.account)
    return settings


@cache
def make_reporter() -> Reporter:
    """Return the reporter."""
    # Only the `report` function has the layer with the HTML and chart libraries.
    from report_page.page import render_page

    settings = report_settings()
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


@cache
def make_fleet_reporter() -> FleetReporter:
    """Return the reporter of the page of all runs."""
    from report_page.fleet_page import render_fleet_page

    settings = report_settings()
    origin = NoticeOrigin(settings.account, settings.region)

    def find_page(run: str) -> str:
        return make_report_console_link(settings.reports, make_page_key(run), origin)

    return FleetReporter(
        name=f"account {settings.account} in {settings.region}",
        runs=DynamoRuns(settings.table),
        detections=DynamoDetections(settings.table),
        policies=SsmPolicies(settings.policy_prefix, now),
        series=CloudWatchSeries(),
        pages=S3ReportPages(settings.reports),
        draws=lambda fleet, losses: render_fleet_page(fleet, find_page=find_page, losses=losses),
        clock=now,
    )
