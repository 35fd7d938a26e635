"""Each module says in one line what it is for: the page "Modules" shows it."""

from tools.module_list import find_modules, make_page


def test_the_first_line_is_a_sentence() -> None:
    """Write a docstring whose first line is a whole sentence."""
    assert not [str(path) for path, line in find_modules() if not line or line[-1] not in ".?`]"]


def test_the_page_has_every_module() -> None:
    page = make_page()
    assert all(f"| `{path.name}` | " in page and f"### {path.parent}\n" in page for path, _ in find_modules())
