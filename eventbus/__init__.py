"""An event bus for Python services on a Kafka-format log.

The same decorated code runs on ``memory://`` (tests), ``file://DIR`` (a durable log inside the process) and
``kafka://...`` (a cluster).
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - pip refuses it, a path to the sources does not
    raise ImportError(
        f"eventbus needs Python 3.11 or newer, and {sys.executable} is {sys.version_info[0]}.{sys.version_info[1]}: "
        "run it with a newer one"
    )

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eventbus.version import __version__

if TYPE_CHECKING:
    from eventbus.backends.delivery import Delivery
    from eventbus.client.blocking import BlockingBus
    from eventbus.client.bus import EventBus
    from eventbus.client.consumer import Consumer
    from eventbus.client.consuming.reading import ConsumerRecords
    from eventbus.client.handling.handlers import consumer, producer
    from eventbus.client.handling.injection import Depends
    from eventbus.client.handling.middleware import CallNext, Middleware
    from eventbus.client.health import BusHealth, HandlerHealth, PartHealth
    from eventbus.client.interceptors import ConsumerInterceptor, ProducerInterceptor, ProducerRecord
    from eventbus.client.log_url import log_url
    from eventbus.client.metrics import BusMetrics
    from eventbus.client.producer import Producer
    from eventbus.client.router import Router
    from eventbus.client.scheduling.agenda import Firing
    from eventbus.client.scheduling.times import Scheduled
    from eventbus.client.tables.contents import TableChange
    from eventbus.client.tables.table import Table
    from eventbus.client.transaction import Transaction
    from eventbus.errors import (
        EventBusError,
        KafkaError,
        ProducerFenced,
        TransactionAborted,
        TransactionOutcomeUnknown,
    )
    from eventbus.types import (
        Compression,
        ConsumerRecord,
        GroupMetadata,
        IsolationLevel,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        Record,
        RecordMetadata,
        TimestampType,
        TopicPartition,
    )

__all__ = [
    "BlockingBus",
    "BusHealth",
    "BusMetrics",
    "CallNext",
    "Compression",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "ConsumerRecords",
    "Delivery",
    "Depends",
    "EventBus",
    "EventBusError",
    "Firing",
    "GroupMetadata",
    "HandlerHealth",
    "IsolationLevel",
    "KafkaError",
    "Middleware",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartHealth",
    "Producer",
    "ProducerFenced",
    "ProducerInterceptor",
    "ProducerRecord",
    "Record",
    "RecordMetadata",
    "Router",
    "Scheduled",
    "Table",
    "TableChange",
    "TimestampType",
    "TopicPartition",
    "Transaction",
    "TransactionAborted",
    "TransactionOutcomeUnknown",
    "__version__",
    "consumer",
    "log_url",
    "producer",
]

# Names are loaded when they are first used (PEP 562): the command line, and Spark's worker processes, which only
# decode batches, need not pay for the client.
_HOMES = {
    "Delivery": "eventbus.backends.delivery",
    "BlockingBus": "eventbus.client.blocking",
    "EventBus": "eventbus.client.bus",
    "Consumer": "eventbus.client.consumer",
    "consumer": "eventbus.client.handling.handlers",
    "Depends": "eventbus.client.handling.injection",
    "producer": "eventbus.client.handling.handlers",
    "BusHealth": "eventbus.client.health",
    "HandlerHealth": "eventbus.client.health",
    "PartHealth": "eventbus.client.health",
    "BusMetrics": "eventbus.client.metrics",
    "ConsumerInterceptor": "eventbus.client.interceptors",
    "ProducerInterceptor": "eventbus.client.interceptors",
    "ProducerRecord": "eventbus.client.interceptors",
    "CallNext": "eventbus.client.handling.middleware",
    "Middleware": "eventbus.client.handling.middleware",
    "log_url": "eventbus.client.log_url",
    "Producer": "eventbus.client.producer",
    "ConsumerRecords": "eventbus.client.consuming.reading",
    "Firing": "eventbus.client.scheduling.agenda",
    "Scheduled": "eventbus.client.scheduling.times",
    "Router": "eventbus.client.router",
    "Table": "eventbus.client.tables.table",
    "TableChange": "eventbus.client.tables.contents",
    "Transaction": "eventbus.client.transaction",
    "EventBusError": "eventbus.errors",
    "KafkaError": "eventbus.errors",
    "ProducerFenced": "eventbus.errors",
    "TransactionAborted": "eventbus.errors",
    "TransactionOutcomeUnknown": "eventbus.errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'eventbus' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "eventbus.types")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
