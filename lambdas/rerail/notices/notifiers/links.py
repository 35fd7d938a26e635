"""Links of a notice: the report, the runbook, the console, and a command for the terminal."""

from dataclasses import dataclass, replace
from urllib.parse import quote

from rerail.messages.messages import JOB_NAME
from rerail.model.formatting import add_local_option
from rerail.model.notice import Notice

# Console host of each AWS partition.
CONSOLE_HOSTS = {
    "aws": "console.aws.amazon.com",
    "aws-cn": "console.amazonaws.cn",
    "aws-us-gov": "console.amazonaws-us-gov.com",
}
# The account of the local AWS.
LOCAL_ACCOUNT = "000000000000"


@dataclass(frozen=True, slots=True)
class NoticeOrigin:
    """The account and region that a notice comes from."""

    account: str
    region: str
    docs_url: str = ""  # where the documentation is served; "" if it is not

    @property
    def partition(self) -> str:
        """Return the AWS partition of the region."""
        return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(self.region.rpartition("-")[0].rpartition("-")[0], "aws")

    @property
    def console(self) -> str:
        """Return the URL of the region's console."""
        return f"https://{self.region}.{CONSOLE_HOSTS[self.partition]}"


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a notice; "" for each that does not exist."""

    answer: str = ""  # URL of the page on which a proposal is approved or denied
    report: str = ""  # URL of the run's incident report
    all_runs: str = ""  # URL of the page of all runs
    runbook: str = ""  # URL, or the path in the repository if the documentation is not served
    console: str = ""  # URL of the job in the SageMaker console
    show: str = ""  # command for the terminal
    job_arn: str = ""

    @property
    def addresses(self) -> tuple[tuple[str, str], ...]:
        """Return name and URL of each link that a browser can open."""
        return tuple((name, url) for name, url in self.named if url.startswith("https://"))

    @property
    def named(self) -> tuple[tuple[str, str], ...]:
        """Return name and address of each link that exists."""
        named = (
            ("Approve or deny", self.answer),
            ("Report", self.report),
            ("Runbook", self.runbook),
            ("Console", self.console),
            ("All runs", self.all_runs),
        )
        return tuple((name, url) for name, url in named if url)


def make_links(notice: Notice, place: NoticeOrigin, *, report: str = "", all_runs: str = "", answer: str = "") -> Links:
    """Return the notice's links; `report`, `all_runs` and `answer` are URLs, "" for none.

    Only valid job names become links or commands: anyone with events:PutEvents on the bus can write a notice."""
    job = quote(notice.job, safe="") if JOB_NAME.fullmatch(notice.job) else ""
    console = f"{place.console}/sagemaker/home?region={place.region}#/jobs/{job}" if job else ""
    arn = f"arn:{place.partition}:sagemaker:{place.region}:{place.account}:training-job/{notice.job}"
    show = f"rerail show {notice.run}" if notice.state and JOB_NAME.fullmatch(notice.run) else "rerail status"
    return Links(
        answer=answer,
        report=report,
        all_runs=all_runs,
        runbook=find_runbook_page(notice.runbook.value, place.docs_url),
        console=console,
        show=add_local_option(show) if place.account == LOCAL_ACCOUNT else show,
        job_arn=arn if job else "",
    )


def complete_commands(notice: Notice, place: NoticeOrigin) -> Notice:
    """Return the notice with each `rerail` command as it must be typed to reach the notice's origin."""
    if place.account != LOCAL_ACCOUNT:
        return notice
    body, did, todo = (add_local_option(text) for text in (notice.body, notice.did, notice.todo))
    return replace(notice, body=body, did=did, todo=todo)


def find_runbook_page(name: str, docs_url: str) -> str:
    """Return the runbook's URL, or its path in the repository if `docs_url` is empty."""
    return f"{docs_url.rstrip('/')}/runbooks/{name}/" if docs_url else f"docs/runbooks/{name}.md"


def make_report_console_link(bucket: str, key: str, place: NoticeOrigin) -> str:
    """Return the URL of the report's object in the S3 console, which requires a login."""
    return f"{place.console}/s3/object/{bucket}?region={place.region}&prefix={quote(key, safe='/')}"
