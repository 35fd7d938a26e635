"""Open the text files that people give: in UTF-8, or in UTF-16, which `>` writes in Windows PowerShell."""

import gzip
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO, TextIOWrapper
from pathlib import Path
from typing import TextIO

# What fits into memory as lines; the text of a gzipped file may be a thousand times as large as the file.
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
            size, text = file.stat().st_size, content
            if file.suffix == ".gz":
                unpacked = content.read(MOST_BYTES + 1)
                size, text = len(unpacked), BufferedReader(BytesIO(unpacked))
            if size > MOST_BYTES:
                raise OSError(f"it has more than {MOST_BYTES >> 20} MiB of text: give a part of it")
            encoding = "utf-16" if text.peek(2)[:2] in (BOM_UTF16_BE, BOM_UTF16_LE) else "utf-8-sig"
            yield TextIOWrapper(text, encoding=encoding, errors="replace", newline="")
        except (EOFError, zlib.error) as error:
            raise OSError(f"its compressed content is damaged: {error}") from error


def read_text(file: Path) -> str:
    """Return the content of a file that `open_text` opens."""
    with open_text(file) as lines:
        return lines.read()
