"""How amounts, times and payloads are put into words, whatever they are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlq.cli.payloads import MOST_CHARACTERS, hex_lines, show_payload
from dlq.cli.stats import plot

PAYLOADS = st.one_of(
    st.binary(),
    st.text().map(str.encode),
    st.recursive(
        st.none() | st.integers() | st.text(), lambda some: st.lists(some) | st.dictionaries(st.text(), some)
    ).map(msgspec.json.encode),
    st.binary().map(lambda data: b"\0\0\0\0\7" + data),
)


@pytest.mark.system
@given(PAYLOADS, st.booleans())
@example(b"[" * 400_000, False)
@example(b"[" * 30 + b"1," * 200_000, True)
@example((b"[" * 30 + b"]" * 30 + b",") * 4_000, True)
@example(b"\x00" * 3_000_000, False)
def test_any_payload_is_a_text_of_a_bearable_size(data: bytes, full: bool) -> None:
    shown = show_payload(data, full=full)
    assert len(shown.text) <= (max(100_000, 80 * len(data)) if full else MOST_CHARACTERS)
    assert not (full and shown.left_out)


@pytest.mark.system
@given(st.recursive(st.integers() | st.text(), st.lists, max_leaves=8).filter(lambda one: isinstance(one, list)))
def test_json_in_lines_is_the_same_json(value: list[object]) -> None:
    shown = show_payload(msgspec.json.encode(value), full=True)
    assert shown.kind == "JSON" and msgspec.json.decode(shown.text) == value


@given(st.binary(max_size=200))
def test_hexadecimal_holds_every_byte(data: bytes) -> None:
    assert b"".join(bytes.fromhex(line[10:58]) for line in hex_lines(data)) == data
    assert all(len(line) <= 78 and line.isascii() and line.isprintable() for line in hex_lines(data))


@given(st.lists(st.integers(0, 10**9)))
def test_a_plot_shows_where_there_was_anything_and_where_most(counts: list[int]) -> None:
    for encoding in ("utf-8", "ascii", None, "no such encoding"):
        shown = plot(counts, encoding)
        assert len(shown) == len(counts)
        assert [one == "." for one in shown] == [count == 0 for count in counts]
        assert encoding == "utf-8" or shown.isascii()
    if any(counts):
        assert plot(counts, "utf-8")[counts.index(max(counts))] == "\u2588"
