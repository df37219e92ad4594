"""What a log's segments hold, read by nothing of ours: the header of every record batch."""

from __future__ import annotations

import struct
from pathlib import Path

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADER = 61
CONTROL = 0x20


def stored_codecs(partition: Path) -> set[str]:
    """The codecs of a partition's data batches."""
    found: set[str] = set()
    for segment in sorted(partition.glob("*.log")):
        data, at = segment.read_bytes(), 0
        while at + HEADER <= len(data):
            (length,) = struct.unpack_from(">i", data, at + 8)
            (attributes,) = struct.unpack_from(">h", data, at + 21)
            if not length:
                break  # the file is longer than its records
            if not attributes & CONTROL:
                found.add(CODECS[attributes & 7])
            at += 12 + length
    return found
