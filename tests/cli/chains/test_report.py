"""The page of a chain: what it says, and that nothing of a task is more than text on it."""

import re
from dataclasses import replace
from pathlib import Path

from cli.chains.definition import Chain, ChainTask, TaskInput
from cli.chains.fingerprints import TaskFacts
from cli.chains.plan import TaskState, identify_runs, make_plan
from cli.chains.report import make_chain_report
from cli.chains.task_runs import TaskProgress
from report_page.chain_page import render_chain_page
from rerail.incident_report.summary import Urgency
from tests.report.conftest import held
from tests.report.test_page import parsed

HOSTILE = '<script>alert("x")</script>\u202e'
CHAIN = Chain(
    "nightly",
    Path("rerail.toml"),
    {
        "prepare": ChainTask("prepare", Path("x")),
        "train": ChainTask("train", Path("x"), inputs=(TaskInput("data", task="prepare"),)),
        "other": ChainTask(
            "other", Path("x"), after=("prepare",), inputs=(TaskInput("more", place=f"s3://{HOSTILE}"),)
        ),
        "evaluate": ChainTask("evaluate", Path("x"), inputs=(TaskInput("model", task="train"),)),
    },
)


def make_page(**states: TaskState) -> tuple[str, Urgency]:
    """Return the page of the chain with its tasks in these states, and its tone; a held task has a run's record."""
    runs = identify_runs(CHAIN.name, CHAIN.tasks, {name: TaskFacts(code="1") for name in CHAIN.tasks}, {}, {})
    known = {name: replace(held(), run=replace(held().run, id=runs[name].run)) for name in ("prepare", "train")}
    progress = {
        name: TaskProgress(state, HOSTILE, "fix the cause, then `rerail release R`" if state is TaskState.HELD else "")
        for name, state in states.items()
    }
    plan = make_plan(CHAIN.tasks, runs, states, {})
    report = make_chain_report(CHAIN, plan, progress, known, "rerail chain nightly", "pages")
    return render_chain_page(report), report.tone


def test_the_page_has_each_task_its_order_what_to_do_and_a_link_to_each_run():
    states = {"prepare": TaskState.COMPLETED, "train": TaskState.HELD, "other": TaskState.RUNNING}
    page, tone = make_page(**states, evaluate=TaskState.NEW)
    tags = parsed(page)
    assert tone is Urgency.NEEDED and "1 of 4 tasks are complete; train needs you." in page
    assert tags.seen["rect"] == 4 and tags.seen["path"] == 3
    body = page.partition("<main")[2]
    assert body.count("stroke-dasharray") == 1, "evaluate waits"
    assert "train: fix the cause, then `rerail release R`" in page and "for train, which is held" in page
    links = re.findall(r'href="([^"]+)"', body)
    named = [re.sub(r"-[0-9a-f]{12}", "", link) for link in links]
    assert named == ["pages/nightly-prepare.html", "pages/nightly-train.html"]


def test_a_hostile_reason_is_only_text():
    page, _ = make_page(**dict.fromkeys(CHAIN.tasks, TaskState.RUNNING))
    assert "<script" not in page and "\u202e" not in page and "&lt;script&gt;" in page


def test_a_complete_chain_needs_nobody():
    page, tone = make_page(**dict.fromkeys(CHAIN.tasks, TaskState.COMPLETED))
    assert tone is Urgency.NONE and "All 4 tasks are complete." in page and "What to do" not in page
