"""Limits of a topic for its records. A broker that finds a limit exceeded refuses the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

NEVER_MS = (1 << 63) - 1
_MARGIN_MS = 60_000
"""The assumed difference between the clocks of this machine and of a broker."""
_BATCH_OVERHEAD_BYTES = 61
_RECORD_OVERHEAD_BYTES = 36
"""An upper limit for the lengths and deltas of a record."""
_HEADER_OVERHEAD_BYTES = 10


class TopicLimits(msgspec.Struct, frozen=True):
    """The limits of a topic. The defaults are for a topic with unknown limits, which show only in a broker's
    refusal."""

    max_batch_bytes: int = NEVER_MS
    before_ms: int = NEVER_MS
    """How much older than the broker's clock a record may be."""
    after_ms: int = NEVER_MS
    """How far ahead of the broker's clock a record may be."""
    needs_key: bool = False

    @classmethod
    def read(cls, configs: Mapping[str, str | None]) -> TopicLimits:
        """Return the limits that a topic's configs set."""
        before_ms = after_ms = NEVER_MS
        if configs.get("message.timestamp.type") != "LogAppendTime":
            both_ms = _number(configs.get("message.timestamp.difference.max.ms"))  # until Kafka 4.0
            before_ms = min(both_ms, _number(configs.get("message.timestamp.before.max.ms")))
            after_ms = min(both_ms, _number(configs.get("message.timestamp.after.max.ms")))
        return cls(
            _number(configs.get("max.message.bytes")), before_ms, after_ms,
            "compact" in (configs.get("cleanup.policy") or ""),
        )  # fmt: skip

    def accepted_times(self, now_ms: int) -> tuple[int, int]:
        """Return the first and the last timestamp that every broker accepts, whatever its clock shows."""
        first_ms = now_ms - self.before_ms + min(self.before_ms // 2, _MARGIN_MS)
        return max(first_ms, 1), now_ms + self.after_ms - min(self.after_ms // 2, _MARGIN_MS)


UNKNOWN = TopicLimits()


def record_bytes(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] | None) -> int:
    """Return the size of one record in a batch, or a little more."""
    size_bytes = len(value or b"") + len(key or b"") + _RECORD_OVERHEAD_BYTES
    for name, data in headers or ():
        size_bytes += 4 * len(name) + len(data or b"") + _HEADER_OVERHEAD_BYTES
    return size_bytes


def room_bytes(max_batch_bytes: int) -> int:
    """Return how many bytes of records fit into a batch."""
    return max_batch_bytes - _BATCH_OVERHEAD_BYTES


def _number(text: str | None) -> int:
    return int(text) if text else NEVER_MS
