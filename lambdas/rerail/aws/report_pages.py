"""Store the pages of incident reports, and the page of all runs, in their bucket."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice

from botocore.exceptions import ClientError

from rerail.aws.clients import client
from rerail.aws.error_codes import MISSING, find_code
from rerail.incident_report.location import FLEET_KEY, make_page_key, read_page_key

HTML = "text/html; charset=utf-8"
# Of so many thousands of runs the newest are found.
LISTINGS = 5
AS_OF = "as-of"


class S3ReportPages:
    """The ports `ReportPages` and `FleetPages` on one bucket."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    def keep(self, run: str, page: str) -> None:
        self._put(make_page_key(run), page, {})

    def keep_fleet(self, page: str, at: datetime) -> None:
        self._put(FLEET_KEY, page, {AS_OF: at.isoformat()})

    def find_time(self) -> datetime | None:
        try:
            found = client("s3").head_object(Bucket=self._bucket, Key=FLEET_KEY)
        except ClientError as error:
            if find_code(error) in MISSING:
                return None
            raise
        return datetime.fromisoformat(found["Metadata"][AS_OF])

    def list_runs(self) -> Sequence[str]:
        pages = client("s3").get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix="runs/")
        found = [item for page in islice(pages, LISTINGS) for item in page.get("Contents", ())]
        newest = sorted(found, key=lambda item: item["LastModified"], reverse=True)
        return [run for item in newest if (run := read_page_key(item["Key"]))]

    def _put(self, key: str, page: str, metadata: Mapping[str, str]) -> None:
        # no-cache: a reopened link must show the current page.
        client("s3").put_object(
            Bucket=self._bucket,
            Key=key,
            Body=page.encode(),
            ContentType=HTML,
            CacheControl="no-cache",
            ContentDisposition="inline",
            Metadata=dict(metadata),
        )
