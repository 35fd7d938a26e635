"""Draw curves as SVG without scripts, styles or links; the page's style sheet formats them.

pygal scales and draws the lines. This module adds the marks to its element tree and removes what its scripts need."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, isclose, log10
from typing import Any
from xml.etree import ElementTree

import pygal
from pygal.etree import etree
from pygal.style import Style

from rerail.incident_report.marks import CurveMark
from rerail.incident_report.report import Axis, Chart

COLOUR_COUNT = 6
SVG = "http://www.w3.org/2000/svg"
DAY_S, HOUR_S, MINUTE_S = 86_400.0, 3_600.0, 60.0
DECIMALS = re.compile(r"(\d+\.\d)\d+")
# Label of a mark, in pixels: width of a character, height of a lane, padding.
CHARACTER_WIDTH, LANE_HEIGHT, PADDING = 6.8, 17.0, 10.0
# Width of the vertical axis' labels with the margins, in pixels.
AXIS_WIDTH = 80.0
# With more marks than this, labels show numbers only, and marks within this distance in pixels share a label.
NAMED_MARK_LIMIT = 9
SHARED_LABEL_DISTANCE = 24.0

# Always use the standard library's ElementTree, even if lxml is installed, so that the same page is made everywhere.
etree.to_etree()


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a chart in pixels; the one for phones has fewer labels instead of smaller ones."""

    name: str  # CSS class
    width: int
    height: int
    x_labels: int  # maximum number
    y_labels: int  # maximum number
    lanes: int  # maximum number of rows for the labels of marks
    names: bool  # whether the labels of marks include their kind


WIDE = Size("wide", 920, 330, x_labels=9, y_labels=6, lanes=5, names=True)
NARROW = Size("narrow", 380, 280, x_labels=4, y_labels=5, lanes=5, names=False)


@dataclass(frozen=True, slots=True)
class _PlacedMark:
    """A mark with its position, or several marks that share a label."""

    mark: CurveMark  # the first one
    caption: str  # descriptions of all
    x: float  # position of the first one, in pixels
    text: str  # label
    lane: int  # row of the label, counted from the plot upwards
    to_the_left: bool  # whether the label is left of the line


def render_chart(chart: Chart, marks: Sequence[tuple[int, float, CurveMark]], size: Size) -> str:
    """Return the chart as an SVG element; `marks` are number, axis position and mark."""
    lines = [(line, [(x, _scaled(chart, y)) for x, y in line.points]) for line in chart.curve.lines]
    points = [point for _, line_points in lines for point in line_points]
    xs = [x for x, _ in points] + [at for _, at, _ in marks] + list(chart.curve.gaps)
    low, high = min(xs), max(xs)
    bottom, top = _y_range([y for _, y in points], chart)
    lanes = _count_lanes(marks, (low, high), size)
    picture = pygal.XY(
        width=size.width,
        height=size.height + int(lanes * LANE_HEIGHT),
        style=Style(font_family="inherit", colors=("#888",) * max(1, len(lines)), value_colors=("#888",) * len(lines)),
        css=(),
        js=(),
        no_prefix=True,
        show_legend=False,
        show_dots=False,
        margin=6,
        margin_top=int(8 + lanes * LANE_HEIGHT),
        margin_right=14,
        range=(bottom, top),
        xrange=(low, high if high > low else low + 1),
        x_labels=list(_x_labels(low, high, chart.axis, size.x_labels)),
        y_labels=list(_y_labels(bottom, top, chart, size.y_labels)),
        disable_xml_declaration=True,
        xml_filters=(lambda root: root,),
    )
    for line, line_points in lines:
        picture.add(f"attempt {line.attempt}", line_points)
    picture.add_xml_filter(lambda root: _finish(root, picture, chart, marks, size, lanes))
    return ElementTree.tostring(picture.render_tree(), encoding="unicode")


def colour(attempt: int) -> str:
    """Return the CSS class of an attempt's lines; consecutive attempts differ."""
    return f"c{(attempt - 1) % COLOUR_COUNT}"


def _scaled(chart: Chart, value: float) -> float:
    """Return the value on the chart's scale; pygal's own logarithmic mode would apply to the steps too."""
    return log10(value) if chart.logarithmic else value


def _y_range(values: Sequence[float], chart: Chart) -> tuple[float, float]:
    low, high = min(values), max(values)
    if chart.unit and not chart.logarithmic:
        low = min(0.0, low)
    if isclose(low, high):
        return low - 0.5, high + 0.5
    margin = (high - low) * 0.05
    return (low - margin if low else 0.0), high + margin


def _y_labels(bottom: float, top: float, chart: Chart, most: int) -> Iterator[dict[str, Any]]:
    ticks = _decades(bottom, top, most) if chart.logarithmic else _round(bottom, top, most)
    for tick in ticks:
        yield {"value": _scaled(chart, tick), "label": short(tick)}


def _decades(bottom: float, top: float, most: int) -> list[float]:
    """Return ticks at 1, 2 and 5 times powers of ten; with too many or too few, powers alone or round numbers."""
    orders = range(floor(bottom), floor(top) + 1)
    for factors in ((1, 2, 5), (1,)):
        ticks = [factor * 10.0**order for order in orders for factor in factors]
        ticks = [tick for tick in ticks if bottom <= log10(tick) <= top]
        if 2 <= len(ticks) <= most + 2:
            return ticks
    return (
        ticks[:: len(ticks) // most + 1]
        if len(ticks) > most
        else [t for t in _round(10**bottom, 10**top, most) if t > 0]
    )


def _round(low: float, high: float, most: int) -> list[float]:
    """Return about `most` round numbers between the two."""
    rough = (high - low) / max(1, most)
    order = 10.0 ** floor(log10(rough))
    step = next(factor * order for factor in (1, 2, 2.5, 5, 10) if factor * order >= rough * 0.999)
    first = -floor(-low / step + 1e-9)
    return [(first + index) * step for index in range(floor(high / step + 1e-9) - first + 1)]


def _x_labels(low: float, high: float, axis: Axis, most: int) -> Iterator[dict[str, Any]]:
    if axis is Axis.STEP:
        for tick in _round(low, high if high > low else low + 1, most):
            if tick == int(tick):
                yield {"value": tick, "label": short(tick)}
        return
    unit, word = _unit(high - low)
    for tick in _round(low / unit, high / unit if high > low else low / unit + 1, most):
        yield {"value": tick * unit, "label": f"{tick:g} {word}"}


def _unit(seconds: float) -> tuple[float, str]:
    if seconds > 3 * DAY_S:
        return DAY_S, "d"
    if seconds > 3 * HOUR_S:
        return HOUR_S, "h"
    return (MINUTE_S, "min") if seconds > 5 * MINUTE_S else (1.0, "s")


def short(value: float) -> str:
    """Format a number for an axis, with a suffix of k, M or G."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % (size / 10) == 0):
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _finish(
    root: Any, picture: Any, chart: Chart, marks: Sequence[tuple[int, float, CurveMark]], size: Size, lanes: int
) -> Any:
    """Return pygal's tree with the marks added and the elements for its scripts removed."""
    view = picture.view
    plot = picture.nodes["plot"]
    for number, line in enumerate(chart.curve.lines):
        for node in plot:
            if node.attrib.get("class", "").startswith(f"series serie-{number} "):
                node.attrib["class"] = f"series {colour(line.attempt)}" + ("" if line.kept else " given-up")
                ElementTree.SubElement(node, "title").text = f"attempt {line.attempt}"
    for x in chart.curve.gaps:
        at = view.x(x)
        gap = ElementTree.SubElement(plot, "path", {"class": "gap", "d": f"M{at - 3:.1f} 3 l6 6 m0 -6 l-6 6"})
        ElementTree.SubElement(gap, "title").text = f"not a finite number at {short(x)}"
    for placed in _place_marks([(n, view.x(x), mark) for n, x, mark in marks], view.width, size, lanes):
        _draw(plot, placed, view.height)
    # Lines before labels, so that no line is drawn over a label.
    plot[:] = sorted(plot, key=lambda node: node.attrib.get("class", "").startswith("mark-label"))
    _clean(root)
    root.attrib.clear()
    root.attrib |= {
        "xmlns": SVG,
        "class": f"chart {size.name}",
        "viewBox": f"0 0 {picture.width} {picture.height}",
        "role": "img",
        "aria-label": f"{chart.title}. {chart.caption}".strip(),
    }
    return root


def _count_lanes(marks: Sequence[tuple[int, float, CurveMark]], axis: tuple[float, float], size: Size) -> int:
    """Return how many lanes the labels need.

    The width of the plot is not known before pygal's layout, so a lower bound is used."""
    width = size.width - AXIS_WIDTH
    scale = width / ((axis[1] - axis[0]) or 1.0)
    placed = _place_marks([(n, (x - axis[0]) * scale, mark) for n, x, mark in marks], width, size, size.lanes)
    return max((mark.lane + 1 for mark in placed), default=0)


def _place_marks(
    marks: Sequence[tuple[int, float, CurveMark]], width: float, size: Size, lanes: int
) -> Iterator[_PlacedMark]:
    """Place each label in the lowest lane where it overlaps no other; with many marks, neighbours share a label.

    Going from right to left keeps the line of a mark out of the labels to its left."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(lanes)]
    named = size.names and len(marks) <= NAMED_MARK_LIMIT
    for group in reversed(list(_group_neighbours(marks))):
        number, x, mark = group[0]
        text = f"{number} {mark.kind}" if named and len(group) == 1 else _format_numbers([n for n, _, _ in group])
        length = len(text) * CHARACTER_WIDTH + PADDING
        to_the_left = x + length > width
        span = (x - length, x) if to_the_left else (x, x + length)
        free = [i for i, lane in enumerate(taken) if all(span[1] <= a or span[0] >= b for a, b in lane)]
        lane = free[0] if free else len(taken) - 1
        taken[lane].append(span)
        caption = "\n".join(f"{n} {member.kind}: {member.text}" for n, _, member in group)
        yield _PlacedMark(mark, caption, x, text, lane, to_the_left)


def _group_neighbours(marks: Sequence[tuple[int, float, CurveMark]]) -> Iterator[list[tuple[int, float, CurveMark]]]:
    """Yield groups of marks from left to right; only if there are many does a group have more than one mark."""
    group: list[tuple[int, float, CurveMark]] = []
    for mark in sorted(marks, key=lambda mark: (mark[1], mark[0])):
        if group and (len(marks) <= NAMED_MARK_LIMIT or mark[1] - group[0][1] > SHARED_LABEL_DISTANCE):
            yield group
            group = []
        group.append(mark)
    if group:
        yield group


def _format_numbers(numbers: Sequence[int]) -> str:
    """Format numbers as ranges, such as "1-4, 7"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _draw(plot: Any, placed: _PlacedMark, height: float) -> None:
    top = -(placed.lane + 1) * LANE_HEIGHT
    sort = re.sub(r"\W", "-", placed.mark.kind)
    line = ElementTree.SubElement(plot, "g", {"class": f"mark {sort}"})
    ElementTree.SubElement(line, "title").text = placed.caption
    d = f"M{placed.x:.1f} {top + 2:.1f} V{height:.1f}"
    ElementTree.SubElement(line, "path", {"class": "mark-line", "d": d})
    label = ElementTree.SubElement(plot, "g", {"class": f"mark-label {sort}"})
    ElementTree.SubElement(label, "title").text = placed.caption
    side = {"text-anchor": "end", "x": f"{placed.x - 4:.1f}"} if placed.to_the_left else {"x": f"{placed.x + 4:.1f}"}
    ElementTree.SubElement(label, "text", {**side, "y": f"{top + 12:.1f}"}).text = placed.text


def _clean(node: Any) -> None:
    """Remove comments, scripts, styles, tooltips, and titles that repeat an axis."""
    for child in list(node):
        name = child.attrib.get("class", "") if isinstance(child.tag, str) else ""
        empty = child.tag == "g" and not len(child)
        unwanted = not isinstance(child.tag, str) or child.tag in ("defs", "script", "style") or "tooltip" in name
        if (
            unwanted
            or empty
            or (child.tag == "title" and "guides" in node.attrib.get("class", ""))
            or "overlay" in name
        ):
            node.remove(child)
            continue
        child.attrib.pop("style", None)
        if "d" in child.attrib:
            child.attrib["d"] = DECIMALS.sub(r"\1", child.attrib["d"])
        _clean(child)
    for title in [child for child in node if child.tag == "title" and node.tag == "svg"]:
        node.remove(title)
