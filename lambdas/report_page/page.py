"""A story as one HTML page that needs nothing else: no script, no other file, no request."""

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

from report_page.charts import NARROW, WIDE, colour, drawn, short
from rerail.incident_report.costs import format_length
from rerail.incident_report.marks import CurveMark
from rerail.incident_report.report import LINE, Axis, Chart, IncidentReport, format_title
from rerail.model.secrets import redact_patterns
from rerail.notices.notifiers.links import NoticeOrigin

HERE = Path(__file__).parent
MARGIN = 500
# What one looks for in a log.
LOUD = re.compile(
    r"\b(?:\w*error|\w*exception|traceback|fatal|killed|nan|inf|xid|out of memory|segmentation fault)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart, drawn for a wide screen or paper, and for a phone."""

    chart: Chart
    wide: Markup
    narrow: Markup


def drawn_page(story: IncidentReport, *, docs_url: str = "", region: str = "") -> str:
    """The page; `docs_url` is where the runbooks are served, "" where they are only in the repository, `region` that of
    the console that jobs are linked to, "" for none."""
    style = (HERE / "style.css").read_text(encoding="utf-8")
    numbered = list(enumerate(story.marks, start=1))
    html: str = _template().render(
        story=story,
        style=Markup(style),  # nosec B704: ours, and it holds nothing of the run
        style_hash=b64encode(sha256(style.encode()).digest()).decode(),
        pictures=[_picture(story, chart, numbered) for chart in story.charts],
        numbered=numbered,
        drawn_attempts=sorted({line.attempt for chart in story.charts for line in chart.curve.lines}),
        docs_url=docs_url.rstrip("/"),
        region=region,
        console=NoticeOrigin("", region).console if region else "",
        longest=max((seconds for _, seconds in story.seconds), default=1.0) or 1.0,
        total=sum(seconds for _, seconds in story.seconds) or 1.0,
    )
    return html


def _picture(story: IncidentReport, chart: Chart, numbered: Sequence[tuple[int, CurveMark]]) -> Picture:
    told = [(number, replace(mark, says=_shortened(mark.says))) for number, mark in numbered]
    placed = [(number, at, mark) for number, mark in told if (at := _place(story, chart, mark)) is not None]
    # What pygal and ElementTree have written is escaped by them.
    return Picture(chart, Markup(drawn(chart, placed, WIDE)), Markup(drawn(chart, placed, NARROW)))  # nosec B704


def _place(story: IncidentReport, chart: Chart, mark: CurveMark) -> float | None:
    if chart.axis is Axis.STEP:
        inside = mark.step is not None and chart.window[0] <= mark.step <= chart.window[1]
        return float(mark.step) if inside and mark.step is not None else None
    return None if mark.at is None else (mark.at - story.began).total_seconds()


@cache
def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_seen,
    )
    environment.filters |= {
        "clock": _clock,
        "day": _day,
        "iso": lambda at: at.astimezone(UTC).isoformat(timespec="seconds"),
        "short": short,
        "colour": colour,
        "shortened": _shortened,
        "named": format_title,
        "is_loud": LOUD.search,
        "plainly": _plainly,
        "lasting": format_length,
    }
    return environment.get_template("page.html")


def _seen(value: Any) -> Any:
    """A text as it can be seen: what is no character to be read, or turns a line around, is marked."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in value)


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%H:%M:%S}"


def _day(at: datetime) -> str:
    return f"{at.astimezone(UTC):%d %b %Y, %H:%M:%S} UTC"


def _shortened(text: str, most: int = LINE) -> str:
    """The beginning of a long text without what looks like a secret, and how much more there is."""
    start = redact_patterns(text[: most + MARGIN])[:most]  # a secret on the edge is hidden before it is cut
    start = _seen(start)
    return start if len(text) <= most else f"{start} ... ({len(text) - most:,} more characters)"


def _plainly(value: Any) -> str:
    """A decision's input as people read it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "not known" if value in (None, "") else str(value)
