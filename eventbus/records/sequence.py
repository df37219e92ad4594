"""Sequence numbers of idempotent producers: 31 bits, 2147483647 is followed by 0 (Kafka's ``DefaultRecordBatch``)."""

from __future__ import annotations

MAX_SEQUENCE = 0x7FFF_FFFF


def increment_sequence(sequence: int, increment: int) -> int:
    """Return the sequence ``increment`` records after ``sequence``."""
    return (sequence + increment) & MAX_SEQUENCE


def decrement_sequence(sequence: int, decrement: int) -> int:
    """Return the sequence ``decrement`` records before ``sequence``."""
    return (sequence - decrement) & MAX_SEQUENCE
