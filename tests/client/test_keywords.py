"""The keyword classes that type checkers read, and the structs that hold values, agree with the settings table.

``python -m pytest tests/client/test_keywords.py --rewrite`` writes the classes.
"""

from __future__ import annotations

import re
import typing
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.urls import broker_config
from eventbus.broker import BrokerConfig
from eventbus.client import keywords
from eventbus.client.config import consumer_settings, producer_settings
from eventbus.client.configuration.resolution import configure
from eventbus.client.handling.options import ConsumerSpec, consumer_spec
from eventbus.errors import ConfigError
from eventbus.server import ServerConfig
from eventbus.server.security.config import SecurityConfig
from eventbus.settings import server
from eventbus.settings.setting import Setting, as_keyword
from eventbus.settings.table import OF_A_HANDLER, TABLE, rows

PAGE = Path(keywords.__file__)
OWN_OF_A_CONSUMER = [row for row in TABLE if row.scope in ("consumer", "librdkafka consumer") and row.own]
CLASSES: dict[str, list[Setting]] = {
    "LogOptions": [*rows("log").values()],
    "ClientOptions": [*rows("librdkafka").values()],
    "JavaClientOptions": [
        row._replace(name=as_keyword(row.kafka)) for row in rows("librdkafka").values() if row.kafka
    ],
    "ConsumerClientOptions": [*rows("librdkafka consumer").values()],
    "ProducerClientOptions": [*rows("librdkafka producer").values()],
    "ProducerDefaults": [*rows("producer").values()],
    "ProducerFunctionOptions": [rows("producer", own=True)["client_id"]],
    "ProducerOptions": [rows("producer", own=True)["transactional_id"]],
    "ConsumerDefaults": [*rows("consumer").values()],
    "ConsumerOptions": [row for row in OWN_OF_A_CONSUMER if row.name != "group"],
    "ReaderOptions": [row for row in OWN_OF_A_CONSUMER if row.name == "group"],
    "BusOptions": [*(row for row in rows("bus").values() if row.name != "url"), *rows("function").values()],
    "CallOptions": [*rows("call").values(), *(row for row in OWN_OF_A_CONSUMER if row.name == "request_timeout_ms")],
    "HandlerDefaults": [*rows("handler").values()],
    "HandlerOptions": [*rows("decorator").values()],
    "ScheduleOptions": [rows("decorator")["middleware"]],
}  # fmt: skip


def field_of(row: Setting) -> str:
    kinds = {"boolean": "bool", "string": "str", "double": "float"}
    hint = kinds.get(row.kind, "Milliseconds" if row.name.endswith("_ms") else "int")
    choices = ", ".join(f'"{word}"' for word in row.choices)
    hint = row.hint or (f"Literal[{choices}]" if choices else hint) + (" | None" if row.none else "")
    line = f"    {row.name}: {hint}"
    return line if len(line) <= 120 else f"    {row.name}: Literal[\n        {choices}\n    ]"


@pytest.mark.parametrize("name", CLASSES)
def test_a_keyword_class_has_the_fields_of_its_rows(name: str, rewrite: bool) -> None:
    text = PAGE.read_text("utf-8")
    found = re.search(rf'\nclass {name}\(.*?\):\n    """.*?"""\n(.*?)(?=\n\nclass |\Z)', text, re.DOTALL)
    assert found is not None
    body = "\n" + "\n".join(map(field_of, CLASSES[name]))
    if rewrite:
        PAGE.write_text(f"{text[: found.start(1)]}{body}\n{text[found.end(1) :]}", "utf-8")
    else:
        assert found[1].rstrip() == body, "`python -m pytest tests/client/test_keywords.py --rewrite` writes it"


STRUCTS: dict[type, list[Setting]] = {
    BrokerConfig: [*rows("log").values()],
    ProducerConfig: [*rows("producer", own=True).values()],
    ConsumerConfig: [*rows("consumer", own=True).values()],
    ConsumerSpec: [*rows(*OF_A_HANDLER).values()],
}
CONVERTED = {
    "compression_type": "compression", "isolation_level": "isolation", "partition_assignment_strategy": "assignors",
    "acks": "acks", "partitioner": None, "exactly_once": None, "dead_letter": None,
}  # fmt: skip
"""Settings that a struct holds in another form, by the field's name; None: it has no field."""
ADDED = {"given", "kafka", "start_duration_ms", "topics", "client", "is_firing", "group_prefix"}
"""Fields that are not settings."""


@pytest.mark.parametrize("struct", STRUCTS)
def test_a_struct_has_the_fields_and_defaults_of_its_rows(struct: type) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    settings = {row.name: row for row in STRUCTS[struct]}
    names = {name if name in fields else CONVERTED.get(name, name) for name in settings} - {None}
    if struct is ConsumerSpec:  # its consumer's settings, of which it has some as fields of its own
        names = (names - {"client_id"}) | (fields.keys() & rows("consumer").keys())
    assert names == fields.keys() - ADDED
    for name in names & settings.keys() - CONVERTED.keys():
        default = (
            fields[name].default if fields[name].default is not msgspec.NODEFAULT else fields[name].default_factory()
        )
        assert default == settings[name].default, name
        assert settings[name].read(default) == default


def test_the_servers_structs_have_the_fields_and_defaults_of_their_rows() -> None:
    fields = {one.name: one for kind in (ServerConfig, SecurityConfig) for one in msgspec.structs.fields(kind)}
    for row in server.ROWS:
        assert fields.pop(row.name).default == row.default, row.name
    assert not [name for name, field in fields.items() if field.type in (int, str)]


@pytest.mark.parametrize("row", rows(*OF_A_HANDLER).values(), ids=lambda row: row.name)
def test_every_option_of_a_handler_is_taken(row: Setting) -> None:
    """It may contradict another option or need a better value; it is not unknown."""
    with pytest.raises(ConfigError) as refused:
        consumer_spec("orders", {row.name: object(), "on_error": "wrong"})
    assert "no option" not in str(refused.value)


DURATIONS = sorted({
    name for options in CLASSES for name in typing.get_type_hints(getattr(keywords, options)) if name.endswith("_ms")
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
