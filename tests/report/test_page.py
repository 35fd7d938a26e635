"""The page as text: valid, one file, nothing of the run's own in it but as text, and the same wherever it is drawn."""

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report_page.page import render_page
from rerail.incident_report.facts import Facts, LogLine
from rerail.incident_report.report import ReportSection, make_report
from rerail.model.redaction import redact_patterns
from stacks.parts.python_layer import fill
from stacks.parts.report_layer import PACKAGES
from tests.report.conftest import HOSTILE, held, hostile
from tests.timing import growth

ROOT = Path(__file__).parents[2]
VOID = {"meta", "link", "br", "img", "hr", "input", "col"}
ALONE = """
import sys
import time
sys.path[:0] = [{layer!r}, {lambdas!r}]
import gzip
from rerail.model.codec import loads
from rerail.incident_report.facts import Facts, LogLine
from rerail.incident_report.report import make_report
from report_page.page import render_page
page = render_page(make_report(loads(Facts, gzip.open({record!r}).read().decode())))
places = {{name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}}
ours = [name for name, place in places.items() if "site-packages" in place]
assert not ours, ours
assert places["jinja2"].startswith({layer!r}) and places["markupsafe"].startswith({layer!r})
sys.stdout.write(page)
"""


class Tags(HTMLParser):
    """Every tag closed in its order, no attribute twice, no name twice; counts what there is."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        self.ids.update(value for name, value in attrs if name == "id" and value)
        assert not any(name.startswith("on") or name == "style" for name in names), f"<{tag}> {attrs}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    assert max(tags.ids.values(), default=1) == 1, tags.ids
    return tags


@pytest.fixture(params=["recorded", "held", "hostile"])
def page(request: pytest.FixtureRequest, recorded: Facts) -> str:
    """A page of each sort."""
    known = {"recorded": lambda: recorded, "held": held, "hostile": hostile}[request.param]()
    return render_page(make_report(known), docs_url="https://docs.example.com/", region="eu-west-1")


def test_the_page_is_well_formed_and_brings_all_that_it_needs(page: str):
    """No script, no frame, no picture from elsewhere; the only addresses are links that somebody may follow."""
    tags = parsed(page)
    for never in ("script", "iframe", "object", "embed", "form", "base", "img"):
        assert tags.seen[never] == 0
    assert (
        tags.seen["style"] == tags.seen["h1"] == tags.seen["title"] - page.count("<title>", page.index("<body>")) == 1
    )
    addresses = set(re.findall(r"(?:href|src)=\"([^\"]*)\"", page))
    rest = {
        address
        for address in addresses
        if not address.startswith("https://eu-west-1.console.aws.amazon.com/sagemaker/")
        and not re.fullmatch(r"https://docs\.example\.com/(runbooks/)?([a-z-]+/)?(#[a-z-]+)?", address)
    }
    assert rest <= {"data:,"}
    assert "url(" not in page
    assert "@import" not in page


@pytest.mark.threat("T13")
def test_the_policy_of_the_page_forbids_all_but_its_own_style(page: str):
    """A strict policy in the page itself, since nobody sets headers on an object in S3."""
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/=]{44}'", allowed.pop("style-src").replace("&#43;", "+"))
    assert allowed == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}


def test_hostile_texts_are_text_and_long_lines_are_cut():
    """Whatever a name, a reason or a log line holds, no tag of it survives, and nothing of it is a template."""
    page = render_page(make_report(hostile(), sections=(ReportSection(HOSTILE, ((HOSTILE, HOSTILE),), HOSTILE),)))
    parsed(page)
    assert "<script" not in page
    assert "<img" not in page
    assert "{{ 7 * 7 }}" in page
    assert "9,600 more characters" in page
    assert "x" * 401 not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_added_facts_are_shown(recorded: Facts):
    """The demo's verdict, with its twin."""
    section = ReportSection("The demo's verdict", (("against the reference run", "0.0"),))
    assert "The demo&#39;s verdict" in render_page(make_report(recorded, sections=(section,)))


def test_jobs_are_linked_to_the_console_and_runbooks_to_the_docs():
    """Where region and docs are known; where not, names and paths are there as text."""
    linked = render_page(make_report(held()), docs_url="https://docs.example.com", region="eu-west-1")
    assert 'href="https://docs.example.com/runbooks/out-of-memory/"' in linked
    assert "https://eu-west-1.console.aws.amazon.com/sagemaker/home?region=eu-west-1#/jobs/gpt" in linked
    plain = render_page(make_report(held()))
    assert "<a " not in plain
    assert "rerail runbook out-of-memory" in plain
    for page in (linked, plain):  # a phone reader needs no link
        assert "Runbook: Out of memory" in page and "<h3>Mitigation</h3>" in page and "my-run" not in page
        assert "rerail logs gpt" in page or "rerail release gpt" in page
    assert 'href="https://docs.example.com/' in linked.split("Runbook: Out of memory")[1]


@pytest.mark.slow
def test_the_layer_alone_draws_the_page(tmp_path: Path, recorded: Facts):
    """With nothing else on the path than the layer and the functions' code, as in Lambda; and the same page."""
    fill(tmp_path / "python", PACKAGES)
    assert not [file for file in tmp_path.rglob("*") if file.suffix in (".so", ".pyc", ".pyd")]
    record = str(Path(__file__).parent / "data" / "spike.json.gz")
    code = ALONE.format(layer=str(tmp_path / "python"), lambdas=str(ROOT / "lambdas"), record=record)
    command = [sys.executable, "-I", "-S", "-B", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env={"PATH": os.defpath})
    assert run.returncode == 0, run.stderr
    assert run.stdout == render_page(make_report(recorded))


def test_the_layer_is_the_same_each_time(tmp_path: Path):
    """File by file: its hash, and so the deployment, changes only with the libraries."""
    contents = []
    for name in ("one", "two"):
        fill(tmp_path / name, PACKAGES)
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        contents.append([(str(path.relative_to(tmp_path / name)), path.read_bytes()) for path in files])
    assert contents[0] == contents[1]
    assert {Path(name).parts[0].split("-")[0] for name, _ in contents[0]} >= {"jinja2", "markupsafe", "pygal"}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("key AKIAIOSFODNN7EXAMPLE is wrong", "key AKIA[hidden] is wrong"),
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuv", "HF_TOKEN=[hidden]"),
        ("GET https://b.s3.amazonaws.com/k?X-Amz-Signature=0123abcd&x=1", "X-Amz-Signature=[hidden]&x=1"),
        ("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer [hidden]"),
        ("postgres://user:hunter22@db/x", "postgres://user:[hidden]@db/x"),
        ('{"wandb_api_key": "0123456789abcdef"}', '{"wandb_api_key": "[hidden]"}'),
        ("rerail step=5 loss=2.5 tokens_per_s=123456 nonfinite=0", "tokens_per_s=123456"),
        ("KeyError: 'token_type_ids'", "KeyError: 'token_type_ids'"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, seen: str):
    """A signed link may be read by whoever has it; what is no secret stays as it is."""
    known = held()
    page = unescape(render_page(make_report(replace(known, lines={1: (LogLine(known.at, "algo-1-1", text),)}))))
    assert seen in page
    hidden = set(re.findall(r"\S{12,}", text)) - set(re.findall(r"\S{12,}", seen))
    assert not [word for word in hidden if "[hidden]" in seen and word in page]


@pytest.mark.parametrize(("start", "unit"), [("", "a-"), ("", "secret"), ("", "://"), ("eyJ", "a."), ("", "x")])
def test_hiding_costs_time_in_proportion_to_the_text(start: str, unit: str):
    """Each expression is bounded: ten times the text costs about ten times the time, where a square would cost 100."""
    small, large = (start + unit * (length // len(unit)) for length in (4_000, 40_000))
    assert growth(lambda: redact_patterns(small), lambda: redact_patterns(large)) < 40


def test_a_reason_stands_once_without_its_metric_lines():
    """Fifteen metric lines in SageMaker's reason are one; the table of attempts has the exception alone."""
    known = held()
    (entry,) = known.timeline
    reason = "\n".join([f"iter {step}: loss 2.{step}" for step in range(15)] + ["KeyError: 40"])
    run = replace(known.run, attempts=(replace(known.run.current, failure_reason=reason),))
    page = render_page(
        make_report(replace(known, run=run, timeline=(replace(entry, inputs={"failure_reason": reason}),)))
    )
    assert page.count("iter ") == page.count("iter 14: loss 2.14") == 1
    assert "(14 similar lines left out)" in page and ", held</span>" in page
