"""Curves as SVG without script, style or links of its own, so that the page's one style sheet rules them.

pygal scales, lays out and draws; the marks are added to its tree, and what only its scripts need is taken out."""

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

COLOURS = 6
SVG = "http://www.w3.org/2000/svg"
DAY_S, HOUR_S, MINUTE_S = 86_400.0, 3_600.0, 60.0
DECIMALS = re.compile(r"(\d+\.\d)\d+")
# Of a mark's label, in pixels.
LETTER, LANE, PADDING = 6.8, 17.0, 10.0
# What the labels of an upright axis take, with the margins.
AXIS = 80.0
ALL_NAMED = 9
# Marks so near each other share a label where there are many, in pixels.
NEAR = 24.0

# Whatever is installed beside it, so that the same page is made everywhere.
etree.to_etree()


@dataclass(frozen=True, slots=True)
class Size:
    """How large a picture is made, in pixels at its own scale: a phone is given one with fewer, not smaller letters."""

    name: str
    width: int
    height: int
    x_labels: int
    y_labels: int
    lanes: int
    names: bool


WIDE = Size("wide", 920, 330, x_labels=9, y_labels=6, lanes=5, names=True)
NARROW = Size("narrow", 380, 280, x_labels=4, y_labels=5, lanes=5, names=False)


@dataclass(frozen=True, slots=True)
class Placed:
    """A mark in a picture, or several that nearly touch: what they say, where the first stands, and the lane and side
    of the label."""

    mark: CurveMark
    says: str
    x: float
    text: str
    lane: int
    to_the_left: bool


def drawn(chart: Chart, marks: Sequence[tuple[int, float, CurveMark]], size: Size) -> str:
    """The chart as an SVG element; `marks` are numbers of the key with their place along the axis."""
    lines = [(line, [(x, _scaled(chart, y)) for x, y in line.points]) for line in chart.curve.lines]
    points = [point for _, each in lines for point in each]
    xs = [x for x, _ in points] + [at for _, at, _ in marks] + list(chart.curve.gaps)
    low, high = min(xs), max(xs)
    bottom, top = _room([y for _, y in points], chart)
    lanes = _lanes(marks, (low, high), size)
    picture = pygal.XY(
        width=size.width,
        height=size.height + int(lanes * LANE),
        style=Style(font_family="inherit", colors=("#888",) * max(1, len(lines)), value_colors=("#888",) * len(lines)),
        css=(),
        js=(),
        no_prefix=True,
        show_legend=False,
        show_dots=False,
        margin=6,
        margin_top=int(8 + lanes * LANE),
        margin_right=14,
        range=(bottom, top),
        xrange=(low, high if high > low else low + 1),
        x_labels=list(_x_labels(low, high, chart.axis, size.x_labels)),
        y_labels=list(_y_labels(bottom, top, chart, size.y_labels)),
        disable_xml_declaration=True,
        xml_filters=(lambda root: root,),
    )
    for line, each in lines:
        picture.add(f"attempt {line.attempt}", each)
    picture.add_xml_filter(lambda root: _finished(root, picture, chart, marks, size, lanes))
    return ElementTree.tostring(picture.render_tree(), encoding="unicode")


def colour(attempt: int) -> str:
    """The class of an attempt's lines: neighbours differ."""
    return f"c{(attempt - 1) % COLOURS}"


def _scaled(chart: Chart, value: float) -> float:
    """pygal would make both axes logarithmic; steps are not."""
    return log10(value) if chart.logarithmic else value


def _room(values: Sequence[float], chart: Chart) -> tuple[float, float]:
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
    """1, 2 and 5 times powers of ten; where these are too many or too few, powers alone or round numbers."""
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
    """Round numbers between the two."""
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
    """A number for an axis."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % (size / 10) == 0):
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _finished(
    root: Any, picture: Any, chart: Chart, marks: Sequence[tuple[int, float, CurveMark]], size: Size, lanes: int
) -> Any:
    """pygal's tree with our marks, and without what it has for its scripts."""
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
    for placed in _placed([(n, view.x(x), mark) for n, x, mark in marks], view.width, size, lanes):
        _draw(plot, placed, view.height)
    # All lines first, then all labels, so that no line crosses a letter.
    plot[:] = sorted(plot, key=lambda node: node.attrib.get("class", "").startswith("mark-label"))
    _cleaned(root)
    root.attrib.clear()
    root.attrib |= {
        "xmlns": SVG,
        "class": f"chart {size.name}",
        "viewBox": f"0 0 {picture.width} {picture.height}",
        "role": "img",
        "aria-label": f"{chart.title}. {chart.says}".strip(),
    }
    return root


def _lanes(marks: Sequence[tuple[int, float, CurveMark]], axis: tuple[float, float], size: Size) -> int:
    """How many lanes the labels will need: how wide the plot will be is known when its axis is laid out, so that it is
    reckoned here as narrower than it may be."""
    width = size.width - AXIS
    scale = width / ((axis[1] - axis[0]) or 1.0)
    guessed = _placed([(n, (x - axis[0]) * scale, mark) for n, x, mark in marks], width, size, size.lanes)
    return max((placed.lane + 1 for placed in guessed), default=0)


def _placed(marks: Sequence[tuple[int, float, CurveMark]], width: float, size: Size, lanes: int) -> Iterator[Placed]:
    """Each label in the lowest lane where it touches no other, from the right to the left, so that no mark's line goes
    through the label of one before it; where there are many, neighbours share one."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(lanes)]
    named = size.names and len(marks) <= ALL_NAMED
    for group in reversed(list(_neighbours(marks))):
        number, x, mark = group[0]
        text = f"{number} {mark.sort}" if named and len(group) == 1 else _numbers([n for n, _, _ in group])
        length = len(text) * LETTER + PADDING
        to_the_left = x + length > width
        span = (x - length, x) if to_the_left else (x, x + length)
        free = [i for i, lane in enumerate(taken) if all(span[1] <= a or span[0] >= b for a, b in lane)]
        lane = free[0] if free else len(taken) - 1
        taken[lane].append(span)
        says = "\n".join(f"{n} {each.sort}: {each.says}" for n, _, each in group)
        yield Placed(mark, says, x, text, lane, to_the_left)


def _neighbours(marks: Sequence[tuple[int, float, CurveMark]]) -> Iterator[list[tuple[int, float, CurveMark]]]:
    """The marks from left to right; of too many for a label each, those that nearly touch are taken together."""
    group: list[tuple[int, float, CurveMark]] = []
    for each in sorted(marks, key=lambda mark: (mark[1], mark[0])):
        if group and (len(marks) <= ALL_NAMED or each[1] - group[0][1] > NEAR):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _numbers(numbers: Sequence[int]) -> str:
    """`1-4, 7`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _draw(plot: Any, placed: Placed, height: float) -> None:
    top = -(placed.lane + 1) * LANE
    sort = re.sub(r"\W", "-", placed.mark.sort)
    line = ElementTree.SubElement(plot, "g", {"class": f"mark {sort}"})
    ElementTree.SubElement(line, "title").text = placed.says
    d = f"M{placed.x:.1f} {top + 2:.1f} V{height:.1f}"
    ElementTree.SubElement(line, "path", {"class": "mark-line", "d": d})
    label = ElementTree.SubElement(plot, "g", {"class": f"mark-label {sort}"})
    ElementTree.SubElement(label, "title").text = placed.says
    side = {"text-anchor": "end", "x": f"{placed.x - 4:.1f}"} if placed.to_the_left else {"x": f"{placed.x + 4:.1f}"}
    ElementTree.SubElement(label, "text", {**side, "y": f"{top + 12:.1f}"}).text = placed.text


def _cleaned(node: Any) -> None:
    """Without comments, scripts, styles, tooltips, and titles that repeat an axis."""
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
        _cleaned(child)
    for title in [child for child in node if child.tag == "title" and node.tag == "svg"]:
        node.remove(title)
