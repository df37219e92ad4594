"""Receipts list the rows published by a transaction, in the metadata of the offset that it commits.

A receipt is in the log if, and only if, the events of its transaction are. After a crash, a relay reads it to find the
rows that only need to be deleted. A receipt has one part for each batch whose rows may still be in the table. The rows
of a part are always deleted together.

The text is ``1`` followed by base 85 of zlib of varints, because Kafka limits the metadata to 4,096 bytes.
"""

from __future__ import annotations

import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Sequence

import msgspec

from eventbus.errors import ConfigError

LONGEST_BYTES = 4_096
"""Limit of the metadata, Kafka's ``offset.metadata.max.bytes``."""
_VERSION = "1"


class Part(msgspec.Struct, frozen=True):
    """The rows of one batch."""

    ids: tuple[int, ...]
    """Ids of the rows, ascending."""
    crc: int
    """`checksum` of the event ids. In a restored database, another row may have one of the ids."""


class Receipt(msgspec.Struct, frozen=True):
    """The latest batches of a slot that are in the log."""

    number: int = 0
    """Number of the last batch; 0 if the log has no receipt."""
    parts: tuple[Part, ...] = ()
    """The last batches, whose rows may still be in the table. The last part belongs to ``number``."""

    @property
    def deleted(self) -> int:
        """Number of the last batch whose rows were deleted before the batch ``number`` was published."""
        return self.number - len(self.parts)


def part_of(ids: Iterable[int], event_ids: Iterable[str]) -> Part:
    """Return the part for rows in the order of their ids."""
    return Part(tuple(ids), checksum(event_ids))


def checksum(event_ids: Iterable[str]) -> int:
    """CRC-32 of event ids, in the order of the rows' ids."""
    return zlib.crc32("".join(event_ids).encode())


def spans(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Convert ascending ids to contiguous ranges (first, last), both inclusive."""
    if not ids:
        return []
    if ids[-1] - ids[0] + 1 == len(ids):
        return [(ids[0], ids[-1])]
    found: list[tuple[int, int]] = []
    first = last = ids[0]
    for id in ids[1:]:
        if id != last + 1:
            found.append((first, last))
            first = id
        last = id
    found.append((first, last))
    return found


def encode(parts: Sequence[Part]) -> str:
    """Encode a receipt. The text may be longer than `LONGEST_BYTES`."""
    data = bytearray()
    for part in parts:
        ranges = spans(part.ids)
        data += part.crc.to_bytes(4, "big")
        _write(data, len(ranges))
        behind = 0
        for first, last in ranges:
            _write(data, first - behind)
            _write(data, last - first)
            behind = last
    return _VERSION + b85encode(zlib.compress(bytes(data), 1)).decode()


def decode(text: str) -> list[Part]:
    """Decode a receipt; an empty text has no parts. Raises ConfigError for a text that `encode` did not produce."""
    if not text:
        return []
    if not text.startswith(_VERSION):
        raise ConfigError(f"the outbox's receipt {text[:20]!r} is of another version: run the relay that wrote it")
    try:
        return list(_parts(zlib.decompress(b85decode(text[1:]))))
    except (ValueError, IndexError, zlib.error) as error:
        raise ConfigError(
            f"the outbox's receipt {text[:20]!r}... in the log cannot be read ({error}): something else commits "
            "offsets under the outbox's group"
        ) from None


def fits(text: str) -> bool:
    """True if the text, which is ASCII, is short enough for Kafka."""
    return len(text) <= LONGEST_BYTES


def _parts(data: bytes) -> Iterable[Part]:
    at = 0
    while at < len(data):
        crc = int.from_bytes(data[at : at + 4], "big")
        count, at = _read(data, at + 4)
        ids: list[int] = []
        behind = 0
        for _ in range(count):
            gap, at = _read(data, at)
            more, at = _read(data, at)
            first = behind + gap
            behind = first + more
            ids.extend(range(first, behind + 1))
        yield Part(tuple(ids), crc)


def _write(data: bytearray, number: int) -> None:
    """Append a varint: seven bits per byte, lowest first."""
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)


def _read(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
