"""What jobs print, from CloudWatch Logs: bounded, in order, of the job that was asked about and no other."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from botocore.stub import Stubber

from rerail.aws import logs
from rerail.aws.clients import client
from rerail.aws.logs import GROUP, CloudWatchLogs
from rerail.aws.report_pages import S3ReportPages
from rerail.incident_report.location import make_bucket_name, make_page_key
from rerail.model.errors import StateUnknown, Throttled
from rerail.model.machines import Cluster
from rerail.model.run import Job, JobStatus
from tests.raising import raising

# Logs take no line that is older than two weeks.
START = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
GPT = Job("gpt", "arn", JobStatus.FAILED, "Failed", START, cluster=Cluster(count=20))


def write(stream: str, *texts: str, first: int = 0) -> None:
    """A line a second, as SageMaker's agent puts them."""
    known = client("logs").describe_log_groups(logGroupNamePrefix=GROUP)["logGroups"]
    if not known:
        client("logs").create_log_group(logGroupName=GROUP)
    client("logs").create_log_stream(logGroupName=GROUP, logStreamName=stream)
    begin = int(START.timestamp() * 1000)
    events = [{"timestamp": begin + 1000 * (first + n), "message": text} for n, text in enumerate(texts)]
    client("logs").put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=events)


def test_the_tail_is_the_newest_lines_before_a_time_of_all_hosts_in_order():
    """Two hosts; neither another job's lines, nor those of Systems Manager's agent, nor later ones."""
    write("gpt/algo-1-17", "one", "three", "much later", first=0)
    write("gpt/algo-2-17", "two", first=1)
    write("gpt/algo-1-17/ssm", "an agent")
    write("gpt-a002/algo-1-18", "another attempt")
    found = CloudWatchLogs().tail("gpt", until=START + timedelta(seconds=1), lines=10)
    assert [line.text for line in found] in (["one", "three", "two"], ["one", "two", "three"])
    assert {line.source for line in found} == {"algo-1-17", "algo-2-17"}
    (last,) = CloudWatchLogs().tail("gpt", until=START, lines=1)
    assert (last.at, last.text) == (START, "one")


def test_of_many_hosts_the_first_few_are_read():
    """Host 10 comes after host 2, and a thousand hosts are not a thousand calls."""
    for host in (10, 2, 1, 3, 4, 5):
        write(f"gpt/algo-{host}-17", f"host {host}")
    found = CloudWatchLogs().tail("gpt", until=START, lines=100)
    assert sorted(line.text for line in found) == ["host 1", "host 2", "host 3", "host 4"]


def test_the_whole_log_is_the_first_hosts():
    """Over all its streams: SageMaker opens another when it restarts the job."""
    write("gpt/algo-1-17", "before")
    write("gpt/algo-1-18", "after", first=5)
    write("gpt/algo-10-17", "host 10")
    found, pages = CloudWatchLogs().whole("gpt", pages=20)
    assert found is not None
    assert [line.text for line in found] == ["before", "after"]
    assert 2 <= pages <= 4


def test_a_log_that_is_too_long_is_refused_with_its_cost():
    """Half a log would be taken for the whole curve."""
    write("gpt/algo-1-17", *(str(number) for number in range(30)))
    write("gpt/algo-1-18", *(str(number) for number in range(30)))
    assert CloudWatchLogs().whole("gpt", pages=1) == (None, 1)


def test_a_job_that_has_printed_nothing_is_silent_and_no_error():
    """Neither the group nor a stream may be there yet."""
    assert CloudWatchLogs().tail("gpt", until=START, lines=10) == []
    assert CloudWatchLogs().whole("gpt", pages=3) == ([], 0)


@pytest.mark.parametrize(
    ("code", "error"),
    [("ThrottlingException", Throttled), ("AccessDeniedException", StateUnknown), ("InternalFailure", StateUnknown)],
)
def test_logs_that_cannot_be_read_are_not_taken_for_silence(code, error):
    """The report has to say so."""
    with Stubber(client("logs")) as stub:
        stub.add_client_error("describe_log_streams", code, "no", http_status_code=400)
        with pytest.raises(error, match="describe_log_streams"):
            CloudWatchLogs().tail("gpt", until=START, lines=10)


def test_silence_of_the_service_is_blindness(monkeypatch):
    """No answer at all."""

    class Dead:
        def describe_log_streams(self, **_: object) -> None:
            raise ReadTimeoutError(endpoint_url="https://logs")

    monkeypatch.setattr(logs, "client", lambda _: Dead())
    with pytest.raises(StateUnknown):
        CloudWatchLogs().whole("gpt", pages=1)


def test_a_page_is_kept_where_notices_link_to_and_opens_in_a_browser():
    """One object a run, in place of the one before."""
    bucket = make_bucket_name("123456789012", "eu-west-1")
    client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    pages = S3ReportPages(bucket)
    pages.keep("gpt", "<p>früher</p>")
    pages.keep("gpt", "<p>jetzt: ü</p>")
    kept = client("s3").get_object(Bucket="rerail-reports-123456789012-eu-west-1", Key=make_page_key("gpt"))
    assert kept["Body"].read().decode() == "<p>jetzt: ü</p>"
    assert (kept["ContentType"], kept["CacheControl"]) == ("text/html; charset=utf-8", "no-cache")
    assert kept["ContentDisposition"] == "inline"
    assert make_page_key("gpt") == "runs/gpt/report.html"


def test_the_page_of_all_runs_is_kept_with_its_time_beside_those_of_the_runs():
    bucket = make_bucket_name("123456789012", "eu-west-1")
    client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    pages = S3ReportPages(bucket)
    assert pages.find_time() is None
    pages.keep_fleet("<p>all</p>", START)
    assert pages.find_time() == START
    client("s3").put_object(Bucket=bucket, Key="runs/strange.html", Body=b"")
    pages.keep("gpt", "<p>report</p>")
    assert pages.list_runs() == ["gpt"]


def test_the_newest_runs_of_five_listings_come_first_and_a_refusal_is_raised(monkeypatch):
    runs = [{"Key": make_page_key(f"r{n}"), "LastModified": START + timedelta(seconds=n)} for n in range(5)]
    listings = [{}, *({"Contents": [run]} for run in runs)]
    found = SimpleNamespace(paginate=lambda **facts: listings if facts["Prefix"] == "runs/" else [])
    refused = raising(ClientError({"Error": {"Code": "403"}}, "HeadObject"))
    s3 = SimpleNamespace(get_paginator=lambda _: found, head_object=refused)
    monkeypatch.setattr("rerail.aws.report_pages.client", lambda _: s3)
    assert S3ReportPages("reports").list_runs() == ["r3", "r2", "r1", "r0"]
    with pytest.raises(ClientError):
        S3ReportPages("reports").find_time()


@pytest.mark.threat("T7")
def test_a_stream_that_sagemaker_cannot_have_made_tells_nothing_about_a_failure():
    """Streams of other machines, with other names, or made before the job by someone who knew its name."""
    for stream in ("algo-21-17", "algo-0-17", "algo-01-17", "algo-1-17-x", "algo-1", "algo-2-x"):
        write(f"gpt/{stream}", "a stranger")
    assert CloudWatchLogs().read_ends(GPT) == []
    write("gpt/algo-20-17", "the job")
    assert CloudWatchLogs().read_ends(GPT) == ["the job"]
    assert CloudWatchLogs().read_ends(replace(GPT, created_at=START + timedelta(hours=2))) == []


@pytest.mark.threat("T7")
def test_many_streams_of_others_hide_no_log():
    """A page of DescribeLogStreams has 50, in the order of their names."""
    write("gpt/algo-1-17", "the job")
    write("gpt/algo-9-17", "host 9")
    for number in range(60):
        for host in (0, 100 + number):
            client("logs").create_log_stream(logGroupName=GROUP, logStreamName=f"gpt/algo-{host}-{number}")
    assert CloudWatchLogs().read_ends(GPT) == ["the job", "host 9"]
    assert [line.text for line in CloudWatchLogs().tail("gpt", until=START, lines=9)] == ["the job"]


def test_the_ends_are_the_last_lines_of_each_host_within_limits(monkeypatch):
    """Of the newest stream of each host; a long line is cut, and of many hosts the first are read."""
    monkeypatch.setattr(logs, "END_LINES", 2)
    write("gpt/algo-1-17", "before the restart")
    write("gpt/algo-1-18", "one", "two", "three")
    for host in range(2, 20):
        write(f"gpt/algo-{host}-17", "x" * 3_000)
    ends = CloudWatchLogs().read_ends(GPT)
    assert ends[0] == "two\nthree"
    assert (len(ends), set(map(len, ends[1:]))) == (logs.END_HOSTS, {logs.LINE_CHARS})
    assert CloudWatchLogs().read_ends(replace(GPT, name="none")) == []
    monkeypatch.setattr(logs, "END_SECONDS", -1.0)
    assert len(CloudWatchLogs().read_ends(GPT)) == 1


@pytest.mark.parametrize("empty", [1, 3])
def test_an_empty_page_is_not_the_end_of_a_log(monkeypatch, empty):
    """CloudWatch Logs may return pages without lines, or with fewer than it was asked for, before others."""
    asked: list[dict] = []
    event = {"timestamp": int(START.timestamp() * 1000), "message": "CUDA out of memory"}

    class Answers:
        def describe_log_streams(self, **_):
            return {"logStreams": [{"logStreamName": "gpt/algo-1-17"}]}

        def get_log_events(self, **request):
            asked.append(request)
            number = min(int(request.get("nextToken", "0")) + 1, empty + 1)
            direction = "nextForwardToken" if request["startFromHead"] else "nextBackwardToken"
            return {"events": [event] if number > empty else [], direction: str(number)}

    for name in ("client", "quick_client"):
        monkeypatch.setattr(logs, name, lambda service: Answers())
    assert CloudWatchLogs().read_ends(GPT)[0].startswith("CUDA out of memory")
    assert [line.text for line in CloudWatchLogs().tail("gpt", until=START, lines=1)] == ["CUDA out of memory"]
    found, pages = CloudWatchLogs().whole("gpt", pages=20)
    assert found and found[0].text == "CUDA out of memory"
    assert pages == empty + 2
    assert len(asked) < 20


def test_a_log_without_lines_is_read_in_a_few_pages(monkeypatch):
    """A token that changes with each page ends no loop: the number of pages does."""
    asked: list[dict] = []

    def answer(call, *, is_quick=False, **request):
        asked.append(request)
        return {"logStreams": [{"logStreamName": "gpt/algo-1-17"}], "nextBackwardToken": str(len(asked))}

    monkeypatch.setattr(logs, "_call", answer)
    assert CloudWatchLogs().read_ends(GPT) == [""]
    assert len(asked) == 1 + logs.END_PAGES
