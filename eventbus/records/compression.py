"""Compression of a batch's records in Kafka's framings, and decompression with bounded memory.

gzip: RFC 1952. snappy: xerial's stream (16-byte header, then blocks of raw snappy, each after its big-endian length),
which Kafka's Java client writes; raw snappy is read too. lz4: frames of independent 64 KiB blocks without checksums, as
Kafka's Java client writes and requires them. zstd: one frame (KIP-110).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eventbus.errors import ConfigError, CorruptRecord
from eventbus.types import Compression

if TYPE_CHECKING:
    from types import ModuleType

MIN_LIMIT_BYTES = 16 * 1024 * 1024
LIMIT_RATIO = 64
"""Together they limit the size of a decompressed block (`limit_bytes`): 256 MiB of zeros are 8 KiB of zstd."""

_GZIP_WINDOW = 31
_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
_FIRST_GUESS_BYTES = 64 * 1024
_GROWTH = 8

_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_MAGIC = _XERIAL_HEADER[:8]
_XERIAL_BLOCK_BYTES = 32 * 1024

_LZ4_HEADER = bytes.fromhex("04224d18 60 40 82")  # magic; version 1, independent blocks; 64 KiB blocks; header checksum
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 1 << 31
_LZ4_END = bytes(4)


def limit_bytes(input_bytes: int) -> int:
    """Return the most bytes that ``input_bytes`` compressed bytes may become."""
    return max(MIN_LIMIT_BYTES, LIMIT_RATIO * input_bytes)


def compress(codec: Compression, records: bytes) -> bytes:
    """Compress encoded records to one block."""
    return _COMPRESSORS[codec](records)


def decompress(codec: int, block: bytes | memoryview) -> bytes:
    """Return the records in a compressed block.

    Raises `CorruptRecord` for an unknown codec, damaged input, or more than ``max(16 MiB, 64 * input)`` of output.
    """
    limit = limit_bytes(len(block))
    reader = _DECOMPRESSORS.get(codec)
    if reader is None:
        raise CorruptRecord(f"compression codec {codec} is unknown (none, gzip, snappy, lz4 and zstd are 0 to 4)")
    return reader(block, limit)


def _cramjam() -> ModuleType:
    try:
        import cramjam
    except ImportError as error:
        raise ConfigError("snappy, lz4 and zstd need the package cramjam: pip install cramjam") from error
    return cramjam


def _over_limit(codec: str, limit: int) -> CorruptRecord:
    return CorruptRecord(f"{codec} block decompresses to more than {limit} bytes")


def _gzip(records: bytes) -> bytes:
    return zlib.compress(records, _GZIP_LEVEL, _GZIP_WINDOW)


def _gunzip(block: bytes | memoryview, limit: int) -> bytes:
    output = b""
    rest = bytes(block)
    while rest:  # a gzip file may have several members
        member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            output += member.decompress(rest, limit + 1 - len(output))
        except zlib.error as error:
            raise CorruptRecord(f"gzip block is damaged: {error}") from None
        if len(output) > limit:
            raise _over_limit("gzip", limit)
        if not member.eof:
            raise CorruptRecord("gzip block is cut off")
        rest = member.unused_data
    return output


def _snappy(records: bytes) -> bytes:
    raw = _cramjam().snappy.compress_raw
    parts = [_XERIAL_HEADER]
    for start in range(0, len(records), _XERIAL_BLOCK_BYTES):
        block = bytes(raw(records[start : start + _XERIAL_BLOCK_BYTES]))
        parts += len(block).to_bytes(4, "big"), block
    return b"".join(parts)


def _unsnappy(block: bytes | memoryview, limit: int) -> bytes:
    data = bytes(block)
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnappy_raw(data, limit)
    parts: list[bytes] = []
    at = len(_XERIAL_HEADER)
    while at < len(data):
        start, at = at + 4, at + 4 + int.from_bytes(data[at : at + 4], "big")
        if start > len(data) or at > len(data):
            raise CorruptRecord(f"snappy block is cut off: its part at byte {start - 4} ends at byte {at}")
        part = _unsnappy_raw(data[start:at], limit)
        limit -= len(part)
        parts.append(part)
    return b"".join(parts)


def _unsnappy_raw(data: bytes, limit: int) -> bytes:
    cramjam = _cramjam()
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > limit:
            raise _over_limit("snappy", limit)
        output = bytearray(size)
        cramjam.snappy.decompress_raw_into(data, output)
    except cramjam.DecompressionError as error:
        raise CorruptRecord(f"snappy block is damaged: {error}") from None
    return bytes(output)


def _lz4(records: bytes) -> bytes:
    compress_block = _cramjam().lz4.compress_block
    parts = [_LZ4_HEADER]
    for start in range(0, len(records), _LZ4_BLOCK_BYTES):
        chunk = records[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(compress_block(chunk, store_size=False))
        if len(block) < len(chunk):
            parts += len(block).to_bytes(4, "little"), block
        else:
            parts += (len(chunk) | _LZ4_STORED).to_bytes(4, "little"), chunk
    parts.append(_LZ4_END)
    return b"".join(parts)


def _unlz4(block: bytes | memoryview, limit: int) -> bytes:
    return _grow("lz4", _cramjam().lz4.decompress_into, block, limit)


def _zstd(records: bytes) -> bytes:
    return bytes(_cramjam().zstd.compress(records, level=_ZSTD_LEVEL))


def _unzstd(block: bytes | memoryview, limit: int) -> bytes:
    return _grow("zstd", _cramjam().zstd.decompress_into, block, limit)


def _grow(codec: str, decompress_into: Callable[[Any, Any], int], block: bytes | memoryview, limit: int) -> bytes:
    """Decompress into buffers of growing size: the frame's stated size may be wrong or absent."""
    error_type = _cramjam().DecompressionError
    size = min(max(_FIRST_GUESS_BYTES, _GROWTH * len(block)), limit)
    while True:
        output = bytearray(size)
        try:
            written = decompress_into(block, output)
        except error_type as error:
            if size == limit:
                raise CorruptRecord(f"{codec} block is damaged or larger than {limit} bytes: {error}") from None
            size = min(size * _GROWTH, limit)
        else:
            return bytes(memoryview(output)[:written])


_COMPRESSORS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.NONE: bytes,
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}
_DECOMPRESSORS: dict[int, Callable[[bytes | memoryview, int], bytes]] = {
    Compression.NONE: lambda block, _limit: bytes(block),
    Compression.GZIP: _gunzip,
    Compression.SNAPPY: _unsnappy,
    Compression.LZ4: _unlz4,
    Compression.ZSTD: _unzstd,
}
