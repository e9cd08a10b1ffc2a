"""Messages of protocol buffers, written byte by byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelcast.runtime.bundle.trees import NUMBER, TEXTS, WORDS, read_message
from kernelcast.runtime.errors import DataError

KNOWN = {9: ("short", TEXTS), 20: ("high", TEXTS), 1: ("number", NUMBER), 8: ("words", WORDS)}


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    head = b""
    while value >= 0x80:
        head, value = head + bytes([value & 0x7F | 0x80]), value >> 7
    return head + bytes([value])


def text(field: int, content: bytes) -> bytes:
    """A text with its tag and length."""
    return varint(field << 3 | 2) + varint(len(content)) + content


@given(st.lists(st.tuples(st.sampled_from((9, 20)), st.binary(max_size=300)), max_size=12))
def test_texts_of_any_length_and_order(texts: list[tuple[int, bytes]]) -> None:
    message = b"".join(text(*one) for one in texts) + b"\x08\x05"
    found = read_message(message, KNOWN, "a message")
    assert found.pop("number") == 5
    assert found.get("short", []) == [content for field, content in texts if field == 9]
    assert found.get("high", []) == [content for field, content in texts if field == 20]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=16), st.data())
def test_words_are_what_texts_are(distinct: list[bytes], data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.sampled_from(distinct), min_size=1, max_size=60))
    message = b"".join(text(8, one) for one in texts) + b"\x08\x05"
    if any(b"B" in one for one in texts):  # the tag
        with pytest.raises(DataError, match="a message has texts that no bundle needs"):
            read_message(message, KNOWN, "a message")
    else:
        words = read_message(message, KNOWN, "a message")["words"]
        assert [words.texts[place] for place in words.places] == texts


def test_too_many_distinct_words_are_refused() -> None:
    message = b"".join(text(8, bytes([one])) for one in range(17))
    with pytest.raises(DataError, match="a message has texts that no bundle needs"):
        read_message(message, KNOWN, "a message")


@pytest.mark.parametrize("field", [8, 9, 20])
def test_a_cut_is_found(field: int) -> None:
    message = text(field, b"one") + text(field, b"x" * 200)
    for end in range(1, len(message)):
        if end != len(text(field, b"one")):
            with pytest.raises(DataError, match="a message is cut or damaged"):
                read_message(message[:end], KNOWN, "a message")
