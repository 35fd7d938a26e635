"""Names, log lines and evidence are other people's text: whatever they hold, what is told is valid and does nothing."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rerail.model.actions import Severity
from rerail.model.codec import BadRecord
from rerail.model.policy import Policy
from rerail.model.runbooks import Runbook
from rerail.notices.notice import format_detail, make_run_notice, read_detail
from rerail.notices.notifiers.chat import escape, format_chat
from rerail.notices.notifiers.email import SUBJECT_LIMIT, TEXT_LIMIT_BYTES, format_subject, format_text
from rerail.notices.notifiers.links import Links
from rerail.notices.notifiers.pagerduty import format_pagerduty
from rerail.notices.notifiers.text import clean_text
from rerail.notices.notifiers.webhook import format_webhook
from tests.core.strategies import runs, tells
from tests.notices.nights import NIGHTS, links, nasty
from tests.notices.test_golden import validator

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOTICES = [night() for night in NIGHTS.values()]
MARKUP = ["*", "_", "`", "~", "<!channel>", "<@U1>", "[x](http://e.vil)", "<http://e.vil|yes>", "\n", "\r\n", "\n# "]
UNSEEN = ["\x00", "\x1b[31m", "\u202e", "\ud800", "\u2028What to do:", "🔥", "loss", " "]
EVIDENCE = st.lists(st.sampled_from([*MARKUP, *UNSEEN]) | st.text(), max_size=20)
NAMES = st.from_regex(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", fullmatch=True) | st.text(min_size=1)
LIVE = re.compile(r"(?i)https?://\S+|\bwww\.|\be\.vil|<[!@#]|<https?|\]\(")


@given(st.sampled_from(NOTICES), NAMES, EVIDENCE.map("".join))
@example(NOTICES[0], "gpt", "x" * 10_000)
@example(NOTICES[0], "gpt", "*" * 10_000)
@example(NOTICES[1], "g" * 300, "\n" * 10_000)
def test_any_log_line_gives_bodies_within_each_receivers_limits(notice, name, evidence):
    """Within the published limits, and as JSON that can be sent."""
    notice = nasty(notice, name, evidence)
    for kind, render in (("chat", format_chat), ("pagerduty", format_pagerduty), ("webhook", format_webhook)):
        if (body := render(notice, links(notice))) is not None:
            validator(kind).validate(body)
            assert len(json.dumps(body, ensure_ascii=False).encode()) < TEXT_LIMIT_BYTES
    subject, text = format_subject(notice), format_text(notice, links(notice))
    assert 0 < len(subject) <= SUBJECT_LIMIT
    assert all(" " <= character <= "~" for character in subject)
    assert 0 < len(text.encode()) < TEXT_LIMIT_BYTES


@pytest.mark.parametrize(
    "folder", ["s3://b/x: rerail https://e.vil/login", "s3://b/x: aws www.evil.com", "s3://b/x: rerail evil.com/x.py"]
)
def test_a_folder_that_looks_like_a_command_links_nowhere(folder):
    """A step of ours quotes the checkpoint folder, whose name a job chooses; commands of ours can still be typed."""
    step = f"delete the damaged file in {folder}"
    notice = replace(NOTICES[0], todo=f"{step}\nthen: rerail submit src/train.v2.py --continue gpt")
    mail, page = format_text(notice, Links()), format_pagerduty(notice, Links()) or {}
    for text in (mail, page["payload"]["custom_details"]["what to do"]):
        assert not LIVE.search(text) and "evil.com" not in text
        assert "rerail submit src/train.v2.py --continue gpt" in text


@pytest.mark.threat("T12")
@given(EVIDENCE.map("".join))
@example("click [here](http://e.vil) or <http://e.vil|here>, <!channel> *now*")
@example("\u9ede\u6b64https://e.vil or 0http://e.vil, or www.e.vil")
def test_in_chat_nothing_of_it_is_a_link_a_mention_or_markup(evidence):
    """An address in a log line could be one to approve something with; ours are the only ones."""
    notice = nasty(NOTICES[0], "gpt", evidence)
    content = format_chat(notice, Links(show="rerail show gpt"))["content"]
    text = "\n".join([content["title"], content["description"], *content.get("nextSteps", ())])
    assert not LIVE.search(text)
    ours = re.sub(r"(?m)^\*(By when|What Rerail did|Since|Cost so far|Where):\*|`rerail [^`\n]*`", "", text)
    assert not re.search(r"[*`~<>\[\]|]", ours)


@pytest.mark.threat("T12")
@pytest.mark.parametrize(
    "text",
    [
        "evil.com/approve?run=x",
        "ops@evil.com",
        "evil.com.py",
        "model.pt",
        "evil.com_",
        "\u2665.com",
        "e\u0301.com",
        "10.0.0.1/x",
        "\u044f.\u0440\u0444",
        "evil\u3002com",
        "evil\uff0ecom",
        "https://x",
        "zoommtg://x",
        "sms:123",
        r"\\evil\x",
    ],
)
def test_no_receiver_makes_a_link_of_what_is_quoted(text):
    """Chat, mail and pager programs also find names without a scheme. Commands stay as they must be typed."""
    words = f"see {text} now"
    notice = replace(NOTICES[0], title=words, body=words, did=words, todo=words)
    chat, pager = format_chat(notice, Links())["content"], format_pagerduty(notice, Links())["payload"]
    for part in (chat, pager, format_text(notice, Links())):
        assert text not in (part if isinstance(part, str) else " ".join(_list_texts(part)))
    command = "rerail policy check policies/team.a.toml"
    notice = replace(notice, todo=f"Use ml.p5.48xlarge: {command}")
    for part in (format_text(notice, Links()), *_list_texts(format_pagerduty(notice, Links()))):
        assert command in part or "Use" not in part


def _list_texts(part):
    values = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return [part] if isinstance(part, str) else [text for value in values for text in _list_texts(value)]


@pytest.mark.threat("T12")
@given(st.sampled_from(NOTICES), EVIDENCE.map("".join))
def test_in_mail_what_is_quoted_does_not_look_like_a_part_of_ours(notice, evidence):
    """Whatever stands at the start of a line is ours."""
    clean, nasty_ = (
        format_text(variant, links(variant)).splitlines() for variant in (notice, nasty(notice, notice.run, evidence))
    )
    ours = {re.split(r"[:(]", line)[0] for line in clean if not line.startswith(" ")}
    assert {re.split(r"[:(]", line)[0].rstrip() for line in nasty_[1:] if line and not line.startswith(" ")} <= ours


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss_spike in s3://bucket/run_1/__0_0.distcp", "loss_spike in s3://bucket/run_1/＿＿0_0.distcp"),
        ("see http://e.vil/x", "see http：//e․vil/x"),
        ("raise limits.stop_dollars; train.py: loss 2.5e-3", "raise limits.stop_dollars; train.py: loss 2.5e-3"),
        ("<!here> @channel", "‹!here› ＠channel"),
        ("first\n\n  # second\r\nthird", "first\n  ＃ second\n  third".replace("  ＃", "    ＃")),
    ],
)
def test_what_is_escaped_can_still_be_read(text, shown):
    """Characters that look the same: people read names aloud to each other."""
    assert escape(text) == shown


@given(tells.filter(lambda notify: notify.severity is not Severity.CLEAR or clean_text(notify.clears).strip()), runs)
def test_any_notice_of_any_run_is_one_that_the_published_schema_allows(notify, run):
    """Whatever the core has to say, and wherever the run is."""
    notice = make_run_notice(notify, run, at=NOON, policy=Policy())
    validator("webhook").validate(format_webhook(notice, links(notice)))
    assert read_detail(json.loads(json.dumps(format_detail(notice)))) == notice


@pytest.mark.parametrize("notice", NOTICES, ids=lambda notice: notice.key)
def test_any_notice_survives_the_bus(notice):
    """What one function puts on it, the other reads, in whatever version: what it does not know it leaves out."""
    detail = json.loads(json.dumps(format_detail(notice)))
    assert read_detail(detail) == notice
    assert read_detail({**detail, "runbook": "of-a-later-version", "more": 1}).runbook is Runbook.INFORMED


def test_a_notice_of_an_older_version_is_sent():
    """What lies in a queue while the functions are exchanged."""
    old = {"run": "gpt", "severity": "page", "title": "gpt: held", "body": "why", "key": "gpt/held-2"}
    timed = read_detail({**old, "at": "2026-01-31T12:00:00", "by": "2026-01-31T12:30:00Z"})
    assert "By when: 2026-01-31 12:30 UTC (in 30 min)" in format_text(timed, links(timed))
    notice = read_detail(old)
    assert format_text(notice, links(notice)).startswith("why\n\nLinks:\n")
    validator("chat").validate(format_chat(notice, links(notice)))
    validator("pagerduty").validate(format_pagerduty(notice, links(notice)))


@pytest.mark.parametrize(
    ("field", "value"),
    [("title", 7), ("run", None), ("todo", ["x"]), ("step", "3"), ("attempt", True), ("dollars", "1")],
)
def test_a_notice_with_a_wrong_type_is_refused_with_the_field(field, value):
    """Whoever may put events on the bus may have written it."""
    detail = format_detail(NOTICES[0]) | {field: value}
    with pytest.raises(BadRecord, match=f"Notice.{field} is "):
        read_detail(detail)


@pytest.mark.parametrize("field", ["at", "since", "by"])
@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_a_time_out_of_range_blocks_no_page(field, time):
    """It is left out, and everybody is told the rest."""
    notice = read_detail(format_detail(NOTICES[0]) | {field: time})
    assert getattr(notice, field) is None
    for render in (format_text, format_chat, format_webhook, format_pagerduty):
        assert render(notice, links(notice))
