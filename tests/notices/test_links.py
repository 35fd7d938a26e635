"""Where a notice leads: right in every part of AWS, with or without a site of the docs."""

from dataclasses import replace

import pytest

from rerail.model.runbooks import Runbook
from rerail.notices.notifiers.chat import format_chat
from rerail.notices.notifiers.email import format_text
from rerail.notices.notifiers.links import NoticeOrigin, find_runbook_page, make_links
from rerail.notices.notifiers.pagerduty import format_pagerduty
from tests.notices.nights import PLACE, held


@pytest.mark.parametrize(
    ("region", "host", "partition"),
    [
        ("eu-west-1", "eu-west-1.console.aws.amazon.com", "aws"),
        ("ap-southeast-2", "ap-southeast-2.console.aws.amazon.com", "aws"),
        ("cn-north-1", "cn-north-1.console.amazonaws.cn", "aws-cn"),
        ("us-gov-west-1", "us-gov-west-1.console.amazonaws-us-gov.com", "aws-us-gov"),
    ],
)
def test_the_console_and_the_arn_are_those_of_the_regions_partition(region, host, partition):
    """A link into another partition asks for a login that nobody has."""
    links = make_links(held(), NoticeOrigin("111122223333", region))
    assert links.console == f"https://{host}/sagemaker/home?region={region}#/jobs/gpt"
    assert links.job_arn == f"arn:{partition}:sagemaker:{region}:111122223333:training-job/gpt"


@pytest.mark.parametrize("served", ["https://docs.example.com/rerail", "https://docs.example.com/rerail/"])
def test_a_runbook_is_a_page_of_the_site_where_the_docs_are_served(served):
    assert find_runbook_page("blind", served) == "https://docs.example.com/rerail/runbooks/blind/"


def test_without_a_site_the_runbook_is_named():
    """In text as the page's path in the repository; nowhere as a link that leads nowhere."""
    notice = held()
    links = make_links(notice, replace(PLACE, docs_url=""))
    assert f"  Runbook: docs/runbooks/{Runbook.OUT_OF_MEMORY}.md\n" in format_text(notice, links)
    assert "*Runbook:* docs/runbooks/out-of-memory.md\n" in format_chat(notice, links)["content"]["description"]
    event = format_pagerduty(notice, links)
    assert event and event["payload"]["custom_details"]["runbook"] == "docs/runbooks/out-of-memory.md"
    assert "Runbook" not in [link["text"] for link in event["links"]]


def test_what_is_no_run_has_no_report_and_no_timeline():
    """A job that is not supervised: nothing but its own page in the console."""
    links = make_links(replace(held(), state="", run="mine", job="mine"), PLACE)
    assert (links.show, links.report) == ("rerail status", "")
    assert links.console.endswith("#/jobs/mine")
