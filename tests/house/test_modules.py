"""Each module says in one line what it is for: the page "Modules" shows it."""

from pathlib import Path

import pytest

from tools.module_list import find_modules, make_page


@pytest.mark.parametrize(("path", "line"), list(find_modules()), ids=lambda value: str(value))
def test_the_first_line_is_a_sentence(path: Path, line: str) -> None:
    assert line, f"{path} needs a docstring"
    assert line[-1] in ".?`]", f"{path}: the first line of the docstring must be a whole sentence"


def test_the_page_has_every_module() -> None:
    page = make_page()
    assert all(f"| `{path.name}` | " in page and f"### {path.parent}\n" in page for path, _ in find_modules())
