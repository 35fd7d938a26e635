"""The pictures of docs/images: the incident report of a recorded run, in a real browser.

python -m tools.screenshots              draw them again from the recording; tools/terminal.py has those of terminals
python -m tools.screenshots --record     play `rerail demo --scenario spike` first, and record what is known of it
"""

import argparse
import gzip
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page

from report_page.page import render_page
from rerail.incident_report.facts import Facts
from rerail.incident_report.report import make_report
from rerail.model.codec import dumps, loads
from tools.browser import ROOT, browser
from tools.terminal import record_terminals, terminal_pictures

IMAGES = ROOT / "docs" / "images"
RECORDED = ROOT / "tests" / "report" / "data" / "spike.json.gz"
PLACES = re.compile(r"/[^\s\"]*/emulator/sagemaker/jobs/")
PATIENCE_S = 420.0
LARGEST = 300_000
Scheme = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture of the report: how wide the window is, how much of the page is shown, by light or in the dark."""

    name: str
    width: int
    height: int
    scheme: Scheme
    scale: float = 1.0


SHOTS = (
    Shot("report-light", 1100, 1380, "light"),
    Shot("report-dark", 1100, 1380, "dark"),
    Shot("report-phone", 390, 1500, "light", 1.5),
)


def main() -> None:
    """Draw them all; the files are named on the terminal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="play the demo first, and record its run")
    if parser.parse_args().record:
        record("spike", RECORDED)
        record_terminals()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with browser() as chromium:
        for path in (*report_pictures(chromium), *terminal_pictures(chromium)):
            print(path.relative_to(ROOT), f"{path.stat().st_size / 1000:.0f} kB")


def report_pictures(chromium: Browser) -> Iterator[Path]:
    """The recorded run's report: by light, in the dark, and on a phone."""
    html = render_page(make_report(recorded(RECORDED)))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(html, encoding="utf-8")
        for shot in SHOTS:
            with window(chromium, shot.width, shot.height, scheme=shot.scheme, scale=shot.scale) as tab:
                tab.goto(page.as_uri())
                path = IMAGES / f"{shot.name}.png"
                tab.screenshot(path=str(path))
                assert path.stat().st_size < LARGEST, f"{path} is too large for the docs"
                yield path


@contextmanager
def window(
    chromium: Browser, width: int, height: int, *, scheme: Scheme = "light", scale: float = 1.0
) -> Iterator[Page]:
    """A tab of its own, so large; `scale` is device pixels a CSS pixel."""
    tab = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=scale)
    try:
        yield tab
    finally:
        tab.close()


def recorded(path: Path) -> Facts:
    """Return the facts of the recorded run."""
    return loads(Facts, gzip.decompress(path.read_bytes()).decode())


def record(scenario: str, path: Path) -> None:
    """Play the demo's scenario on a local AWS, and write down what a report would know of its run."""
    from cli import place
    from cli.demo.scenarios import SCENARIOS, Name
    from cli.demo.stage import Stage, poll_until_over
    from cli.place import Place
    from cli.report import gather_facts
    from local.stack import LocalAws

    name = Name(scenario)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalAws(Path(folder), scale=60, schedule_scale=60, assemblies=place.SYNTHESES) as aws,
    ):
        place.use_local(aws.endpoint_url)
        stage = Stage(aws, SCENARIOS[name], run_id=f"demo-{name}", scale=60)
        stage.set_up()
        for _ in poll_until_over(stage, within_s=PATIENCE_S):
            pass
        known = gather_facts(Place("the recording", aws.outputs), stage.run_id)
    assert known is not None, "the stage has seen the run"
    # Where the local AWS keeps its jobs' files is of no interest to anybody.
    text = PLACES.sub("/opt/ml/", dumps(known))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
