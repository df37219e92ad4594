"""The metadata text of a committed offset: ``confluent-kafka`` also stores the zero byte that ends it in C."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import TopicPartition as ClientPartition

from eventbus.types import OffsetAndMetadata, TopicPartition


def to_commit(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[ClientPartition]:
    """Convert offsets for librdkafka's calls. An empty text becomes None instead of a single zero byte."""
    return [
        ClientPartition(*where, at.offset, at.metadata) if at.metadata else ClientPartition(*where, at.offset)
        for where, at in offsets.items()
    ]


def read_text(text: str | None) -> str:
    """Return the text without confluent-kafka's zero byte."""
    return (text or "").removesuffix("\0")
