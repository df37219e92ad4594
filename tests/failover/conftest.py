"""The cluster of three whose brokers are killed here."""

from __future__ import annotations

from tests.kafka_fixtures import cluster

__all__ = ["cluster"]
