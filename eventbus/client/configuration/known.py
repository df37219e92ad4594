"""Which settings there are for a bus: their names, types, defaults and meaning."""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec

from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.kafka.names import (
    CONSUMER_FIELDS,
    FOR_CONSUMERS,
    FOR_PRODUCERS,
    JAVA_NAMES,
    OF_ALL,
    PRODUCER_FIELDS,
    as_keyword,
)
from eventbus.broker import BrokerConfig
from eventbus.client.config import CONSUMER_DEFAULTS, LOG_KEYS, PRODUCER_KEYS

OF_THE_BUS: Mapping[str, tuple[Any, Any, str]] = MappingProxyType(
    {
        "url": (str, "file://./data", "The log: memory://, file://DIR, kafka://host:9092."),
        "service": (
            str,
            None,
            "The name that all processes of a service share. It names the groups of handlers without group=.",
        ),
        "client_id": (
            str,
            "eventbus",
            "The name of this client in a Kafka's log and quotas. By default the service's.",
        ),
        "drain_timeout_ms": (int, 30_000, "How long records at work may take to finish when the bus closes."),
        "wedged_after_ms": (int, 60_000, "A handler that has not moved for so long, though records wait, is wedged."),
        "slow_loop_ms": (int | None, 1_000, "Code that blocks the event loop for longer is named; none: do not look."),
    }
)
"""The keywords of `EventBus` that are none of a log's or a client's: type, default, meaning."""
_SPECIAL = MappingProxyType(
    {
        "compression_type": ("none", "Codec of new batches: none, gzip, snappy, lz4 or zstd; stored as sent."),
        "partitioner": ("murmur2", "Which partition a record goes to: murmur2, murmur3, round_robin, module:name."),
        "partition_assignment_strategy": (
            "range,cooperative-sticky",
            "How a group shares partitions: range, roundrobin, sticky, cooperative-sticky; the preferred first.",
        ),
    }
)
_MEANINGS = MappingProxyType(
    {
        "fsync_interval_ms": 'With fsync="interval": how often stored bytes are forced to disk.',
        "fetch_min_bytes": "A fetch waits until there is so much to read, or until fetch_max_wait_ms is over.",
        "fetch_max_wait_ms": "How long a fetch waits for fetch_min_bytes.",
        "max_partition_fetch_bytes": "What a fetch brings of one partition, at most; one batch is always brought.",
        "check_crcs": "Check the checksum of what is read.",
        "heartbeat_interval_ms": "How often a member tells its group that it is there; below a third of the session.",
        "offsets_topic_segment_bytes": "The size of a segment of __consumer_offsets.",
        "group_min_session_timeout_ms": "The shortest session_timeout_ms a member may ask for.",
        "group_max_session_timeout_ms": "The longest session_timeout_ms a member may ask for.",
        "group_max_size": "Members of one group, at most.",
        "transaction_state_log_segment_bytes": "The size of a segment of __transaction_state.",
        "log_retention_check_interval_ms": "How often to look for segments that retention lets go.",
        "offsets_retention_check_interval_ms": "How often to look for offsets that are past their retention.",
        "group_consumer_max_size": "Members of one group of the consumer protocol, at most.",
    }
)
"""Of fields that have no docstring."""
_HIGH = frozenset(
    [
        "url",
        "service",
        "client_id",
        "acks",
        "fsync",
        "security_protocol",
        "sasl_mechanism",
        "sasl_username",
        "sasl_password",
        "ssl_ca_location",
        "session_timeout_ms",
        "max_poll_interval_ms",
    ]
)
_MEDIUM = frozenset(
    [
        "auto_create_topics",
        "num_partitions",
        "batch_size",
        "linger_ms",
        "buffer_memory",
        "max_block_ms",
        "max_request_size",
        "compression_type",
        "fsync_interval_ms",
        "fetch_min_bytes",
        "fetch_max_wait_ms",
        "max_partition_fetch_bytes",
        "heartbeat_interval_ms",
        "partition_assignment_strategy",
        "delivery_timeout_ms",
        "request_timeout_ms",
        "client_rack",
        "drain_timeout_ms",
    ]
)

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        **{as_keyword(java): as_keyword(name) for java, name in JAVA_NAMES.items()},
        **{as_keyword(name): field for name, field in {**PRODUCER_FIELDS, **CONSUMER_FIELDS}.items()},
        **dict.fromkeys(("compression", "compression_type", "compression_codec"), "compression_type"),
        **dict.fromkeys(("assignors", "partition_assignment_strategy"), "partition_assignment_strategy"),
        "sasl_mechanisms": "sasl_mechanism",
    }
)
"""Several names of one setting."""
NAMES = frozenset({*OF_THE_BUS, *LOG_KEYS, *PRODUCER_KEYS, *CONSUMER_DEFAULTS, *OF_ALL}) - {"transactional_id"}
"""What an environment variable or a file may say."""


def canonical(name: str) -> str:
    """The one name of a setting, whichever of its names this is."""
    keyword = as_keyword(name)
    return ALIASES.get(keyword, keyword)


class Setting(msgspec.Struct, frozen=True):
    """One setting, for people."""

    name: str
    kafka: str
    """Kafka's (or librdkafka's) name; empty: it has none there."""
    of: str
    """Whose it is: "bus", "log", "producer", "consumer", "kafka"."""
    default: Any
    importance: str
    meaning: str


@cache
def settings() -> Mapping[str, Setting]:
    """All of them, by name."""
    found: dict[str, Setting] = {}
    for name, (_, default, meaning) in OF_THE_BUS.items():
        found[name] = Setting(
            name, "client.id" if name == "client_id" else "", "bus", default, importance(name), meaning
        )
    for of, kind, names in (
        ("log", BrokerConfig, LOG_KEYS),
        ("producer", ProducerConfig, PRODUCER_KEYS),
        ("consumer", ConsumerConfig, CONSUMER_DEFAULTS),
    ):
        meanings, usual = _docstrings(kind), msgspec.structs.asdict(kind())
        for name in sorted(names & NAMES - found.keys()):
            default, meaning = _SPECIAL.get(name) or (usual.get(name), meanings.get(name) or _MEANINGS.get(name, ""))
            default = "all" if name == "acks" else default
            found[name] = Setting(name, _kafka_name(name, of), of, default, importance(name), meaning)
    for name, dotted in OF_ALL.items():
        whose = (
            "of producers" if dotted in FOR_PRODUCERS else "of consumers" if dotted in FOR_CONSUMERS else "of clients"
        )
        java = f"; {JAVA_NAMES[dotted]} of Kafka's Java client" if dotted in JAVA_NAMES else ""
        meaning = f"librdkafka's setting {whose} on kafka://{java}; other logs pass it over."
        found.setdefault(name, Setting(name, dotted, "kafka", None, importance(name), meaning))
    return found


def importance(name: str) -> str:
    """As Kafka's documentation has it: "high", "medium", "low"."""
    return "high" if name in _HIGH else "medium" if name in _MEDIUM else "low"


_OURS = frozenset({"fsync", "fsync_interval_ms", "checkpoint_interval_ms", "log_defaults", "partitioner"})


def _kafka_name(name: str, of: str) -> str:
    if name in _OURS:
        return ""
    return "auto.create.topics.enable" if name == "auto_create_topics" else name.replace("_", ".")


def _docstrings(kind: type) -> dict[str, str]:
    """What stands below each field, as one line."""
    try:
        body = ast.parse(inspect.getsource(kind)).body[0]
    except OSError:  # a program that was frozen has no source
        return {}
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            text = below.value.value if isinstance(below.value, ast.Constant) else ""
            found[field.target.id] = re.sub(r"\s+", " ", str(text)).replace("``", "").strip()
    return found


@cache
def type_of(name: str) -> Any:
    """The type of a setting's value, by its canonical name; None: librdkafka's, which takes text."""
    if name in OF_THE_BUS:
        return OF_THE_BUS[name][0]
    for kind in (BrokerConfig, ProducerConfig, ConsumerConfig):
        if name in kind.__struct_fields__:
            return _hints(kind)[name]
    return None


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)
