"""Apache Kafka, where there is a Java."""

from __future__ import annotations

from tests.kafka_fixtures import real

__all__ = ["real"]
