"""Apache Kafka, where there is a Java; and a disk."""

from __future__ import annotations

from tests.disks import nothing_waits_for_the_disk
from tests.kafka_fixtures import real

__all__ = ["nothing_waits_for_the_disk", "real"]
