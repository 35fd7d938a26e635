"""Store the pages of incident reports in their bucket."""

from rerail.aws.clients import client
from rerail.incident_report.location import make_page_key

HTML = "text/html; charset=utf-8"


class S3ReportPages:
    """The port `ReportPages` on one bucket."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    def keep(self, run: str, page: str) -> None:
        # no-cache: a reopened link must show the current page.
        client("s3").put_object(
            Bucket=self._bucket,
            Key=make_page_key(run),
            Body=page.encode(),
            ContentType=HTML,
            CacheControl="no-cache",
            ContentDisposition="inline",
        )
