"""Names, reasons, evidence and log lines are other people's text: wherever it is shown, it does nothing."""

import io
import json
import re
from collections import Counter
from datetime import UTC, datetime
from functools import cache
from html.parser import HTMLParser

import pytest
from moto import mock_aws
from typer.testing import CliRunner

from cli import place
from cli.console import UNPRINTABLE, Console
from cli.main import app
from cli.place import Place
from report_page.page import render_page
from rerail.aws.clients import client
from rerail.incident_report.report import ReportSection, make_report
from rerail.model.causes import Cause
from rerail.model.checkpoints import Health
from rerail.model.run import Attempt, HealthLabel, Incident, JobStatus, Run, RunState, TimelineEntry
from rerail.notices.notice import format_detail, read_detail
from rerail.notices.notifiers.chat import format_chat
from rerail.notices.notifiers.email import format_subject, format_text
from rerail.notices.notifiers.pagerduty import format_pagerduty
from rerail.notices.notifiers.webhook import format_webhook
from tests.aws.places import TABLE, make_table, our_own_clients
from tests.hostile import HOSTILE
from tests.notices.nights import NIGHTS, links, nasty
from tests.notices.test_golden import validator
from tests.report import conftest as stories

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
OUTPUTS = {"TableName": TABLE, "PolicyPrefix": "/rerail/policies"}
LIVE = re.compile(r"https?://evil|<[!@#]|<https?|<at>|\]\(|@(channel|here|everyone)")
each_text = pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))


@pytest.mark.threat("T12")
@each_text
def test_notices_contain_only_text(text):
    """Mail, chat, pager and webhook: within their schemas, with no mention, no link and no header of its own."""
    notice = nasty(next(iter(NIGHTS.values()))(), text, text)
    notice = read_detail(json.loads(json.dumps(format_detail(notice))))
    for kind, render in (("chat", format_chat), ("pagerduty", format_pagerduty), ("webhook", format_webhook)):
        body = render(notice, links(notice))
        if body is not None:
            validator(kind).validate(body)
            assert not UNPRINTABLE.search(json.dumps(body, ensure_ascii=False))
    content = format_chat(notice, links(notice))["content"]
    assert not LIVE.search("\n".join([content["title"], content["description"], *content.get("nextSteps", ())]))
    subject, mail = format_subject(notice), format_text(notice, links(notice))
    assert "\n" not in subject and "\r" not in subject
    assert not UNPRINTABLE.search(mail)
    ours = ("What to do", "Bcc")
    assert all(line.startswith(" ") for line in mail.splitlines() if line.strip().startswith(ours) and "rm" in line)


class Elements(HTMLParser):
    """Which elements a page has, and with which attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, ...]] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[(tag, *sorted(name for name, _ in attrs))] += 1


def elements(page: str) -> Counter[tuple[str, ...]]:
    parser = Elements()
    parser.feed(page)
    parser.close()
    return parser.seen


def page_of(text: str) -> str:
    """A report all of whose texts are this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stories, "HOSTILE", text)
        return render_page(make_report(stories.hostile(), sections=(ReportSection(text, ((text, text),), text),)))


@cache
def harmless_elements() -> set[tuple[str, ...]]:
    return set(elements(page_of("a word")))


@pytest.mark.threat("T13")
@each_text
def test_a_report_has_no_element_of_somebody_elses(text):
    """The page of a hostile run has the same elements, with the same attributes, as that of a harmless one."""
    assert set(elements(page := page_of(text))) <= harmless_elements() | {("details",), ("summary",)}
    assert not UNPRINTABLE.search(page)


def run_of(text: str) -> Run:
    """A run all of whose texts are this one, as far as they can be stored."""
    text = text.encode(errors="replace").decode()[:5000]
    attempt = Attempt(
        1, "gpt", JobStatus.FAILED, created_at=NOON, training_started_at=NOON, ended_at=NOON, failure_reason=text,
        cause=Cause.UNKNOWN, fingerprint=text, instance_type="ml.p4d.24xlarge", approved_by=text,
    )  # fmt: skip
    incident = Incident(
        1, "job_failed", 1, Cause.UNKNOWN, text, text, NOON, NOON, step=7, closed_at=NOON, resolution=text
    )
    facts = {"hold_reason": text, "labels": (HealthLabel(3, 1, Health.SUSPECT, text),), "version": 1}
    return Run("gpt", "default", RunState.HELD, NOON, (attempt,), incidents=(incident,), **facts)


@pytest.fixture(scope="module")
def deployed():
    """A table to look into."""
    with our_own_clients(), mock_aws(), pytest.MonkeyPatch.context() as patch:
        make_table(client("dynamodb"))
        client("ssm").put_parameter(Name="/rerail/policies/default", Value='mode = "act"', Type="String")
        patch.setattr(place, "find", lambda *, local: Place("stack Rerail", OUTPUTS))
        yield


@pytest.mark.threat("T14")
@each_text
def test_a_terminal_is_given_text(deployed, text, tmp_path):
    """`rerail show`, `status` and `metrics --log`: nothing that paints, links, turns or answers, and no markup."""
    run = run_of(text)
    entry = TimelineEntry("gpt", 1, NOON, RunState.WATCHING, RunState.HELD, run.hold_reason, "job_failed")
    client("dynamodb").delete_item(TableName=TABLE, Key={"pk": {"S": "run#gpt"}, "sk": {"S": "run"}})
    Place("", OUTPUTS).runs.save(run, entry, {})
    (log := tmp_path / "log").write_text(f"{text} step=5 loss=2.5\n" * 9, errors="replace")
    for words in (["show", "gpt"], ["status"], ["show", "gpt", "--json"], ["metrics", "--log", str(log)]):
        answer = CliRunner().invoke(app, words, env={"COLUMNS": "160", "FORCE_COLOR": "1"})
        assert answer.exit_code == 0, answer.output
        painted = re.sub(r"\x1b\[[0-9;]*m", "", answer.output)  # Rich's own colours
        assert not UNPRINTABLE.search(painted), repr(UNPRINTABLE.search(painted))
        assert "\x1b[31mred" not in answer.output
    Console(file=(drawn := io.StringIO()), force_terminal=True).print(text)
    assert "\x1b]8" not in drawn.getvalue(), "where a command forgets to escape it, it fails nothing and links nowhere"
