"""Codecs in Kafka's framings, and blocks that lie about themselves."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.errors import ConfigError, CorruptRecord
from eventbus.records import compress, compression, decompress
from eventbus.types import Compression
from tests.support import examples

pytestmark = pytest.mark.system

CODECS = [codec for codec in Compression if codec]
TEXT = b"".join(b'{"carrier":"UA","flight":%d,"delay":%d}' % (number, number % 90) for number in range(6000))
MIB = 1 << 20


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("size", [0, 1, 100, 32 * 1024, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("kind", ["text", "random", "zeros"])
def test_round_trip(codec: Compression, size: int, kind: str) -> None:
    data = {"text": TEXT, "random": os.urandom(size), "zeros": bytes(size)}[kind][:size]
    block = compress(codec, data)
    assert decompress(codec, block) == data
    assert decompress(codec, memoryview(b"in front" + block)[8:]) == data
    if kind == "text" and size > 1000 and codec:
        assert len(block) < len(data) / 2


@settings(max_examples=examples(50, 100), deadline=None)
@given(st.sampled_from(CODECS), st.binary(max_size=3000))
def test_any_bytes(codec: Compression, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data


THEIRS: dict[Compression, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    Compression.GZIP: (aiokafka_codec.gzip_encode, aiokafka_codec.gzip_decode),
    Compression.SNAPPY: (aiokafka_codec.snappy_encode, aiokafka_codec.snappy_decode),
    Compression.LZ4: (aiokafka_codec.lz4_encode, aiokafka_codec.lz4_decode),
    Compression.ZSTD: (aiokafka_codec.zstd_encode, aiokafka_codec.zstd_decode),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 5, 100_000])
def test_as_aiokafka(codec: Compression, size: int) -> None:
    encode, decode = THEIRS[codec]
    data = TEXT[:size]
    assert bytes(decode(compress(codec, data))) == data
    assert decompress(codec, bytes(encode(data))) == data


def test_snappy_as_java_writes_it() -> None:
    """xerial: magic, version 1, compatible with 1, then blocks of 32 KiB behind their lengths."""
    block = compress(Compression.SNAPPY, TEXT[:40_000])
    assert block[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    sizes, at = [], 16
    while at < len(block):
        (length,) = struct.unpack_from(">i", block, at)
        sizes.append(cramjam.snappy.decompress_raw_len(block[at + 4 : at + 4 + length]))
        at += 4 + length
    assert sizes == [32 * 1024, 40_000 - 32 * 1024]


def test_raw_snappy_is_read() -> None:
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_lz4_as_java_reads_it() -> None:
    """Java's reader refuses linked blocks; a block that does not shrink is stored, with the high bit in its length."""
    noise = os.urandom(65_536)
    block = compress(Compression.LZ4, TEXT[:65_536] + noise + b"end")
    assert block[:7] == bytes.fromhex("04224d18604082")
    at, kinds = 7, []
    while length := struct.unpack_from("<I", block, at)[0]:
        kinds.append((length >> 31, block[at + 4 : at + 4 + (length & 0x7FFFFFFF)] == noise))
        at += 4 + (length & 0x7FFFFFFF)
    assert kinds == [(0, False), (1, True), (1, False)]
    assert block[at:] == bytes(4)


def test_lz4_of_other_kinds_is_read() -> None:
    for linked in (True, False):
        writer = cramjam.lz4.Compressor(content_checksum=True, block_linked=linked)
        writer.compress(TEXT)
        assert decompress(Compression.LZ4, bytes(writer.finish())) == TEXT


def test_gzip_of_several_members_is_read() -> None:
    assert decompress(Compression.GZIP, zlib.compress(b"one", wbits=31) + zlib.compress(b"two", wbits=31)) == b"onetwo"


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec(codec: int) -> None:
    with pytest.raises(CorruptRecord, match=f"codec {codec} is unknown"):
        decompress(codec, b"")


@pytest.mark.parametrize("codec", CODECS)
def test_cut_and_damaged_blocks(codec: Compression) -> None:
    """Every cut and any flip gives the data, other data or CorruptRecord, never anything else."""
    data = TEXT[:200]
    block = compress(codec, data)
    for size in range(len(block)):
        with contextlib.suppress(CorruptRecord):
            assert len(decompress(codec, block[:size])) < len(data) or codec is Compression.LZ4
    raised = 0
    for position in range(len(block)):
        for bit in range(8):
            damaged = bytearray(block)
            damaged[position] ^= 1 << bit
            try:
                decompress(codec, bytes(damaged))
            except CorruptRecord:
                raised += 1
    assert raised > len(block), "most of these are noticed"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "junk", [b"", b"\0", b"\xff" * 40, bytes(40), b"\x82SNAPPY\0\0\0", b"\x82SNAPPY\0" + b"\xff" * 12]
)
def test_junk(codec: Compression, junk: bytes) -> None:
    try:
        assert decompress(codec, junk) == b""
    except CorruptRecord as error:
        assert codec.name.lower() in str(error)


@pytest.mark.parametrize("codec", CODECS)
def test_trailing_junk(codec: Compression) -> None:
    with pytest.raises(CorruptRecord):
        decompress(codec, compress(codec, TEXT) + b"\x01junk junk junk")


def bomb(codec: Compression, size: int) -> bytes:
    """``size`` zeros in as few bytes as the codec can."""
    writer = {
        Compression.GZIP: lambda: zlib.compress(bytes(size), 9, 31),
        Compression.SNAPPY: lambda: bytes(cramjam.snappy.compress_raw(bytes(size))),
        Compression.LZ4: lambda: bytes(cramjam.lz4.compress(bytes(size))),
        Compression.ZSTD: lambda: bytes(cramjam.zstd.compress(bytes(size), level=19)),
    }
    return writer[codec]()


@pytest.mark.parametrize("codec", CODECS)
def test_bombs(codec: Compression) -> None:
    """64 MiB of zeros are refused, or let through when 64 times the input allows them, at bounded memory."""
    block = bomb(codec, 64 * MIB)
    limit = max(16 * MIB, 64 * len(block))
    tracemalloc.start()
    try:
        if limit >= 64 * MIB:
            assert codec is Compression.SNAPPY, "21:1 is all it can do"
            assert len(decompress(codec, block)) == 64 * MIB
        else:
            with pytest.raises(CorruptRecord, match=f"{codec.name.lower()} block .*(more|larger) than {limit} bytes"):
                decompress(codec, block)
            assert tracemalloc.get_traced_memory()[1] < 2.1 * limit
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_exactly_at_the_limit(codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MIN_LIMIT_BYTES", 100_000)
    monkeypatch.setattr(compression, "LIMIT_RATIO", 1)
    assert decompress(codec, compress(codec, bytes(100_000))) == bytes(100_000)
    with pytest.raises(CorruptRecord):
        decompress(codec, compress(codec, bytes(100_001)))


def test_a_snappy_block_that_lies_about_its_size() -> None:
    """The size is believed only below the limit, and only if it comes true."""
    for claimed, said in ((b"\xff\xff\xff\xff\x0f", "more than"), (b"\xff\xff\x03", "damaged")):
        with pytest.raises(CorruptRecord, match=said):
            decompress(Compression.SNAPPY, claimed + b"\x10hello")
    framed = compress(Compression.SNAPPY, b"hello")
    with pytest.raises(CorruptRecord, match="its part at byte 16 ends at byte 1000020"):
        decompress(Compression.SNAPPY, framed[:16] + struct.pack(">i", 1_000_000) + framed[20:])
    with pytest.raises(CorruptRecord, match="cut off"):
        decompress(Compression.SNAPPY, framed + b"\0\0")


@pytest.mark.parametrize("codec", [Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_without_cramjam(codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(ConfigError, match="pip install cramjam"):
        compress(codec, b"data")
