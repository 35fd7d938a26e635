"""Open the text files that people give: in UTF-8, or in UTF-16, which `>` writes in Windows PowerShell."""

import gzip
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

# What a terminal's machine holds in memory, as lines; a gzipped file may have a thousand times its size.
MOST_BYTES = 512 << 20


@contextmanager
def open_text(file: Path) -> Iterator[TextIO]:
    """Open a file, gzipped or not, with its line ends as they are; bytes of another encoding are replaced.

    Raise OSError while it is opened or read, if it cannot be, has too much, or may have no end, as a pipe.
    """
    if file.exists() and not file.is_file():
        raise OSError("it is not a regular file")
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content:
        try:
            size = 0 if file.suffix == ".gz" else file.stat().st_size
            while file.suffix == ".gz" and size <= MOST_BYTES and (part := content.read(1 << 20)):
                size += len(part)
            if size > MOST_BYTES:
                raise OSError(f"it has more than {MOST_BYTES >> 20} MiB of text: give a part of it")
            content.seek(0)
            encoding = "utf-16" if content.peek(2)[:2] in (BOM_UTF16_BE, BOM_UTF16_LE) else "utf-8-sig"
            yield TextIOWrapper(content, encoding=encoding, errors="replace", newline="")
        except (EOFError, zlib.error) as error:
            raise OSError(f"its compressed content is damaged: {error}") from error


def read_text(file: Path) -> str:
    """Return the content of a file that `open_text` opens."""
    with open_text(file) as lines:
        return lines.read()
