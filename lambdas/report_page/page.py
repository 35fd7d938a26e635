"""Render a report as one self-contained HTML page without scripts and external requests."""

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from report_page.charts import NARROW, WIDE, colour, render_chart, short
from report_page.runbooks import render_runbook
from rerail.incident_report.costs import format_length
from rerail.incident_report.marks import CurveMark
from rerail.incident_report.report import LINE, Axis, Chart, IncidentReport, format_title
from rerail.model.formatting import format_dollars
from rerail.model.redaction import redact_patterns
from rerail.notices.notifiers.links import NoticeOrigin

HERE = Path(__file__).parent
# Characters beyond the limit that are searched for a secret on the edge.
MARGIN = 500
# Log lines to highlight.
ERROR_WORDS = re.compile(
    r"\b(?:\w*error|\w*exception|traceback|fatal|killed|nan|inf|xid|out of memory|segmentation fault)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class _Picture:
    """A chart, drawn for a wide screen or paper, and for a phone."""

    chart: Chart
    wide: Markup
    narrow: Markup


def render_page(report: IncidentReport, *, docs_url: str = "", region: str = "") -> str:
    """Return the page as HTML.

    `docs_url` is where the runbooks are served, "" if they are only in the repository. `region` is the region of the
    console that jobs are linked to, "" for no links."""
    docs_url = docs_url.rstrip("/")
    title, runbook = render_runbook(report.runbook, run=report.run, docs_url=docs_url) if report.runbook else ("", "")
    numbered = list(enumerate(report.marks, start=1))
    return render_template(
        "page.html",
        report=report,
        pictures=[_picture(report, chart, numbered) for chart in report.charts],
        numbered=numbered,
        drawn_attempts=sorted({line.attempt for chart in report.charts for line in chart.curve.lines}),
        docs_url=docs_url,
        runbook_title=title,
        runbook=Markup(runbook),  # nosec B704: a file that came with the code; markdown-it escapes the run's name
        region=region,
        console=NoticeOrigin("", region).console if region else "",
        longest=max((seconds for _, seconds in report.seconds), default=1.0) or 1.0,
        total=sum(seconds for _, seconds in report.seconds) or 1.0,
    )


def render_template(name: str, **values: Any) -> str:
    """Return a template of this folder as HTML, with the style of all pages."""
    style = (HERE / "style.css").read_text(encoding="utf-8")
    html: str = _find_template(name).render(
        style=Markup(style),  # nosec B704: a constant file with no data of a run
        style_hash=b64encode(sha256(style.encode()).digest()).decode(),
        **values,
    )
    return html


def _picture(report: IncidentReport, chart: Chart, numbered: Sequence[tuple[int, CurveMark]]) -> _Picture:
    marks = [(number, replace(mark, text=_shorten(mark.text))) for number, mark in numbered]
    placed = [(number, x, mark) for number, mark in marks if (x := _axis_position(report, chart, mark)) is not None]
    # pygal and ElementTree escape what they write.
    return _Picture(chart, Markup(render_chart(chart, placed, WIDE)), Markup(render_chart(chart, placed, NARROW)))  # nosec B704


def _axis_position(report: IncidentReport, chart: Chart, mark: CurveMark) -> float | None:
    """Return the step of the mark, or its seconds since the run began; None if it is not on the chart."""
    if chart.axis is Axis.STEP:
        inside = mark.step is not None and chart.window[0] <= mark.step <= chart.window[1]
        return float(mark.step) if inside and mark.step is not None else None
    return None if mark.at is None else (mark.at - report.began).total_seconds()


@cache
def _find_template(name: str) -> Any:
    """Return a template of this folder, with the filters of all pages."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_show_invisible,
    )
    environment.filters |= {
        "clock": _clock,
        "day": lambda at: f"{at.astimezone(UTC):%d %b %Y, %H:%M:%S} UTC",
        "iso": lambda at: at.astimezone(UTC).isoformat(timespec="seconds"),
        "short": short,
        "colour": colour,
        "shortened": _shorten,
        "named": format_title,
        "is_loud": ERROR_WORDS.search,
        "plainly": _format_input,
        "lasting": format_length,
        "dollars": format_dollars,
    }
    return environment.get_template(name)


def _show_invisible(value: Any) -> Any:
    """Return the text with control characters and direction marks replaced by U+FFFD; other values unchanged."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in value)


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}"


def _shorten(text: str, most: int = LINE) -> str:
    """Return the text without secrets; a long one is truncated, with the number of omitted characters."""
    start = redact_patterns(text[: most + MARGIN])[:most]  # truncated after redaction: no half secrets
    start = _show_invisible(start)
    return start if len(text) <= most else f"{start} ... ({len(text) - most:,} more characters)"


def _format_input(value: Any) -> str:
    """Format an input of a decision for display."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "not known" if value in (None, "") else str(value)
