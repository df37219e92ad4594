"""The registry of a log's directory, read by another process than the one that writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from eventbus import EventBus
from eventbus.errors import ConfigError
from schema_registry import Registry
from schema_registry.entities import SchemaRequest
from schema_registry.log_directory import LogDirectoryClient, open_client
from serdes.errors import SchemaRegistryError
from serdes.registry import Reference, SchemaClient, SchemaText

T = TypeVar("T")

LONG = SchemaText('"long"')


async def publish(bus: EventBus) -> None:
    """Readers outside go as far as the owner published: every second, and when a topic is made."""
    await bus.admin.create_topic(f"made-{len(await bus.admin.list_topics())}", 1)


async def aside(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def test_it_answers_what_the_registry_knows_while_that_goes_on(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'log'}"
    async with EventBus(url) as bus, Registry(bus) as registry:
        first = await registry.register("t-value", SchemaRequest(schema='"int"'))
        await publish(bus)
        client = open_client(url)
        assert isinstance(client, SchemaClient)
        assert client.known(first.id) is None
        assert (await aside(lambda: client.by_id(first.id))).text == SchemaText('"int"')
        assert client.known(first.id) is not None
        second = await registry.register("t-value", SchemaRequest(schema='"long"'))
        await publish(bus)
        latest = await aside(lambda: client.latest("t-value"))
        assert (latest.id, latest.version, latest.subject) == (second.id, 2, "t-value")
        assert (await aside(lambda: client.version("t-value", 1))).id == first.id
        assert (await aside(lambda: client.lookup("t-value", LONG))).id == second.id
        assert latest.guid is not None
        guid = latest.guid
        assert (await aside(lambda: client.by_guid(guid))).id == second.id
        answer = await aside(lambda: client.is_compatible("t-value", SchemaText('"string"')))
        assert not answer.is_compatible
        assert answer.messages
        await registry.delete_version("t-value", 1)
        await publish(bus)
        await aside(lambda: client.latest("t-value"))
        assert (await aside(lambda: client.version("t-value", 1, deleted=True))).deleted
        client.close()


async def test_named_types_of_other_subjects_are_found(tmp_path: Path) -> None:
    text = '{"type": "enum", "name": "Colour", "symbols": ["RED"]}'
    async with EventBus(f"file://{tmp_path}") as bus, Registry(bus) as registry:
        await registry.register("colours", SchemaRequest(schema=text))
        reference = Reference("Colour", "colours", 1)
        record = '{"type": "record", "name": "R", "fields": [{"name": "c", "type": "Colour"}]}'
        made = await registry.register("t-value", SchemaRequest(schema=record, references=[reference]))
    client = LogDirectoryClient(str(tmp_path))
    found = client.by_id(made.id)
    assert found.text.references == (reference,)
    assert client.version("colours", 1).text.schema == '{"type":"enum","name":"Colour","symbols":["RED"]}'


async def test_what_is_missing_is_missing_and_nothing_is_registered(tmp_path: Path) -> None:
    async with EventBus(f"file://{tmp_path}"):
        client = LogDirectoryClient(str(tmp_path))
        asked: list[Callable[[], Any]] = [
            lambda: client.by_id(1),
            lambda: client.latest("t-value"),
            lambda: client.version("t-value", 1),
            lambda: client.by_guid("00000000-0000-0000-0000-000000000000"),
        ]
        for ask in asked:
            with pytest.raises(SchemaRegistryError) as refused:
                ask()
            assert refused.value.is_missing
        with pytest.raises(SchemaRegistryError, match="read here, not written"):
            client.register("t-value", LONG)


async def test_a_topic_made_anew_is_read_anew(tmp_path: Path) -> None:
    async with EventBus(f"file://{tmp_path}") as bus:
        async with Registry(bus) as registry:
            await registry.register("a-value", SchemaRequest(schema='"int"'))
            await registry.register("b-value", SchemaRequest(schema='"string"'))
        await publish(bus)
        client = LogDirectoryClient(str(tmp_path))
        assert client.by_id(1).text.schema == '"int"'
        await bus.admin.delete_topics(["_schemas"])
        async with Registry(bus) as registry:
            await registry.register("b-value", SchemaRequest(schema='"string"'))
            await publish(bus)
            assert (await aside(lambda: client.latest("b-value"))).id == 1
            assert client.by_id(1).text.schema == '"string"'


async def test_a_registry_that_cannot_be_read_is_trouble_not_an_answer(tmp_path: Path) -> None:
    async with EventBus(f"file://{tmp_path}") as bus, Registry(bus) as registry:
        await registry.register("t-value", SchemaRequest(schema='"int"'))
    (log,) = tmp_path.glob("_schemas-0/*.log")
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    log.write_bytes(data)
    with pytest.raises(SchemaRegistryError, match="cannot be read") as refused:
        LogDirectoryClient(str(tmp_path)).by_id(1)
    assert refused.value.is_retriable


@pytest.mark.parametrize("url", ["file://", "http://x", "file:///nowhere/at/all"])
def test_a_url_without_a_log_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        open_client(url)
