"""A batch of one record has the bytes that the builder gives it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.records import BatchBuilder
from eventbus.records.single import build_single
from eventbus.types import Compression

pytestmark = pytest.mark.system

payloads = st.none() | st.binary(max_size=200) | st.sampled_from([b"x" * 8170, b"x" * 8185, b"x" * 8192, b"x" * 20_000])
producers = st.just((-1, -1, -1, False)) | st.tuples(
    st.integers(0, (1 << 63) - 1), st.integers(0, 32767), st.integers(-1, (1 << 31) - 1), st.booleans()
)


@given(payloads, payloads, st.sampled_from([(), (("a", b"1"), ("b", None))]), st.integers(-1, 1 << 50), producers)
def test_the_builders_bytes(key, value, headers, timestamp_ms, producer) -> None:
    producer_id, producer_epoch, base_sequence, is_transactional = producer
    for codec in (Compression.NONE, Compression.LZ4):
        builder = BatchBuilder(codec)
        builder.append(key, value, headers, timestamp_ms)
        assert build_single(key, value, headers, timestamp_ms, codec, *producer) == builder.build(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
