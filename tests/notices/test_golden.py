"""Each notice as each reader gets it, letter by letter; RERAIL_SNAPSHOT=write writes them anew."""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rerail.model.notice import Notice
from rerail.notices.notifiers.chat import format_chat
from rerail.notices.notifiers.email import format_subject, format_text
from rerail.notices.notifiers.links import Links
from rerail.notices.notifiers.pagerduty import format_pagerduty
from rerail.notices.notifiers.webhook import format_webhook
from tests.notices.nights import NIGHTS, links

GOLDEN, SCHEMAS = Path(__file__).parent / "golden", Path(__file__).parent / "schemas"
WEBHOOK = Path(__file__).parents[2] / "docs" / "notice.schema.json"
JSON = {"chat": format_chat, "pagerduty": format_pagerduty, "webhook": format_webhook}


@cache
def validator(kind: str) -> Any:
    """What the receiver takes, as it is published."""
    from jsonschema import Draft202012Validator  # takes seconds of each worker that collects this file

    path = WEBHOOK if kind == "webhook" else SCHEMAS / f"{kind}.json"
    return Draft202012Validator(json.loads(path.read_text()), format_checker=Draft202012Validator.FORMAT_CHECKER)


def is_as_before(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("RERAIL_SNAPSHOT") == "write":
        path.write_text(text)
    assert text == path.read_text(), f"{name} has changed; if that is meant: RERAIL_SNAPSHOT=write"


@pytest.fixture(scope="module")
def notices() -> dict[str, Notice]:
    return {name: night() for name, night in NIGHTS.items()}


@pytest.mark.parametrize("name", NIGHTS)
def test_an_email_reads_as_it_did(notices, name):
    notice = notices[name]
    is_as_before(f"{name}.txt", f"Subject: {format_subject(notice)}\n\n{format_text(notice, links(notice))}\n")


@pytest.mark.parametrize("kind", JSON)
@pytest.mark.parametrize("name", NIGHTS)
def test_what_a_receiver_gets_is_what_it_got_and_what_it_takes(notices, name, kind):
    """PagerDuty is not sent what only informs."""
    notice = notices[name]
    render: Callable[[Notice, Links], dict | None] = JSON[kind]
    body = render(notice, links(notice))
    if kind == "pagerduty" and notice.severity == "inform":
        assert body is None
        return
    validator(kind).validate(body)
    is_as_before(f"{name}.{kind}.json", json.dumps(body, indent=2, ensure_ascii=False) + "\n")


def test_every_golden_file_belongs_to_a_notice(notices):
    """None is left over from one that is told no more."""
    silent = {f"{name}.pagerduty.json" for name, notice in notices.items() if notice.severity == "inform"}
    wanted = {f"{name}{end}" for name in NIGHTS for end in (".txt", *(f".{kind}.json" for kind in JSON))}
    assert {path.name for path in GOLDEN.iterdir()} == wanted - silent


def test_the_all_clear_resolves_the_incident_of_its_page(notices):
    """The key is all that PagerDuty goes by."""
    page, clear = (format_pagerduty(notices[name], links(notices[name])) for name in ("held", "all_clear"))
    assert page and clear
    assert (page["event_action"], clear["event_action"]) == ("trigger", "resolve")
    assert page["dedup_key"] == clear["dedup_key"]


def test_an_email_can_be_understood_in_ten_seconds(notices):
    """The subject says it all, the first lines say what happened and what to do, and no other tab is needed."""
    notice = notices["held"]
    assert format_subject(notice) == "gpt: held: OutOfMemoryError: CUDA out of memory at step 517"
    lines = format_text(notice, links(notice)).splitlines()
    assert lines[0].startswith("attempt 1 failed: oom (torch.OutOfMemoryError: CUDA out of memory.")
    assert lines[2:5] == [
        "What to do:",
        "  - A release repeats batch and machines: take a smaller batch, or a larger machine with --instance-type, "
        "and `rerail submit train.py --continue gpt`",
        "",
    ]
    assert len(lines) <= 20
