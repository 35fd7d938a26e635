"""Who may do what in an account where Rerail is deployed: `python -m tools.roles [--page docs/security.md]`.

Everything is read from the synthesized template; why something is a wildcard, from what the synthesis noted."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.deploy import permissions
from local import deploy
from local.deploy import DeployError

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- roles -->", "<!-- /roles -->"
WHY = "a wildcard, because"


def roles(template: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """A heading for each who, and a table of what they may and may not."""
    granted = list(permissions.grants(template, permissions.reasons_in(metadata)))
    found = permissions.rows(granted)
    parts = []
    for who in dict.fromkeys(row.who for row in found):
        parts += [
            f"### {who[0].upper()}{who[1:]}",
            "",
            f"| | what | on | where | {WHY} |",
            "| --- | --- | --- | --- | --- |",
        ]
        for row in found:
            if row.who == who:
                cells = (
                    "may" if row.may else "**never**",
                    _code(row.actions),
                    _code(row.on),
                    _code(row.when),
                    row.because,
                )
                parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts).rstrip()


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def filled(page: str, block: str) -> str:
    """The page with the block between its marks; raises ValueError where it has none."""
    before, began, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not began or not ended:
        raise ValueError(f"the page has no marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{block}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print it, or write it into a page."""
    parser = argparse.ArgumentParser(prog="python -m tools.roles", description=__doc__)
    parser.add_argument("--page", type=Path, help=f"a page of Markdown with {BEGIN}, such as docs/security.md")
    page = parser.parse_args(arguments).page
    try:
        assembly = deploy.synthesize(ROOT, ROOT / ".local" / "assemblies")
    except DeployError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    read = (json.loads((assembly / f"Rerail.{part}.json").read_text()) for part in ("template", "metadata"))
    block = roles(*read)
    if page:
        page.write_text(filled(page.read_text(encoding="utf-8"), block), encoding="utf-8")
    else:
        print(block)
    return 0


if __name__ == "__main__":
    sys.exit(main())
