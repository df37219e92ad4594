"""An event bus for Python services on a Kafka-format log.

The same decorated code runs on ``memory://`` (tests), ``file://DIR`` (a durable log inside the process) and
``kafka://...`` (a cluster).

The packages, from the user's side down to the disk:

- ``client``: the bus, decorators, producers, consumers; ``client/handling`` calls handlers
- ``backends``: the embedded engine for ``memory://`` and ``file://``, and ``kafka://``
- ``server``: ``eventbus serve``, Kafka's protocol over TCP
- ``broker``, ``coordinator``: topics, groups, offsets, transactions, ACLs
- ``log``, ``records``, ``protocol``: files, record batches, wire messages
- ``settings``, ``errors``: every setting and every error of the API
- ``testing``, ``telemetry``, ``middleware``, ``web``, ``cli``: tools around a bus
- ``connect``, ``mirror``, ``doctor``, ``asyncapi``, ``ledger``: programs over a bus
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - pip refuses older versions, a path to the sources does not
    raise ImportError(
        f"eventbus needs Python 3.11 or newer, and {sys.executable} is {sys.version_info[0]}.{sys.version_info[1]}: "
        "run it with a newer one"
    )

from eventbus.version import __version__ as __version__
from serdes.lazy import lazy_names

TYPE_CHECKING = False  # as in `serdes.lazy`
if TYPE_CHECKING:
    from eventbus.backends.delivery import Delivery as Delivery
    from eventbus.client.blocking import BlockingBus as BlockingBus
    from eventbus.client.bus import EventBus as EventBus
    from eventbus.client.consumer import Consumer as Consumer
    from eventbus.client.consuming.fetch_buffer import ConsumerRecords as ConsumerRecords
    from eventbus.client.handling.handlers import consumer as consumer
    from eventbus.client.handling.handlers import producer as producer
    from eventbus.client.handling.injection import Depends as Depends
    from eventbus.client.handling.middleware import CallNext as CallNext
    from eventbus.client.handling.middleware import Middleware as Middleware
    from eventbus.client.health import BusHealth as BusHealth
    from eventbus.client.health import HandlerHealth as HandlerHealth
    from eventbus.client.health import PartHealth as PartHealth
    from eventbus.client.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from eventbus.client.interceptors import ProducerInterceptor as ProducerInterceptor
    from eventbus.client.interceptors import ProducerRecord as ProducerRecord
    from eventbus.client.log_url import log_url as log_url
    from eventbus.client.metrics import BusMetrics as BusMetrics
    from eventbus.client.producer import Producer as Producer
    from eventbus.client.router import Router as Router
    from eventbus.client.scheduling.partition_schedule import Firing as Firing
    from eventbus.client.scheduling.times import Scheduled as Scheduled
    from eventbus.client.tables.contents import TableChange as TableChange
    from eventbus.client.tables.table import Table as Table
    from eventbus.client.transaction import Transaction as Transaction
    from eventbus.errors import EventBusError as EventBusError
    from eventbus.errors import KafkaError as KafkaError
    from eventbus.errors import ProducerFenced as ProducerFenced
    from eventbus.errors import TransactionAborted as TransactionAborted
    from eventbus.errors import TransactionOutcomeUnknown as TransactionOutcomeUnknown
    from eventbus.types import Compression as Compression
    from eventbus.types import ConsumerRecord as ConsumerRecord
    from eventbus.types import GroupMetadata as GroupMetadata
    from eventbus.types import IsolationLevel as IsolationLevel
    from eventbus.types import OffsetAndMetadata as OffsetAndMetadata
    from eventbus.types import OffsetAndTimestamp as OffsetAndTimestamp
    from eventbus.types import Record as Record
    from eventbus.types import RecordMetadata as RecordMetadata
    from eventbus.types import TimestampType as TimestampType
    from eventbus.types import TopicPartition as TopicPartition

# Names are loaded on first use (PEP 562): the command line, and Spark's worker processes, which only decode batches, do
# not pay for the client.
_HOMES = {
    "backends.delivery": ("Delivery",),
    "client.blocking": ("BlockingBus",),
    "client.bus": ("EventBus",),
    "client.consumer": ("Consumer",),
    "client.consuming.fetch_buffer": ("ConsumerRecords",),
    "client.handling.handlers": ("consumer", "producer"),
    "client.handling.injection": ("Depends",),
    "client.handling.middleware": ("CallNext", "Middleware"),
    "client.health": ("BusHealth", "HandlerHealth", "PartHealth"),
    "client.interceptors": ("ConsumerInterceptor", "ProducerInterceptor", "ProducerRecord"),
    "client.log_url": ("log_url",),
    "client.metrics": ("BusMetrics",),
    "client.producer": ("Producer",),
    "client.router": ("Router",),
    "client.scheduling.partition_schedule": ("Firing",),
    "client.scheduling.times": ("Scheduled",),
    "client.tables.contents": ("TableChange",),
    "client.tables.table": ("Table",),
    "client.transaction": ("Transaction",),
    "errors": ("EventBusError", "KafkaError", "ProducerFenced", "TransactionAborted", "TransactionOutcomeUnknown"),
    "types": (
        "Compression",
        "ConsumerRecord",
        "GroupMetadata",
        "IsolationLevel",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "Record",
        "RecordMetadata",
        "TimestampType",
        "TopicPartition",
    ),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES, also=("__version__",))
