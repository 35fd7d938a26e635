"""The page in a real browser: quiet, self-contained, legible by light and in the dark, on a phone and on paper."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from report_page.fleet_page import render_fleet_page
from report_page.page import render_page
from rerail.incident_report.facts import Facts
from rerail.incident_report.report import make_report
from tests.report.conftest import HOSTILE, held, hostile, immense
from tests.report.test_fleet_page import fleet, trains
from tools.browser import browser

pytestmark = pytest.mark.slow
PHONE, DESK = (360, 740), (1100, 900)
READABLE = 4.5  # WCAG AA for text

# Every text that is seen, with its colour, what lies behind it, and how these differ: WCAG's contrast ratio.
CONTRASTS = """() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return [m[0], m[1], m[2], m[3] ?? 1]; };
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = node => { for (let n = node; n; n = n.parentElement) {
      const c = parse(getComputedStyle(n).backgroundColor); if (c[3] > 0) return c; } return [255, 255, 255, 1]; };
  const seen = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || node.tagName === 'title' || !node.checkVisibility() || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const ink = parse(node instanceof SVGElement ? style.fill : style.color), paper = behind(node);
    const [a, b] = [light(ink), light(paper)].sort((x, y) => y - x);
    seen.push({text: node.textContent.trim().slice(0, 60), tag: node.tagName, ratio: (a + 0.05) / (b + 0.05)});
  }
  return seen;
}"""
# Labels of one picture that lie on each other.
OVERLAPS = """() => {
  const clashes = [];
  for (const chart of document.querySelectorAll('svg.chart')) {
    if (!chart.checkVisibility()) continue;
    const labels = [...chart.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    for (let i = 0; i < labels.length; i++) for (let j = i + 1; j < labels.length; j++) {
      const [a, b] = [labels[i][1], labels[j][1]];
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2)
        clashes.push(labels[i][0] + ' / ' + labels[j][0]);
    }
  }
  return clashes;
}"""
CLIPPED = """() => [...document.querySelectorAll('svg.chart')].filter(c => c.checkVisibility()).flatMap(c => {
  const box = c.getBoundingClientRect();
  const drawn = [...c.querySelectorAll("text, path")].filter(n => n.checkVisibility());
  return drawn.filter(n => { const r = n.getBoundingClientRect();
    return r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1; })
    .map(n => n.textContent || n.getAttribute('d').slice(0, 30)); })"""


@dataclass
class Opened:
    """A page, and whatever it said or asked for."""

    tab: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def opens(chromium: Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens what is known of a run, as a report, or a page that is given as HTML."""
    tabs = []

    def opened(known: Facts | str, size: tuple[int, int] = DESK, scheme: str = "light") -> Opened:
        file = tmp_path / f"page-{len(tabs)}.html"
        html = known if isinstance(known, str) else render_page(make_report(known))
        file.write_text(html, encoding="utf-8")
        tab = chromium.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        page = Opened(tab)
        tab.on("console", lambda message: page.said.append(message.text))
        tab.on("pageerror", lambda error: page.said.append(str(error)))
        tab.on("dialog", lambda dialog: page.said.append(dialog.message))
        tab.on("request", lambda request: page.asked.append(request.url))
        tab.goto(file.as_uri())
        tabs.append(tab)
        return page

    yield opened
    for tab in tabs:
        tab.close()


def each_of(recorded: Facts) -> tuple[Facts, ...]:
    return recorded, held(), hostile()


def test_the_page_logs_nothing_and_requests_nothing(opens, recorded):
    """No word in the console, no refused style, no request but the one for the page itself."""
    for known in each_of(recorded):
        page = opens(known)
        page.tab.wait_for_timeout(50)
        assert page.said == []
        assert len(page.asked) == 1
        assert (
            page.tab.evaluate("getComputedStyle(document.querySelector('header')).backgroundColor")
            != "rgba(0, 0, 0, 0)"
        )


def test_what_the_browser_reads_is_what_was_written(opens, recorded):
    """It has had to mend nothing: each tag of the text is an element, and there is no other."""
    for known in each_of(recorded):
        html = render_page(make_report(known))
        tags = html.count("<") - html.count("</") - html.count("<!")
        assert opens(known).tab.evaluate("document.querySelectorAll('*').length") == tags


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_nothing_has_to_be_scrolled_sideways(opens, recorded, size):
    """Neither the page nor anything on it is wider than the window, whatever the names."""
    for known in each_of(recorded):
        tab = opens(known, size).tab
        assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
        wide = "[...document.querySelectorAll('body *')].filter(n => n.getBoundingClientRect().right > innerWidth + 1)"
        assert tab.evaluate(f"{wide}.map(n => n.tagName + ' ' + n.textContent.slice(0, 40))") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(opens, recorded, scheme):
    """WCAG's contrast for text, computed of what is on the screen: by light and in the dark, in all three tones."""
    for known in each_of(recorded):
        texts = opens(known, scheme=scheme).tab.evaluate(CONTRASTS)
        assert len(texts) > 40
        assert [text for text in texts if text["ratio"] < READABLE] == []


def test_light_and_dark_differ(opens, recorded):
    """The page follows what the system prefers."""
    papers = {
        opens(recorded, scheme=scheme).tab.evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    }
    assert len(papers) == 2


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_no_label_overlaps_another_or_is_cut_off(opens, recorded, size):
    """On a phone the charts are drawn for a phone, with letters of a size to read."""
    tab = opens(recorded, size).tab
    assert tab.evaluate(OVERLAPS) == []
    assert tab.evaluate(CLIPPED) == []
    smallest = "Math.min(...[...document.querySelectorAll('svg.chart text')].filter(t => t.checkVisibility())"
    assert tab.evaluate(f"{smallest}.map(t => t.getBoundingClientRect().height))") >= 11


def test_the_marks_are_in_the_picture_and_in_its_key(opens, recorded):
    """Each with its label, and a sentence for whoever points at it or reads on."""
    tab = opens(recorded).tab
    assert sorted(tab.locator("#loss svg.wide .mark-label text").all_text_contents()) == [
        *("1 saved", "2 onset", "3 found", "4 stopped", "5 relaunched")
    ]
    titles = tab.locator("#loss svg.wide .mark-label title").all_text_contents()
    assert any("loss has been" in title for title in titles)
    assert tab.locator("#loss .key li").count() == 5
    assert tab.locator("#loss svg.wide .given-up path").count() == 1


def test_paper_gets_the_whole_picture(opens, recorded):
    """Printed on A4 no chart is clipped, the log is printed to its end, and what is folded on the screen is open."""
    tab = opens(recorded, (794, 1123)).tab
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("document.querySelectorAll('svg.chart.wide')[0].checkVisibility()")
    assert not tab.evaluate("document.querySelectorAll('svg.chart.narrow')[0].checkVisibility()")
    assert tab.evaluate(CLIPPED) == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= 794
    assert tab.evaluate("(l => l.scrollHeight <= l.clientHeight + 1)(document.querySelector('.log'))")
    assert [text for text in tab.evaluate(CONTRASTS) if text["ratio"] < READABLE] == []
    assert tab.pdf(format="A4")[:4] == b"%PDF"


@pytest.mark.threat("T13")
def test_hostile_texts_are_seen_as_text(opens):
    """They are there to be read, and nothing of them has become an element."""
    page = opens(hostile())
    assert page.said == []
    assert page.tab.locator("script, img").count() == 0
    assert HOSTILE in page.tab.locator(".happened").inner_text()
    assert HOSTILE in page.tab.locator(".log").inner_text()


def test_the_log_opens_at_its_end(opens, recorded):
    """The last line is the one that tells."""
    tab = opens(recorded).tab
    seen = """() => { const box = document.querySelector('.log').getBoundingClientRect();
      const last = [...document.querySelectorAll('.log pre > span')].at(-1).getBoundingClientRect();
      return last.bottom <= box.bottom + 1 && last.top >= box.top; }"""
    assert tab.evaluate(seen)


def test_the_largest_page_opens_on_a_phone(opens):
    """A hundred attempts: still no wider than the phone, and quiet."""
    page = opens(immense(every=100, tries=100), PHONE)
    assert page.said == []
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


@pytest.fixture(scope="module")
def thousand() -> str:
    """The page of a thousand runs, each with a curve; three wait for a person."""
    runs = [trains(f"run-{number}-{'x' * (number % 40)}") for number in range(997)]
    stuck = [replace(held().run, id=f"stuck-{number}") for number in range(3)]
    return render_fleet_page(fleet(*runs, *stuck), losses={run.id: (9.0, 4.0, 2.5) for run in runs})


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK])
def test_a_thousand_runs_fit_on_a_page(opens, thousand, size, scheme):
    """On a phone and a desk, by light and in the dark; the command for a held run is on the first screen."""
    page = opens(thousand, size, scheme)
    assert page.said == [] and len(page.asked) == 1
    assert page.tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert page.tab.evaluate("document.querySelectorAll('tbody tr').length") == 1000
    assert page.tab.evaluate("document.querySelector('.command').getBoundingClientRect().bottom") < size[1]
    texts = page.tab.evaluate(CONTRASTS)
    assert [text for text in texts if text["ratio"] < READABLE] == []
