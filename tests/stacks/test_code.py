"""The code that is shipped does not depend on who synthesizes it; tests/stacks/test_synth.py has the rest."""

import io
import os
import zipfile

from local.deploy import zipped
from stacks.parts import code


def test_everyone_may_read_the_code_whatever_the_umask(tmp_path):
    """Lambda runs functions as another user; a hardened laptop makes files that only their owner may read."""
    before = os.umask(0o077)
    try:
        code.fill(tmp_path / "code")
        (tmp_path / "private.py").write_text("")
        (tmp_path / "tool").write_text("")
        (tmp_path / "tool").chmod(0o700)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "code").rglob("*") if path.is_file()} == {0o644}
    with zipfile.ZipFile(io.BytesIO(zipped(tmp_path))) as archive:
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert (modes["private.py"], modes["tool"]) == (0o100644, 0o100755)
