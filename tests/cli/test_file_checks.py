"""The formats of checkpoint files: what is damaged, what is sound, and what a format does not show."""

import io
import json
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cli.file_checks import find_damage

HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
SAFE = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8)


def save(*, crc: bool = True) -> bytes:
    """Return what torch.save writes."""
    file = io.BytesIO()
    torch.serialization.set_crc32_options(crc)
    try:
        torch.save({"w": torch.arange(1000.0)}, file)
    finally:
        torch.serialization.set_crc32_options(True)
    return file.getvalue()


def check(name: str, content: bytes) -> str | None:
    return find_damage(name, io.BytesIO(content), len(content))


def compress(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "damage"),
    [
        ("model.pt", save(), ""),
        ("model.pt", save(crc=False), ""),
        ("model.pt", save()[:-1], "not a zip file"),
        ("model.pt", b"", "is empty"),
        ("model.pt", bytes(1000), "begins with zeros"),
        ("model.pt", save().replace(torch.arange(1000.0).numpy().tobytes(), bytes(4000)), "Bad CRC-32"),
        ("model.pt", b"\x80\x02a pickle of an older PyTorch", None),
        ("arrays.npz", compress(bytes(10**6)), None),
        ("arrays.npz", compress(bytes(10**6))[:-1], "not a zip file"),
        ("model.safetensors", SAFE, ""),
        ("model.safetensors", SAFE[:-1], f"{len(SAFE) - 1} of {len(SAFE)} bytes"),
        ("model.safetensors", SAFE[:20], "bytes in 20"),
        ("model.safetensors", (2).to_bytes(8, "little") + b"[]", "cannot be read"),
        ("model.safetensors", (29).to_bytes(8, "little") + b'{"a": {"data_offsets": [0]}}\n', "cannot be read"),
        ("trainer_state.json", b'{"global_step": 1}', ""),
        ("trainer_state.json", b'{"global_st', "cannot be read"),
        ("metrics.json", b'{"loss": 1}\n{"loss": 2}\n', None),
        ("trainer_state.json", b"[" * 100_000, "cannot be read"),
        ("__0_0.distcp", save()[:-1], None),
    ],
)
def test_damage_is_found_where_the_format_shows_it(name: str, content: bytes, damage: str | None) -> None:
    found = check(name, content)
    if damage:
        assert found is not None and damage in found
    else:
        assert found == damage


@given(st.binary(max_size=200), st.sampled_from(["a.pt", "a.safetensors", "a.json"]), st.booleans())
def test_no_content_makes_it_raise(content: bytes, name: str, is_archive: bool) -> None:
    check(name, b"PK\x03\x04" + content if is_archive else content)
