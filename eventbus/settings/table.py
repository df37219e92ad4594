"""The whole table, the names that are refused with what to write instead, and the reading of what a caller gave."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from eventbus.errors import ConfigError
from eventbus.settings import clients, handlers, librdkafka, log
from eventbus.settings.setting import Scope, Setting, as_keyword, as_text
from eventbus.suggest import nearest_setting

logger = logging.getLogger("eventbus")

TABLE = (*clients.ROWS, *log.ROWS, *librdkafka.ROWS, *handlers.ROWS)
"""All rows but those of topics and servers, whose names are Kafka's dotted ones: `topics.ROWS` and `server.ROWS`."""
PASSED: tuple[Scope, ...] = ("librdkafka", "librdkafka producer", "librdkafka consumer")
OF_A_PRODUCER: tuple[Scope, ...] = ("producer", "librdkafka", "librdkafka producer")
OF_A_CONSUMER: tuple[Scope, ...] = ("consumer", "librdkafka", "librdkafka consumer")
DEFAULTS: tuple[Scope, ...] = ("log", "producer", "consumer", *PASSED)
"""A bus takes these besides its own settings: those of its log, and defaults for its clients."""
OF_A_BUS: tuple[Scope, ...] = ("bus", *DEFAULTS)
"""Environment variables and files may give these to a bus."""
OF_A_HANDLER: tuple[Scope, ...] = ("call", "handler", "decorator")
CALLBACK = "oauth_cb"

RENAMED = MappingProxyType(
    {
        **{as_keyword(row.librdkafka): row.name for row in TABLE if row.librdkafka and not row.is_passed},
        **{as_keyword(row.kafka): row.name for row in TABLE if row.kafka and not row.is_passed},
        **dict.fromkeys(("auto_commit_offset", "auto_commit_enable", "auto_commit"), "enable_auto_commit"),
        "auto_commit_interval": "auto_commit_interval_ms",
        **dict.fromkeys(
            ("max_in_flight", "max_in_flight_request", "max_in_flight_requests",
             "max_in_flight_request_per_connection", "max_in_flight_requests_per_session"),
            "max_in_flight_requests_per_connection",
        ),
        **dict.fromkeys(("broker_list", "metadata_broker_list"), "bootstrap_servers"),
        "request_required_acks": "acks",
        "partitioner_class": "partitioner",
        "isolation": "isolation_level",
        **dict.fromkeys(("assignor", "assignors"), "partition_assignment_strategy"),
        "rebalance_timeout_ms": "max_poll_interval_ms",
        "allow_auto_create_topics": "auto_create_topics",
        "queue_buffering_max_kbytes": "buffer_memory",
        **dict.fromkeys(("retries", "max_retries"), "retry"),
        **dict.fromkeys(("dlq", "dead_letters", "dead_letter_topic"), "dead_letter"),
        **dict.fromkeys(("session", "inbox", "transactional"), "tx"),
        **dict.fromkeys(("workers", "max_workers"), "concurrency"),
        **dict.fromkeys(("ack_policy", "auto_ack", "no_ack"), "ack"),
    }
)  # fmt: skip
"""Names that Kafka renamed, that librdkafka or another library has, or that people misremember: refused."""
NOTES = MappingProxyType(
    {
        "max_in_flight_requests_per_connection": "batches are stored in order in any case",
        "enable_auto_commit": "offsets are committed as records finish; bus.new_consumer(enable_auto_commit=True) "
        "commits what was polled",
        "bootstrap_servers": 'the brokers stand in the URL: EventBus("kafka://host:9092,host2:9092")',
        "zookeeper_connect": 'clients do not connect to ZooKeeper; the brokers stand in the URL: "kafka://host:9092"',
        "transactional_id": "it belongs to one producer: bus.new_producer(transactional_id=...), or `async with "
        "bus.transaction(id)`",
        "producer_type": "every send is asynchronous; `await` waits for the ack",
        "consumer_timeout_ms": "it is given per call: poll(timeout_ms=...)",
        "max_poll_records": "it is given per call, poll(max_records=...); for a handler it is batch=N",
        "interceptor_classes": "give objects: new_producer(interceptors=[...]), new_consumer(interceptors=[...])",
        **dict.fromkeys(("key_serializer", "value_serializer"), "a type has a serde: see EventBus(serdes=...)"),
        **dict.fromkeys(
            ("key_deserializer", "value_deserializer"),
            "give the type: bus.new_consumer(key=str, value=Order), or the annotation of the handler's parameter",
        ),
        "enable_auto_offset_store": "the bus commits offsets: see Consumer.commit",
        "enable_partition_eof": "the bus needs it",
        "sasl_jaas_config": "librdkafka does not read JAAS: sasl_username and sasl_password",
        "sasl_login_callback_handler_class": "librdkafka is not Java: oauth_cb=, or sasl.oauthbearer.method=oidc",
        "ssl_keystore_type": "certificates are PEM (ssl.certificate.location, ssl.key.location) or a PKCS#12 keystore",
        **dict.fromkeys(("ssl_truststore_type", "ssl_truststore_password"), "certificates are PEM: ssl.ca.location"),
        "plugin_library_paths": "the bus loads no foreign libraries; interceptors=[...] see what it sends and reads",
        "retry": "retry=Retry(delays=['5s', '1m'])",
        "dead_letter": "True, or the topic's name",
        "tx": "tx=sessionmaker(engine)",
        "ack": "'auto' or 'manual'",
    }
)
"""Advice for a name that is not a setting where it was given."""
REMOVED = MappingProxyType(
    {
        "block_on_buffer_full": "max_block_ms",
        "metadata_fetch_timeout_ms": "max_block_ms",
        "timeout_ms": "request_timeout_ms",
    }
)
"""Producer keys that Kafka removed and that have one successor: read as that, with a warning, as Kafka 0.9 did."""
_FOREVER_MS = 2**63 - 1


@cache
def rows(*scopes: Scope, own: bool = False) -> Mapping[str, Setting]:
    """Return the rows of these scopes by name. ``own``: also the rows for which a bus has no defaults."""
    found: dict[str, Setting] = {}
    for scope in scopes:
        for row in TABLE:
            if row.scope == scope and (own or not row.own):
                found.setdefault(row.name, row)
    return MappingProxyType(found)


@cache
def known(*scopes: Scope, own: bool = False, librdkafka_too: bool = False) -> Mapping[str, Setting]:
    """Return what `rows` returns, by each accepted name: also Kafka's dotted ones, and the Java client's.

    ``librdkafka_too``: also by librdkafka's names of our own settings, which only a ``kafka://`` URL may use.
    """
    found = dict(rows(*scopes, own=own))
    for row in [*found.values()]:
        if row.kafka and row.unit_ms == 1:
            found.setdefault(as_keyword(row.kafka) if row.is_passed else row.kafka, row)
        if row.librdkafka and librdkafka_too:
            found.setdefault(as_keyword(row.librdkafka), row)
    return MappingProxyType(found)


def find(key: str, among: Mapping[str, Setting]) -> Setting | None:
    """Return the row with this name, whose dots may be underscores."""
    return among.get(key) or among.get(as_keyword(key))


def canonical(name: str) -> str:
    """Return the one name of a bus's setting, whichever of its names is given."""
    row = find(name, known(*OF_A_BUS, librdkafka_too=True))
    return as_keyword(name) if row is None else row.name


def advice(key: str, among: Mapping[str, Setting]) -> str:
    """Return what to write instead of a name that is not among these settings; empty if nothing is known of it."""
    name = as_keyword(key)
    if name in REMOVED and name not in RENAMED:
        return f"gone since Kafka 0.9, the key is {REMOVED[name]}"
    now = RENAMED.get(name, name)
    noun = "option" if "on_error" in among else "key"
    renamed = f"the {noun} is {now}" if now != name else ""
    detail = NOTES.get(now, "") or ("" if now in among else _places(now))
    return ": ".join(part for part in (renamed, detail) if part)


def _places(name: str) -> str:
    """Return the clients that have the setting of their own."""
    calls = {"consumer": ("consumer", "bus.new_consumer"), "producer": ("producer", "bus.new_producer")}
    calls |= dict.fromkeys(OF_A_HANDLER, ("consumer", "@bus.consumer"))
    scopes = [row.scope for row in reversed(TABLE) if row.name == name and row.scope in calls]
    if not scopes:
        return ""
    return f"each {calls[scopes[0]][0]} has its own: {', '.join(f'{calls[one][1]}({name}=...)' for one in scopes)}"


def refused(key: str, among: Mapping[str, Setting], what: str) -> ConfigError:
    """Return the error for an unknown name, with the right one."""
    hint = advice(key, among)
    hint = f": {hint}" if hint else nearest_setting(key, among)
    ours = sorted({row.name for row in among.values() if not row.is_passed})
    also = ", and librdkafka's for kafka://" if len(ours) < len(among) and "linger_ms" in among else ""
    return ConfigError(f"unknown {what} setting {key!r}{hint}; known are {', '.join(ours)}{also}")


def read(
    given: Mapping[str, Any], among: Mapping[str, Setting], what: str, where: str = ""
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values by the settings' names; and those for librdkafka, under its names and as text.

    ``what`` names the reader in errors, and ``where`` the place, if it has one. Raises ConfigError for an unknown name,
    a wrong value, and for a setting that is given twice with different values.
    """
    values: dict[str, Any] = {}
    passed: dict[str, str] = {}
    if REMOVED.keys() & {as_keyword(key) for key in given} and "linger_ms" in among:
        given = _with_successors(given)
    for key, value in given.items():
        row = find(key, among)
        if row is None:
            raise refused(key, among, what)
        if row.is_passed and value is None:
            continue  # not given, as where a program reads it from its environment
        value = read_value(row, key, value, where or f"{row.scope} setting")
        if row.is_passed:
            before = passed.setdefault(row.passed_as, value := as_text(value))
        else:
            before = values.setdefault(row.name, value)
        if before is not value and before != value:
            shown = ["***" if row.is_secret else repr(one) for one in (before, value)]
            raise ConfigError(
                f"{where or f'{what} setting'} {row.name} is given twice, as {shown[0]} and as {key!r}: {shown[1]}: "
                "leave one of the two out"
            )
    return values, passed


def read_value(row: Setting, key: str, value: Any, where: str) -> Any:
    """Return the value in the setting's type. Raises ConfigError that begins with ``where``."""
    try:
        return row.read(value)
    except ValueError as error:
        shown = "***" if row.is_secret else repr(value)
        colon = "" if where.endswith(" setting") else ":"
        raise ConfigError(f"{where}{colon} {key}={shown}: {error}") from None


def _with_successors(given: Mapping[str, Any]) -> dict[str, Any]:
    """Removed keys as their successors, which win over them where both are given."""
    rest = {key: value for key, value in given.items() if as_keyword(key) not in REMOVED}
    removed = {as_keyword(key): value for key, value in given.items() if as_keyword(key) in REMOVED}
    for key, successor in REMOVED.items():
        if key not in removed:
            continue
        logger.warning(
            "producer setting %s is gone since Kafka 0.9; it is read as %s: write that instead", key, successor
        )
        value = removed[key]
        if key == "block_on_buffer_full":
            if str(value).lower() not in ("true", "1"):
                continue
            value = _FOREVER_MS
        if successor not in {as_keyword(one) for one in rest}:
            rest[successor] = value
    return rest
