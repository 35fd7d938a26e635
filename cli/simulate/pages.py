"""Writes tables into a page of Markdown, each between two marks of its name."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from cli.backtest.series import BadInput


def format_markdown(table: Table) -> str:
    """Return the table as Markdown, with figures aligned to the right."""
    names = [str(column.header) for column in table.columns]
    rules = ["---:" if column.justify == "right" else "---" for column in table.columns]
    rows = zip(*(list(column.cells) for column in table.columns), strict=True)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, rules, *_plain(rows)))


def _plain(rows: Iterable[Sequence[object]]) -> list[list[str]]:
    return [[str(cell).strip() for cell in row] for row in rows]


def write(file: Path, tables: Mapping[str, Table]) -> None:
    """Put each table between `<!-- name -->` and `<!-- /name -->`; raise BadInput if the page lacks these marks."""
    try:
        page = file.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error}", "name a page that exists") from error
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, began, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not began or not ended:
            raise BadInput(f"{file} has no marks for the table {name!r}", f"write <!-- {name} --> and <!-- /{name} -->")
        page = f"{before}{begin}\n{format_markdown(table)}\n\n{end}{after}"
    file.write_text(page, encoding="utf-8")
