"""The fixtures of buses on each embedded storage, and of Apache Kafka."""

from __future__ import annotations

from tests.client.conftest import file_url, make_bus
from tests.kafka_fixtures import real

__all__ = ["file_url", "make_bus", "real"]
