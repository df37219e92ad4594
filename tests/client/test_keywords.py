"""The keyword classes that type checkers read agree with the tables that the program reads: names, types, defaults."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from typing import Any, Literal

import msgspec
import pytest

from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.kafka.keywords import ClientOptions, JavaClientOptions
from eventbus.backends.kafka.names import (
    CALLBACK,
    FOR_ALL,
    JAVA_NAMES,
    OF_A_CONSUMER,
    OF_A_PRODUCER,
    OF_ALL,
    as_keyword,
)
from eventbus.backends.urls import broker_config
from eventbus.broker import BrokerConfig
from eventbus.client import keywords
from eventbus.client.config import (
    CONSUMER_DEFAULTS,
    CONSUMER_KEYS,
    LOG_KEYS,
    PRODUCER_KEYS,
    consumer_settings,
    producer_settings,
)
from eventbus.client.configuration.choose import configure
from eventbus.client.configuration.known import OF_THE_BUS
from eventbus.client.handling.options import ConsumerSpec, consumer_spec
from eventbus.client.router import _OF_THE_ROUTER
from eventbus.client.scheduling.scheduling import _TAKEN
from eventbus.errors import ConfigError

OF_A_HANDLER = {
    *ConsumerSpec.__struct_fields__, *CONSUMER_DEFAULTS, *OF_A_CONSUMER, "exactly_once", "dead_letter",
} - {"topics", "client", "is_firing", "group_prefix"}  # fmt: skip
"""The options that `consumer_spec` takes; see test_every_option_of_a_handler_is_taken."""
PARAMETERS = {"group"}
"""Written out in the signature of `new_consumer`."""
TABLES: dict[type, set[str] | frozenset[str]] = {
    keywords.LogOptions: LOG_KEYS,
    keywords.ProducerDefaults: (PRODUCER_KEYS | OF_A_PRODUCER.keys()) - {"client_id", "transactional_id"},
    keywords.ProducerFunctionOptions: (PRODUCER_KEYS | OF_A_PRODUCER.keys()) - {"transactional_id"},
    keywords.ProducerOptions: PRODUCER_KEYS | OF_A_PRODUCER.keys(),
    keywords.ConsumerDefaults: (CONSUMER_DEFAULTS | OF_A_CONSUMER.keys()) - {"client_id", "request_timeout_ms"},
    keywords.ConsumerOptions: (CONSUMER_KEYS | OF_A_CONSUMER.keys()) - PARAMETERS,
    keywords.ReaderOptions: CONSUMER_KEYS | OF_A_CONSUMER.keys(),
    keywords.BusOptions: (
        (LOG_KEYS | PRODUCER_KEYS | CONSUMER_DEFAULTS | OF_ALL.keys() | OF_THE_BUS.keys() | {CALLBACK})
        - {"url", "transactional_id"}
    ),
    keywords.HandlerOptions: OF_A_HANDLER,
    keywords.HandlerDefaults: OF_A_HANDLER - {*_OF_THE_ROUTER},
    keywords.ScheduleOptions: OF_A_HANDLER - {*_TAKEN} - {"name"},
}


@pytest.mark.parametrize("options", TABLES, ids=lambda options: options.__name__)
def test_a_keyword_class_has_exactly_the_names_of_its_table(options: type) -> None:
    names = {*typing.get_type_hints(options)}
    assert names - TABLES[options] == set(), "an unknown option: a type checker would let it pass"
    assert TABLES[options] - names == set(), "a type checker would refuse it, and an editor not complete it"


def test_the_java_names_are_those_of_the_table() -> None:
    java = {*JavaClientOptions.__annotations__, *ClientOptions.__annotations__}
    assert {as_keyword(name) for name in JAVA_NAMES} <= java
    assert {*JAVA_NAMES.values()} <= FOR_ALL


@pytest.mark.parametrize("name", sorted(OF_A_HANDLER))
def test_every_option_of_a_handler_is_taken(name: str) -> None:
    """It may contradict another option or need a better value; it is not unknown."""
    with pytest.raises(ConfigError) as refused:
        consumer_spec("orders", {name: object(), "on_error": "wrong"})
    assert "no option" not in str(refused.value)


def table_of(options: type, name: str) -> Any:
    of_clients = (BrokerConfig, ProducerConfig, ConsumerConfig)
    tables = (ConsumerSpec,) if options is keywords.HandlerOptions else of_clients
    return next((table for table in tables if name in table.__struct_fields__), None)


CHECKED = [
    (options, name)
    for options in (keywords.BusOptions, keywords.ProducerOptions, keywords.ReaderOptions, keywords.HandlerOptions)
    for name in typing.get_type_hints(options)
    if name in OF_THE_BUS or table_of(options, name) is not None
]
TEXT_TOO = {"acks", "timeout"}
"""The table has the number that the text, or the timedelta, stands for."""
OBJECTS = {"retry", "tx", "filter", "middleware", "partition_assignment_strategy", "start", "isolation_level",
    "delivery"}  # fmt: skip
"""Checked by functions of their own, and held in another form."""


@pytest.mark.parametrize(("options", "name"), CHECKED, ids=lambda part: getattr(part, "__name__", part))
def test_a_keyword_has_the_type_of_its_table_and_takes_the_default(options: type, name: str) -> None:
    hint = typing.get_type_hints(options)[name]
    struct = table_of(options, name)
    if struct is None:
        kind, default, _ = OF_THE_BUS[name]
    else:
        kind = typing.get_type_hints(struct)[name]
        default = next(field for field in msgspec.structs.fields(struct) if field.name == name).default
    if default is not None and default is not msgspec.NODEFAULT:
        assert takes(hint, default) or name in OBJECTS, f"{hint} does not take the default {default!r}"
    if name.endswith("_ms"):
        hint = int if classes(hint) - {type(None)} == {int, str, timedelta} else hint
    if name not in OBJECTS | TEXT_TOO:
        assert classes(kind) - {type(None)} == classes(hint) - {type(None)}, "another type than the table"
        assert choices(kind) == choices(hint), "other choices than the table"


DURATIONS = sorted({
    name for options in TABLES for name in typing.get_type_hints(options) if name.endswith("_ms")
})  # fmt: skip


@pytest.mark.parametrize("name", DURATIONS)
def test_a_setting_in_milliseconds_takes_text_and_timedelta(name: str) -> None:
    """Each reader that has the setting gets the same number from every form."""
    given: tuple[Any, ...] = (180_000, "180000ms", "180s", "3m", "PT3M", timedelta(minutes=3))
    for options, read in READERS.items():
        if name in typing.get_type_hints(options):
            assert len({repr(read(name, value)) for value in given}) == 1


def of_a_bus(name: str, value: Any) -> Any:
    return configure({"url": "memory://", "session_timeout_ms": "1h", name: value})


def of_a_log(name: str, value: Any) -> Any:
    return broker_config({name: value})


def of_a_producer(name: str, value: Any) -> Any:
    return producer_settings({name: value})


def of_a_consumer(name: str, value: Any) -> Any:
    return consumer_settings({"session_timeout_ms": "1h", name: value})


def of_a_handler(name: str, value: Any) -> Any:
    return consumer_spec("orders", {name: value})


READERS = {
    keywords.BusOptions: of_a_bus, keywords.LogOptions: of_a_log, keywords.ProducerOptions: of_a_producer,
    keywords.ConsumerOptions: of_a_consumer, keywords.HandlerOptions: of_a_handler,
}  # fmt: skip


def classes(hint: Any) -> set[Any]:
    """The classes that values of a type have."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return classes(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return {kind for arm in typing.get_args(hint) for kind in classes(arm)}
    if origin is Literal:
        return {type(word) for word in typing.get_args(hint)}
    kind = origin or hint
    return {dict} if isinstance(kind, type) and issubclass(kind, Mapping) else {kind}


def choices(hint: Any) -> set[Any]:
    return {*typing.get_args(hint)} if typing.get_origin(hint) is Literal else set()


def takes(hint: Any, value: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(takes(arm, value) for arm in typing.get_args(hint))
    if origin is Literal:
        return any(word == value and type(word) is type(value) for word in typing.get_args(hint))
    return isinstance(value, origin or hint) and not (isinstance(value, Enum) and hint is int)
