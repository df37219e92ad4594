"""Configs of topics, brokers and loggers, for the APIs that describe and change them (KIP-133, KIP-226, KIP-339)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from eventbus.broker.configs import config_key
from eventbus.broker.names import check_topic_name
from eventbus.errors import InvalidConfig, InvalidRequest
from eventbus.server.admin import check_cluster, check_topic
from eventbus.server.broker_configs import describe_broker
from eventbus.server.call import Call
from eventbus.server.security.acls import Operation
from eventbus.settings.setting import Setting

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
RESOURCE_TYPES = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
"""Kafka's numbers of ``ConfigResource.Type``."""

STATIC_BROKER, DEFAULT = 4, 5
DYNAMIC_LOGGER = 6
SOURCES = {"topic": 1, "broker": STATIC_BROKER, "default": DEFAULT}
"""Kafka's ``ConfigSource`` for the source of a value."""

_TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
"""Kafka's numbers of ``ConfigType``."""

_LEVELS = {"TRACE": logging.DEBUG, "DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING,
           "ERROR": logging.ERROR, "FATAL": logging.CRITICAL}  # fmt: skip
_ROOT_LOGGER = "root"


class Change(IntEnum):
    """Kafka's numbers of ``AlterConfigOp.OpType``."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Synonym(NamedTuple):
    """A source of a value; the first source that has it takes precedence."""

    name: str
    value: str | None
    source: int


class Entry(NamedTuple):
    """One config, as in the answer to DescribeConfigs."""

    name: str
    value: str | None
    source: int
    type: int
    is_read_only: bool
    is_sensitive: bool
    synonyms: Sequence[Synonym]
    documentation: str


# describe -------------------------------------------------------------------------------------------------------------


def describe(call: Call, kind: int, name: str) -> list[Entry]:
    """Return all configs of a resource. Raises the KafkaError for the answer."""
    if kind == TOPIC:
        check_topic(call, Operation.DESCRIBE_CONFIGS, name)
        check_topic_name(name)
        return _describe_topic(call, name)
    check_cluster(call, Operation.DESCRIBE_CONFIGS)
    if kind == BROKER:
        if name == "":
            return []  # configs for all brokers are set at the start of each
        _check_broker(call, name)
        return _describe_broker(call)
    if kind == BROKER_LOGGER:
        _check_broker(call, name)
        return _describe_loggers()
    if kind == GROUP:
        return _describe_group(call)
    if kind == CLIENT_METRICS:
        return []
    raise InvalidRequest(f"configs of resources of type {kind} are unknown here")


def _describe_topic(call: Call, topic: str) -> list[Entry]:
    entries: list[Entry] = []
    admin = call.node.broker.topic_admin
    for name, entry in admin.configs_of(topic).items():
        key = config_key(name)
        synonyms = [Synonym(name, entry.value, SOURCES["topic"])] if entry.source == "topic" else []
        if key.kafka:
            if name in admin.defaults:
                synonyms.append(Synonym(key.kafka, admin.defaults[name], STATIC_BROKER))
            synonyms.append(Synonym(key.kafka, key.default, DEFAULT))
        entries.append(
            Entry(name, entry.value, SOURCES[entry.source], _TYPES[entry.type], False, False, synonyms, entry.no_effect)
        )
    return entries


def _describe_broker(call: Call) -> list[Entry]:
    entries: list[Entry] = []
    here = call.listener
    listeners = [here if one.name == here.name else one for one in call.node.config.listeners]
    for one in describe_broker(call.node, listeners):
        source = DEFAULT if one.is_default else STATIC_BROKER
        value = None if one.is_sensitive else one.value
        synonyms = [Synonym(one.name, value, STATIC_BROKER)] if source == STATIC_BROKER else []
        if one.default is not None:
            synonyms.append(Synonym(one.name, None if one.is_sensitive else one.default, DEFAULT))
        entries.append(
            Entry(one.name, value, source, _TYPES[one.type], True, one.is_sensitive, synonyms, one.no_effect)
        )
    return entries


def _describe_group(call: Call) -> list[Entry]:
    """Return the settings for members of the consumer protocol (KIP-848), which are equal for all groups here."""
    config = call.node.broker.config
    values = {
        "consumer.heartbeat.interval.ms": (config.group_consumer_heartbeat_interval_ms, "5000"),
        "consumer.session.timeout.ms": (config.group_consumer_session_timeout_ms, "45000"),
    }
    entries: list[Entry] = []
    for name, (value, default) in values.items():
        own = str(value) != default
        synonyms = [Synonym(f"group.{name}", str(value), STATIC_BROKER)] if own else []
        synonyms.append(Synonym(f"group.{name}", default, DEFAULT))
        source = STATIC_BROKER if own else DEFAULT
        entries.append(Entry(name, str(value), source, _TYPES["int"], True, False, synonyms, ""))
    return entries


def _describe_loggers() -> list[Entry]:
    names = sorted(name for name in logging.Logger.manager.loggerDict if name.partition(".")[0] == "eventbus")
    entries: list[Entry] = []
    for name in (_ROOT_LOGGER, *names):
        level = logging.getLogger(None if name == _ROOT_LOGGER else name).getEffectiveLevel()
        word = next((word for word, number in _LEVELS.items() if number >= level and word != "TRACE"), "FATAL")
        synonyms = (Synonym(name, word, DYNAMIC_LOGGER),)
        entries.append(Entry(name, word, DYNAMIC_LOGGER, _TYPES["string"], False, False, synonyms, ""))
    return entries


def _check_broker(call: Call, name: str) -> None:
    if name != str(call.node.node_id):
        raise InvalidRequest(f"there is no broker {name!r}: this one is {call.node.node_id}, and there is no other")


# alter ----------------------------------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """A requested change of a config."""

    name: str
    change: Change
    value: str | None


def alter(call: Call, kind: int, name: str, changes: Sequence[Wanted], validate_only: bool) -> None:
    """Make changes, all or none. Raises the KafkaError for the answer."""
    _check_named_once(changes)
    if kind == TOPIC:
        check_topic(call, Operation.ALTER_CONFIGS, name)
        check_topic_name(name)
        _alter_topic(call, name, changes, validate_only)
        return
    check_cluster(call, Operation.ALTER_CONFIGS)
    if kind == BROKER_LOGGER:
        _check_broker(call, name)
        _alter_loggers(changes, validate_only)
        return
    if kind == BROKER:
        if name != "":
            _check_broker(call, name)
        names = ", ".join(one.name for one in changes if one.change != Change.DELETE)
        if not names:
            return  # nothing can be set at runtime, so nothing needs unsetting: tools do that when they exit
        raise InvalidRequest(
            f"configs of the broker are set at its start, by options or in its properties file, not while it runs: "
            f"{names}"
        )
    raise InvalidRequest(f"resources of type {kind} have no configs to alter here")


def replace(call: Call, kind: int, name: str, values: Mapping[str, str | None], validate_only: bool) -> None:
    """Set these configs and unset all others, as the old AlterConfigs does."""
    changes = [Wanted(key, Change.SET, value) for key, value in values.items()]
    if kind == TOPIC:
        check_topic(call, Operation.ALTER_CONFIGS, name)
        check_topic_name(name)
        entries = call.node.broker.topic_admin.configs_of(name).items()
        own = (key for key, entry in entries if entry.source == "topic" and key not in values)
        changes += [Wanted(key, Change.DELETE, None) for key in own]
    alter(call, kind, name, changes, validate_only)


def _check_named_once(changes: Sequence[Wanted]) -> None:
    seen: set[str] = set()
    for one in changes:
        if one.name in seen:
            raise InvalidRequest(f"config {one.name!r} stands twice in the request: change it once")
        seen.add(one.name)
        if one.value is None and one.change != Change.DELETE:
            raise InvalidRequest(f"config {one.name!r} has no value: DELETE sets the default again")


def _alter_topic(call: Call, topic: str, changes: Sequence[Wanted], validate_only: bool) -> None:
    broker = call.node.broker
    present = broker.topic_admin.configs_of(topic)
    new: dict[str, str] = {}
    for one in changes:
        if one.change == Change.DELETE:
            continue
        key, value = config_key(one.name), one.value or ""
        if one.change == Change.SET:
            new[one.name] = value
            continue
        new[one.name] = _changed_list(key, present[one.name].value, one)
    # As in Kafka, unsetting a config that is not set is ignored, even an unknown one: its tools unset configs when they
    # exit.
    unset = [one.name for one in changes if one.change == Change.DELETE and one.name in present]
    if validate_only:
        broker.topic_admin.check_alter(topic, new, unset)
    else:
        broker.alter_configs(topic, new, unset, call.node.clock())
        call.node.topics_changed()


def _changed_list(key: Setting, present: str, wanted: Wanted) -> str:
    if key.kind != "list":
        raise InvalidConfig(f"config {key.name!r} is no list: {wanted.change.name} changes lists, SET any value")
    items, named = _items(present), _items(wanted.value or "")
    if wanted.change == Change.APPEND:
        return ",".join([*items, *(item for item in named if item not in items)])
    return ",".join(item for item in items if item not in named)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _alter_loggers(changes: Iterable[Wanted], validate_only: bool) -> None:
    levels: dict[str, int] = {}
    for one in changes:
        if one.name != _ROOT_LOGGER and one.name not in logging.Logger.manager.loggerDict:
            raise InvalidConfig(f"there is no logger {one.name!r}; describing the broker's loggers lists them")
        if one.change not in (Change.SET, Change.DELETE):
            raise InvalidRequest(f"logger {one.name!r}: a level is set, or deleted; it is no list")
        level = logging.NOTSET if one.change == Change.DELETE else _LEVELS.get((one.value or "").upper())
        if level is None:
            raise InvalidConfig(f"logger {one.name!r}: {one.value!r} is no level; there are {', '.join(_LEVELS)}")
        if one.name == _ROOT_LOGGER and one.change == Change.DELETE:
            raise InvalidRequest("the root logger keeps a level: set it")
        levels[one.name] = level
    if not validate_only:
        for name, level in levels.items():
            logging.getLogger(None if name == _ROOT_LOGGER else name).setLevel(level)
