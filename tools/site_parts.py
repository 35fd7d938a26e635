"""Write the generated parts of the documentation, and redirects from former addresses, while mkdocs builds the site.

mkdocs loads this file as a hook (mkdocs.yml). A page says where a part belongs with a pair of marks, such as
`<!-- fields -->` and `<!-- /fields -->`; what the repository has between them is for readers of the source.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "lambdas")]

from cli import reference  # noqa: E402
from rerail.model.former_names import RUNBOOKS  # noqa: E402
from tools import module_list, quotations  # noqa: E402

PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "cli.md": {"commands": reference.make_page},
    "modules.md": {"modules": module_list.make_page},
    "notices.md": {"samples": quotations.samples},
    "policies.md": {"fields": quotations.policy_fields},
}

# A page at a former address, to which notices and reports may still link.
REDIRECT = """<!doctype html>
<html lang="en">
<title>Redirect</title>
<meta http-equiv="refresh" content="0; url=../{name}/">
<a href="../{name}/">This page has moved.</a>
</html>
"""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with its generated parts; raise ValueError if it lacks the marks of one."""
    parts = PARTS.get(page.file.src_uri, {})
    return quotations.filled(markdown, {name: make() for name, make in parts.items()})


def on_post_build(config: Any, **_: Any) -> None:
    """Write a redirect at the former address of each renamed runbook."""
    for former, name in RUNBOOKS.items():
        page = Path(config["site_dir"], "runbooks", former, "index.html")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(REDIRECT.format(name=name), encoding="utf-8")
