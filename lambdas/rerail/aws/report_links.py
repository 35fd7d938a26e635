"""Links to reports in their bucket: signed, for whoever has the notice, or to the console, for who may log in."""

from functools import cache
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError

from rerail.aws.clients import client_as
from rerail.incident_report.location import page_key
from rerail.notices.notice import Notice
from rerail.notices.notifiers.links import NoticeOrigin, console_of_report

# As long as a night; a function's own credentials may end sooner, and what they have signed with them.
VALID_S = 12 * 3600


class ReportLinks:
    """The address of a run's report; "" where there is no bucket, or no run."""

    def __init__(self, bucket: str, *, signed: bool) -> None:
        self._bucket = bucket
        self._signed = signed

    def of(self, notice: Notice, place: NoticeOrigin) -> str:
        """Good for some hours where it is signed; nothing is asked of S3 for it. Where it cannot be signed it is the
        console's: people are told all the same."""
        if not self._bucket or not notice.state:
            return ""
        key = page_key(notice.run)
        if self._signed:
            wanted = {"Bucket": self._bucket, "Key": key}
            try:
                return str(_signer(place.region).generate_presigned_url("get_object", Params=wanted, ExpiresIn=VALID_S))
            except BotoCoreError:
                return console_of_report(self._bucket, key, place)
        return console_of_report(self._bucket, key, place)


@cache
def _signer(region: str) -> Any:
    # Objects under a KMS key, and the younger regions, take the newer signature alone, and the region's own host.
    config = Config(signature_version="s3v4", s3={"addressing_style": "virtual"})
    return client_as(config, "s3", region_name=region)
