"""The documentation site builds, has no dead links, loads nothing from other hosts, and has every runbook."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from rerail.model.former_names import RUNBOOKS
from rerail.model.run import RunState
from rerail.model.runbooks import Runbook
from tools import quotations

ROOT = quotations.ROOT
DOCS = quotations.DOCS
PAGES = DOCS / "runbooks"
SECTIONS = ("Meaning", "Impact", "Diagnosis", "Mitigation", "Prevention")
# What a page loads by itself, unlike a link.
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("image", "href")}
NOT_LOADED = {"canonical", "next", "prev", "alternate"}
IN_STYLES = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])(https?:)?//")
# Words about how the project is made, which its readers do not need.
INTERNAL = re.compile(r"\b((?i:builders?|this session|sub-?agents?|our contract|the lead|lorem ipsum)|TODO|FIXME)\b")


@dataclass
class Page(HTMLParser):
    """The links of a built page, what it loads, and the anchors in it."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = dict(attrs)
        self.places |= {has[name] or "" for name in ("id", "name") if name in has}
        if tag == "a" and has.get("href"):
            self.links.append(has["href"] or "")
        for name, value in has.items():
            if (tag, name) in LOADED and value and has.get("rel") not in NOT_LOADED:
                self.loads.append(value)


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does: every warning is an error."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert built.returncode == 0, built.stdout + built.stderr
    return place


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: read(path) for path in site.rglob("*.html")}


@pytest.mark.slow
def test_every_page_of_the_docs_is_built_and_in_the_navigation(site: Path, pages: dict[Path, Page]):
    """Every page can be reached from the start page's menu."""
    wanted = {_built(path) for path in DOCS.rglob("*.md")}
    start = site / "index.html"
    reached = {_target(start, link)[0] for link in pages[start].links if not urlsplit(link).scheme}
    assert {site / name for name in wanted} <= reached | {start}


def test_every_link_leads_to_a_page_and_an_anchor(site: Path, pages: dict[Path, Page]):
    """No dead link, no dead anchor, within the whole site."""
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are from the root of wherever the site is served
        for link in page.links:
            if urlsplit(link).scheme:
                continue
            target, place = _target(path, link)
            if not target.exists() or (place and target in pages and place not in pages[target].places):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert not dead


def test_a_list_in_a_page_is_a_list_on_the_site(site: Path):
    """Markdown needs an empty line before a list or a table: without it the site shows dashes and bars."""
    broken = re.compile(r"<p>(?:(?!</p>).)*\n(?:- |\d+\. |\| )", re.DOTALL)
    assert not [path for path in site.rglob("*.html") if broken.search(path.read_text(encoding="utf-8"))]


def test_no_page_fetches_anything_from_another_host(site: Path, pages: dict[Path, Page]):
    """The site works without internet access."""
    foreign = {f"{path.relative_to(site)}: {url}" for path, page in pages.items() for url in page.loads if "//" in url}
    assert not foreign
    assert not [style.name for style in site.rglob("*.css") if IN_STYLES.search(style.read_text(encoding="utf-8"))]


def test_every_picture_that_a_page_shows_is_there_and_small(site: Path, pages: dict[Path, Page]):
    """Loaded files exist; pictures stay below 300 kB."""
    for path, page in pages.items():
        for url in (url for url in page.loads if path.name != "404.html"):
            assert _target(path, url)[0].exists(), url
    assert not [image.name for image in DOCS.rglob("*.png") if image.stat().st_size > 300_000]


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_is_about_the_project_only(path: Path):
    """No page mentions how it was made or what is still to be written."""
    assert not INTERNAL.findall(path.read_text(encoding="utf-8"))


def test_every_runbook_has_exactly_its_page():
    """Each runbook that a notice can name has a page, and no page is unused."""
    assert {path.stem for path in PAGES.glob("*.md")} == {runbook.value for runbook in Runbook} | {"index"}


@pytest.mark.parametrize("runbook", Runbook)
def test_a_runbook_has_the_same_parts_as_every_other(runbook: Runbook):
    """The sections are the same in each; Mitigation begins with a step."""
    page = (PAGES / f"{runbook.value}.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^## (.+)$", page, re.MULTILINE)) == SECTIONS
    parts = re.split(r"^## .+$", page, flags=re.MULTILINE)[1:]
    assert all(part.strip() for part in parts)
    assert quotations.meaning(runbook)[-1] == "."
    assert parts[3].lstrip().startswith("1.  ")


def test_quotations_of_code_are_up_to_date():
    """Rules, checks, causes, findings and runbooks; `python -m tools.quotations` writes them."""
    assert not [path.name for path, text in quotations.pages() if path.read_text(encoding="utf-8") != text]


@pytest.mark.parametrize(
    ("page", "text"), [("cli", "rerail drill"), ("policies", "stall_floor"), ("notices", "Subject: ")]
)
def test_generated_parts_are_in_the_built_pages(site: Path, page: str, text: str):
    """The commands, the fields of a policy and the sample notices, which no page of the repository contains."""
    assert text in (site / page / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("former", "name"), RUNBOOKS.items())
def test_a_former_address_of_a_runbook_redirects(site: Path, former: str, name: str):
    """Notices and reports of earlier versions link to the former address."""
    assert Runbook(former) is Runbook(name)
    assert f'url=../{name}/"' in (site / "runbooks" / former / "index.html").read_text(encoding="utf-8")
    assert (site / "runbooks" / name / "index.html").exists()


def test_a_page_without_its_marks_is_refused():
    """A quotation whose marks are missing is an error."""
    with pytest.raises(ValueError, match="<!-- rules -->"):
        quotations.filled("# How it decides\n", {"rules": "| a |"})


def test_every_state_of_a_run_is_explained():
    """The table of states has all of them."""
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "how-it-decides.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {state.value for state in RunState} <= set(rows)


def _built(path: Path) -> str:
    name = path.relative_to(DOCS).with_suffix("").as_posix()
    return f"{name}.html" if name.split("/")[-1] == "index" else f"{name}/index.html"


def _target(page: Path, link: str) -> tuple[Path, str]:
    """The file that a relative link of a page leads to, and the place in it."""
    parts = urlsplit(link)
    there = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return (there / "index.html" if there.is_dir() else there), unquote(parts.fragment)
