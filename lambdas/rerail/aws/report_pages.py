"""The pages of incident reports, each an object in a bucket of its own."""

from rerail.aws.clients import client
from rerail.incident_report.location import page_key

HTML = "text/html; charset=utf-8"


class S3ReportPages:
    """The port `ReportPages` on one bucket."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    def keep(self, run: str, page: str) -> None:
        # Whoever opens the link again wants what is known by then.
        client("s3").put_object(
            Bucket=self._bucket,
            Key=page_key(run),
            Body=page.encode(),
            ContentType=HTML,
            CacheControl="no-cache",
            ContentDisposition="inline",
        )
