"""Numbers as people read them."""

import pytest

from rerail.model.formatting import format_files


@pytest.mark.parametrize(("number", "expected"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1200, "1,200 files")])
def test_a_number_of_files_has_the_noun_that_it_needs(number: int, expected: str) -> None:
    assert format_files(number) == expected
