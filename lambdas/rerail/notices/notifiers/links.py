"""Where a reader goes from a notice: the report, the runbook, the console, and the words for a terminal."""

from dataclasses import dataclass
from urllib.parse import quote

from rerail.messages.messages import JOB_NAME
from rerail.notices.notice import Notice

CONSOLES = {
    "aws": "console.aws.amazon.com",
    "aws-cn": "console.amazonaws.cn",
    "aws-us-gov": "console.amazonaws-us-gov.com",
}


@dataclass(frozen=True, slots=True)
class NoticeOrigin:
    """The account and region in which a notice was made, and where its docs are served ("": nowhere)."""

    account: str
    region: str
    docs_url: str = ""

    @property
    def partition(self) -> str:
        """The part of AWS that the region belongs to."""
        return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(self.region.rpartition("-")[0].rpartition("-")[0], "aws")

    @property
    def console(self) -> str:
        """The host of the region's console."""
        return f"https://{self.region}.{CONSOLES[self.partition]}"


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses, "" where there is none; `runbook` is the page's path where the docs are served nowhere, `show` are
    words for a terminal, `job_arn` is the job as other tools name it."""

    report: str = ""
    runbook: str = ""
    console: str = ""
    show: str = ""
    job_arn: str = ""

    @property
    def addresses(self) -> tuple[tuple[str, str], ...]:
        """Those that can be opened, with their names."""
        return tuple((name, url) for name, url in self.named if url.startswith("https://"))

    @property
    def named(self) -> tuple[tuple[str, str], ...]:
        """All that there are, with their names, as a reader of text is shown them."""
        named = (("Report", self.report), ("Runbook", self.runbook), ("Console", self.console))
        return tuple((name, url) for name, url in named if url)


def links_of(notice: Notice, place: NoticeOrigin, *, report: str = "") -> Links:
    """The notice's links; `report` is the report's, where there is one. What is no name leads nowhere: whoever may put
    events on our bus could else have people open, or type, what he has written."""
    job = quote(notice.job, safe="") if JOB_NAME.fullmatch(notice.job) else ""
    console = f"{place.console}/sagemaker/home?region={place.region}#/jobs/{job}" if job else ""
    arn = f"arn:{place.partition}:sagemaker:{place.region}:{place.account}:training-job/{notice.job}"
    return Links(
        report=report,
        runbook=runbook_page(notice.runbook.value, place.docs_url),
        console=console,
        show=f"rerail show {notice.run}" if notice.state and JOB_NAME.fullmatch(notice.run) else "rerail status",
        job_arn=arn if job else "",
    )


def runbook_page(name: str, docs_url: str) -> str:
    """Where a runbook is read: on the site of the docs, or else in the repository."""
    return f"{docs_url.rstrip('/')}/runbooks/{name}/" if docs_url else f"docs/runbooks/{name}.md"


def console_of_report(bucket: str, key: str, place: NoticeOrigin) -> str:
    """The report's object in the console of S3: whoever opens it logs in."""
    return f"{place.console}/s3/object/{bucket}?region={place.region}&prefix={quote(key, safe='/')}"
