"""The text beside a committed offset: ``confluent-kafka`` stores the zero byte that ends it in C, too."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import TopicPartition as ClientPartition

from eventbus.types import OffsetAndMetadata, TopicPartition


def to_commit(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[ClientPartition]:
    """Offsets as librdkafka's calls take them. No text is none, and not one zero byte."""
    return [
        ClientPartition(*where, at.offset, at.metadata) if at.metadata else ClientPartition(*where, at.offset)
        for where, at in offsets.items()
    ]


def read_text(text: str | None) -> str:
    """The text that was meant."""
    return (text or "").removesuffix("\0")
