"""An event bus for Python services on a Kafka-format log.

The same decorated code runs on ``memory://`` (tests), ``file://DIR`` (a durable log inside the process) and
``kafka://...`` (a cluster).
"""

from eventbus.backends.delivery import Delivery
from eventbus.client.bus import EventBus
from eventbus.client.consumer import Consumer
from eventbus.client.handlers import consumer, producer
from eventbus.client.producer import Producer
from eventbus.errors import EventBusError, KafkaError
from eventbus.types import (
    Compression,
    ConsumerRecord,
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Record,
    RecordMetadata,
    TimestampType,
    TopicPartition,
)
from eventbus.version import __version__

__all__ = [
    "Compression",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "EventBus",
    "EventBusError",
    "IsolationLevel",
    "KafkaError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "Record",
    "RecordMetadata",
    "TimestampType",
    "TopicPartition",
    "__version__",
    "consumer",
    "producer",
]
