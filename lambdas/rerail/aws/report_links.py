"""Make links to reports: signed URLs for anyone who has the notice, or console links that require a login."""

from contextlib import suppress
from functools import cache
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError

from rerail.aws.clients import client_as
from rerail.incident_report.location import FLEET_KEY, make_page_key
from rerail.model.actions import Severity
from rerail.model.notice import Notice
from rerail.notices.notifiers.links import NoticeOrigin, make_report_console_link

# Long enough for a page at night to be opened in the morning. A signed URL expires earlier with the credentials that
# signed it.
VALID_S = 12 * 3600


class ReportLinks:
    """Makes links to the reports in a bucket."""

    def __init__(self, bucket: str, *, signed: bool) -> None:
        self._bucket = bucket
        self._signed = signed

    def of(self, notice: Notice, place: NoticeOrigin) -> str:
        """Return the URL of the run's report, "" without a bucket or a run."""
        return self._make(make_page_key(notice.run), place) if notice.state else ""

    def of_all_runs(self, notice: Notice, place: NoticeOrigin) -> str:
        """Return the URL of the page of all runs, "" without a bucket; it is for pages to on-call."""
        return self._make(FLEET_KEY, place) if notice.severity is Severity.PAGE else ""

    def _make(self, key: str, place: NoticeOrigin) -> str:
        """Return the URL of the object; signing needs no call to S3.

        A URL that cannot be signed is replaced by the console link, so that the notice is sent anyway."""
        if not self._bucket:
            return ""
        if self._signed:
            params = {"Bucket": self._bucket, "Key": key}
            with suppress(BotoCoreError):
                return str(_signer(place.region).generate_presigned_url("get_object", Params=params, ExpiresIn=VALID_S))
        return make_report_console_link(self._bucket, key, place)


@cache
def _signer(region: str) -> Any:
    # KMS-encrypted objects and newer regions accept only signature version 4 and the regional host.
    config = Config(signature_version="s3v4", s3={"addressing_style": "virtual"})
    return client_as(config, "s3", region_name=region)
