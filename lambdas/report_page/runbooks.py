"""The text of a runbook as part of a page: a phone reader may not reach the documentation."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Beside this module in Lambda; in a checkout and in the wheel they are part of the documentation.
FOLDERS = (HERE / "runbooks", HERE.parent.parent / "docs" / "runbooks")
EXAMPLE_RUN, RUN_NAME = "my-run", re.compile(r"[A-Za-z0-9-]+")
HEADINGS = {"h2": "h3", "h3": "h4"}


def read_runbook(name: str) -> str:
    """Return the runbook as Markdown; "" if there is no such file."""
    files = (folder / f"{name}.md" for folder in FOLDERS)
    return next((file.read_text(encoding="utf-8") for file in files if file.is_file()), "")


def render_runbook(name: str, *, run: str, docs_url: str = "") -> tuple[str, str]:
    """Return title and HTML of the runbook, with the run's name in its commands; empty if there is no such file.

    Links to other pages need `docs_url`; without it their text stays."""
    from markdown_it import MarkdownIt  # most reports need no runbook

    text = read_runbook(name)
    if not text:
        return "", ""
    title, _, body = text.partition("\n")
    if RUN_NAME.fullmatch(run):
        body = body.replace(EXAMPLE_RUN, run)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(body)
    for token in tokens:
        token.tag = HEADINGS.get(token.tag, token.tag)
        if token.children:
            token.children = list(_resolve_links(token.children, docs_url))
    return title.lstrip("# ").strip(), str(markdown.renderer.render(tokens, markdown.options, {}))


def _resolve_links(tokens: list[Any], docs_url: str) -> Iterator[Any]:
    """Yield the tokens with links to pages of the documentation; without its address, no links."""
    for token in tokens:
        if token.type not in ("link_open", "link_close"):
            yield token
        elif docs_url:
            if token.type == "link_open":
                token.attrs["href"] = _find_address(str(token.attrs["href"]), docs_url)
                token.attrs["rel"] = "noreferrer"
            yield token


def _find_address(link: str, docs_url: str) -> str:
    """Return the address of a link in a runbook to another Markdown file."""
    if "://" in link:
        return link
    path, _, anchor = link.partition("#")
    folder = "" if path.startswith("../") else "runbooks/"
    page = path.removeprefix("../").removesuffix(".md")
    page = page.removesuffix("index") if page.endswith("index") else f"{page}/"
    return f"{docs_url}/{folder}{page}" + (f"#{anchor}" if anchor else "")
