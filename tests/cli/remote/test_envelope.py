"""A signed envelope is accepted as it was made, and in no other form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rerail_cli.functions.envelope import BadEnvelope, make_name, sign, verify

KEY = "ab" * 32
NAME = make_name("result", "digits", "c1", "digits-a002")
HEADERS = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.booleans(), max_size=3)


@given(HEADERS, st.binary(max_size=200))
def test_what_was_signed_is_returned(header, content):
    assert verify(sign(header, content, NAME, KEY), NAME, KEY) == (header, content)


@pytest.mark.threat("T31")
@given(st.binary(max_size=100), st.data())
def test_a_changed_byte_is_refused(content, data):
    envelope = bytearray(sign({"kind": "value"}, content, NAME, KEY))
    at = data.draw(st.integers(0, len(envelope) - 1))
    envelope[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadEnvelope):
        verify(bytes(envelope), NAME, KEY)


@given(st.binary(max_size=200))
def test_bytes_without_a_signature_are_refused(content):
    with pytest.raises(BadEnvelope):
        verify(content, NAME, KEY)


@pytest.mark.threat("T31")
@pytest.mark.parametrize(
    "name",
    [
        make_name("result", "other", "c1", "digits-a002"),
        make_name("result", "digits", "c2", "digits-a002"),
        make_name("result", "digits", "c1", "digits"),
        make_name("call", "digits", "c1", "digits-a002"),
    ],
)
def test_the_signature_of_another_run_call_or_attempt_is_refused(name):
    with pytest.raises(BadEnvelope, match="key of the run"):
        verify(sign({}, b"", name, KEY), NAME, KEY)


def test_nothing_is_signed_or_accepted_without_a_key():
    with pytest.raises(ValueError, match="without a key"):
        sign({}, b"", NAME, "")
    with pytest.raises(BadEnvelope):
        verify(sign({}, b"", NAME, KEY), NAME, "")
