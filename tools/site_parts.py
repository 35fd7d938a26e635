"""Write the generated parts of the documentation into its pages while mkdocs builds the site.

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
from tools import quotations  # noqa: E402

PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "cli.md": {"commands": reference.make_page},
    "notices.md": {"samples": quotations.samples},
    "policies.md": {"fields": quotations.policy_fields},
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with its generated parts; raise ValueError if it lacks the marks of one."""
    parts = PARTS.get(page.file.src_uri, {})
    return quotations.filled(markdown, {name: make() for name, make in parts.items()})
