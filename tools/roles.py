"""Print the permissions of each role in an account where Rerail is deployed: `python -m tools.roles`.

They are read from the synthesized template, and the reasons for wildcards from the notes of the synthesis.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.deploy import choices, permissions
from local import deploy
from local.deploy import DeployError

ROOT = Path(__file__).resolve().parent.parent
WHY = "a wildcard, because"


def roles(template: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """Return a heading for each role, and a table of what it may and may not do."""
    granted = list(permissions.find_grants(template, permissions.read_reasons(metadata)))
    found = permissions.group_rows(granted)
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


def main() -> int:
    """Print the tables; return 0, or 2 if the template cannot be synthesized."""
    try:
        assembly = deploy.synthesize(ROOT, ROOT / ".local" / "assemblies", context=choices.with_example_scope())
    except DeployError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    template, metadata = (
        json.loads((assembly / f"Rerail.{part}.json").read_text()) for part in ("template", "metadata")
    )
    print(roles(template, metadata))
    return 0


if __name__ == "__main__":
    sys.exit(main())
