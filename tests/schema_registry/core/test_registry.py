"""The registry on a bus: its life, what it refuses to start on, many writers at once, a second registry beside it."""

from __future__ import annotations

import gc
import json
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from eventbus import EventBus, TopicPartition
from eventbus.errors import ConfigError
from schema_registry import IncompatibleSchema, Registry, RegistryError, RegistryRefused, SchemaRequest, formats
from schema_registry import registry as registry_module
from schema_registry.entities import ConfigUpdate
from schema_registry.follower import Follower
from schema_registry.ledger import Ledger
from serdes.registry import SchemaClient, SchemaText
from tests.schema_registry.core.lab import INT, LONG, STRING, record, refused

_numbers = count()


@pytest.fixture
def url() -> str:
    return f"memory://registry-{next(_numbers)}"


@asynccontextmanager
async def open_registry(url: str, **options: Any) -> AsyncGenerator[Registry]:
    async with EventBus(url) as bus, Registry(bus, **options) as registry:
        yield registry


def request(text: str, **members: Any) -> SchemaRequest:
    return SchemaRequest(schema=text, **members)


# life ----------------------------------------------------------------------------------------------------------------


async def test_what_was_registered_is_there_after_a_restart(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    async with open_registry(url) as registry:
        first = await registry.register("a", request(INT))
        await registry.register("b", request(LONG))
        await registry.delete_subject("b")
        await registry.delete_subject("b", permanent=True)
        await registry.update_config("a", ConfigUpdate(compatibility="FULL"))
        assert registry.is_ready
    async with open_registry(url) as registry:
        assert registry.version("a", "latest") == first
        assert registry.config("a").compatibility_level == "FULL"
        assert (await registry.register("c", request(STRING))).id == 3


async def test_a_registry_that_does_not_run_says_so() -> None:
    registry = Registry()
    assert not registry.is_ready
    with refused(500, 50001, "not running"):
        registry.schema_by_id(1)
    with refused(500, 50001, "not running"):
        await registry.register("a", request(INT))
    with pytest.raises(ConfigError):
        await registry.start()
    with pytest.raises(ConfigError, match="SIDEWAYS"):
        Registry(compatibility="SIDEWAYS")


async def test_it_runs_again_after_it_was_closed() -> None:
    async with EventBus("memory://") as bus:
        registry = Registry(bus)
        for expected in (1, 2):
            async with registry:
                assert (await registry.register("a", request(record(f"R{expected}")))).id == expected
                await registry.update_config("a", ConfigUpdate(compatibility="NONE"))
                with pytest.raises(ConfigError):
                    await registry.start()


async def test_any_task_may_close_it(url: str) -> None:
    async with EventBus(url) as bus:
        registry = Registry(bus)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(registry.start)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(registry.aclose)
        assert not registry.is_ready


async def test_it_starts_and_stops_with_its_bus() -> None:
    registry = Registry()
    bus = EventBus("memory://")
    bus.include(registry)
    async with bus:
        assert registry.is_ready
        assert (await registry.register("a", request(INT))).id == 1
    assert not registry.is_ready


def test_it_runs_on_trio() -> None:
    async def run() -> None:
        async with open_registry("memory://") as registry:
            assert (await registry.register("a", request(INT))).id == 1
            assert (await anyio.to_thread.run_sync(registry.client().latest, "a")).id == 1

    anyio.run(run, backend="trio")


async def test_a_read_only_registry() -> None:
    async with open_registry("memory://", read_only=True) as registry:
        with refused(422, 42205, "read-only"):
            await registry.register("a", request(INT))
        assert registry.subjects() == []


async def test_names_that_are_none_are_refused_before_anything_is_written() -> None:
    async with open_registry("memory://") as registry:
        for subject in ("", "a\n", "__GLOBAL", ":.c:"):
            with refused(422, 42208):
                await registry.register(subject, request(INT))
        with refused(422, 42205):
            await registry.change_associations("create", {})
        assert registry.generation == 0


# what it refuses to start on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partitions", "policy", "says"),
    [(1, "delete", "cleanup.policy=delete"), (1, "compact,delete", "compact,delete"), (3, "compact", "3 partitions")],
)
async def test_topics_that_would_lose_ids(partitions: int, policy: str, says: str) -> None:
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("_schemas", partitions, configs={"cleanup.policy": policy})
        with pytest.raises(RegistryRefused, match=says):
            await Registry(bus).start()


async def test_a_topic_without_its_beginning(url: str) -> None:
    async with EventBus(url) as bus:
        async with Registry(bus) as registry:
            await registry.register("a", request(INT))
            await registry.register("b", request(LONG))
        await bus.admin.alter_configs("_schemas", {"cleanup.policy": "compact,delete"})
        await bus.admin.delete_records({TopicPartition("_schemas", 0): 2})
        await bus.admin.alter_configs("_schemas", {"cleanup.policy": "compact"})
        with pytest.raises(RegistryRefused, match="begins at offset 2"):
            await Registry(bus).start()
        async with Registry(bus, accept_truncated=True) as registry:
            assert registry.subjects() == ["b"]
            assert (await registry.register("c", request(STRING))).id == 3


async def test_a_record_that_reuses_an_id_stops_nothing() -> None:
    async with EventBus("memory://") as bus:
        async with Registry(bus) as registry:
            await registry.register("a", request(INT))
            key = b'{"keytype":"SCHEMA","subject":"b","version":1,"magic":1}'
            value = b'{"subject":"b","version":1,"id":1,"schema":"\\"long\\"","deleted":false}'
            await bus.send("_schemas", value, key=key, partition=0)
            await registry.catch_up()
            assert registry.is_ready
            assert (await registry.register("c", request(STRING))).id == 2
        async with Registry(bus) as registry:
            assert (registry.schema_by_id(1).schema, registry.subjects()) == (INT, ["a", "c"])


async def test_a_fault_of_the_reading_task_does_not_end_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    async with EventBus("memory://") as bus, Registry(bus) as registry:
        monkeypatch.setattr(Ledger, "take", fail)
        await bus.send("_schemas", b"?", key=b"?", partition=0)
        with refused(500, 50001, "cannot read topic '_schemas' any more. Its reading task failed: ZeroDivisionError"):
            await registry.catch_up()
        assert not registry.is_ready
        await bus.send("_schemas", b"?", key=b"?", partition=0)


async def test_a_topic_that_goes_while_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    async with EventBus("memory://") as bus, Registry(bus) as registry:
        await registry.register("a", request(INT))
        await bus.admin.delete_topics("_schemas")
        await bus.admin.create_topic("_schemas", configs={"cleanup.policy": "compact"})
        with caplog.at_level(logging.CRITICAL, "schema_registry"), refused(500, 50001, "deleted or cut"):
            await registry.register("b", request(LONG))
        assert not registry.is_ready
        assert registry.schema_by_id(1).schema == INT, "readers go on"
        with refused(500, 50001, "deleted or cut"):
            await registry.catch_up()


async def test_a_topic_that_is_gone_is_named_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with EventBus("memory://") as bus, Registry(bus) as registry:
        await registry.register("a", request(INT))
        await bus.admin.delete_topics("_schemas")
        with caplog.at_level(logging.CRITICAL), refused(500, 50001, "deleted or cut"):
            await registry.register("b", request(LONG))


# many writers --------------------------------------------------------------------------------------------------------


async def test_many_at_once_share_transactions(url: str) -> None:
    async with open_registry(url) as registry:
        ids: dict[str, int] = {}

        async def register(number: int) -> None:
            text = record(f"R{number % 50}")
            schema = await registry.register(f"s{number}", request(text))
            assert ids.setdefault(text, schema.id) == schema.id

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(register, number)
        assert sorted(ids.values()) == list(range(1, 51))
        assert len(registry.subjects()) == 200


async def test_each_of_a_batch_gets_its_own_answer(url: str) -> None:
    async with open_registry(url) as registry:
        outcomes: dict[str, object] = {}

        async def attempt(name: str, subject: str, text: str) -> None:
            try:
                outcomes[name] = (await registry.register(subject, request(text))).version
            except RegistryError as error:
                outcomes[name] = error.error_code

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt, "first", "a", record("R", "a"))
            tasks.start_soon(attempt, "same", "a", record("R", "a"))
            tasks.start_soon(attempt, "incompatible", "a", record("R", "b"))
            tasks.start_soon(attempt, "none", "a", "{")
            tasks.start_soon(attempt, "other", "b", INT)
        assert outcomes == {"first": 1, "same": 1, "incompatible": 40901, "none": 42201, "other": 1}
        with pytest.raises(IncompatibleSchema) as caught:
            await registry.register("a", request(record("R", "b")))
        assert caught.value.findings


async def test_a_schema_larger_than_the_topic_takes() -> None:
    async with EventBus("memory://") as bus:
        configs = {"cleanup.policy": "compact", "max.message.bytes": 2_000}
        await bus.admin.create_topic("_schemas", configs=configs)
        async with Registry(bus) as registry:
            with refused(422, 42209):
                await registry.register("a", request(record("R", doc="x" * 5_000)))
            assert (await registry.register("a", request(INT))).id == 1


async def test_who_gave_up_waiting_finds_it_stored(url: str) -> None:
    """A client's timeout after the commit: the same request again is answered with the same id."""
    async with open_registry(url) as registry:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def register() -> None:
                    await registry.register("a", request(INT))

                tasks.start_soon(register)
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
                scope.cancel()
        first = await registry.register("a", request(INT))
        assert (first.id, first.version) == (1, 1)
        assert registry.versions("a") == [1]


async def test_a_write_that_takes_too_long_is_told_so(url: str) -> None:
    async with open_registry(url, timeout_ms=0) as registry:
        with refused(500, 50002, "Repeat the request to find out"):
            await registry.register("a", request(INT))


# several registries on one topic -------------------------------------------------------------------------------------


async def test_two_registries_race(url: str) -> None:
    """Both write: each takes the pen from the other, and no id is given twice."""
    async with open_registry(url) as one, open_registry(url) as two:
        ids: dict[str, set[int]] = {}

        async def register(registry: Registry, number: int) -> None:
            text = record(f"R{number}")
            schema = await registry.register(f"s{number}", request(text))
            ids.setdefault(text, set()).add(schema.id)

        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(register, one, number)
                tasks.start_soon(register, two, number if number % 2 else 100 + number)
        await one.catch_up()
        await two.catch_up()
        assert all(len(found) == 1 for found in ids.values()), "the same schema has the same id"
        given = [id for found in ids.values() for id in found]
        assert len(given) == len(set(given)) == 60, (
            "an id may be left out, if a batch was overtaken; none is given twice"
        )
        assert list(one.export_lines()) == list(two.export_lines())


async def test_a_follower_finds_what_it_did_not_know(url: str) -> None:
    async with open_registry(url) as one, open_registry(url) as two:
        schema = await one.register("a", request(INT))
        if await two.catch_up():
            assert two.schema_by_id(schema.id).schema == INT
        assert two.version("a", 1).id == schema.id
        assert not await two.catch_up()
        await two.delete_subject("a")
        await one.catch_up()
        assert one.subjects() == []


async def test_many_that_catch_up_read_once(url: str) -> None:
    async with open_registry(url) as one, open_registry(url) as two:
        await one.register("a", request(INT))
        found: list[bool] = []

        async def catch_up() -> None:
            await two.catch_up()
            found.append("a" in two.subjects())

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(catch_up)
        assert found == [True] * 50


async def test_foreign_records_are_read_before_anything_is_written() -> None:
    """Another registry may write without asking for the pen, as Confluent's does."""
    async with EventBus("memory://") as bus, Registry(bus) as registry:
        await registry.register("a", request(INT))
        key = b'{"keytype":"SCHEMA","subject":"b","version":1,"magic":1}'
        value = b'{"subject":"b","version":1,"id":2,"schemaType":"AVRO","schema":"\\"long\\"","deleted":false}'
        await bus.send("_schemas", value, key=key, partition=0)
        assert (await registry.register("c", request(STRING))).id == 3
        assert (await registry.register("d", request(LONG))).id == 2


# what takes long -----------------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("schema_type", ["AVRO", "JSON", "PROTOBUF"])
async def test_long_schemas_are_parsed_once_and_compared_beside_the_event_loop(
    schema_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pretty text is not the one that is stored: it was parsed four times, and all but once on the loop."""
    on_loop: list[str] = []
    parsed: list[str] = []

    def watched(name: str, done: list[str], what: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*args: Any, **options: Any) -> Any:
            done.append(name)
            if threading.get_ident() == loop:
                on_loop.append(name)
            return what(*args, **options)

        return watch

    def text(number: int) -> str:
        many = range(2_000)
        if schema_type == "AVRO":
            return json.dumps(json.loads(record("R", *(f"f{one}" for one in many), doc=str(number))), indent=2)
        if schema_type == "JSON":
            return json.dumps({"title": str(number), "properties": {f"f{one}": {"type": "string"} for one in many}})
        fields = "".join(f"  int32  field_number_{one} = {one + 1};" for one in many)
        return f"syntax = 'proto3'; message R{number} {{{fields}}}"

    loop = threading.get_ident()
    monkeypatch.setattr(formats, "parse", watched("parse", parsed, formats.parse))
    monkeypatch.setattr(formats, "check", watched("check", [], formats.check))
    async with open_registry("memory://") as registry:
        level = "NONE" if schema_type == "PROTOBUF" else "FULL_TRANSITIVE"
        await registry.update_config("s", ConfigUpdate(compatibility=level))
        for number in range(3):
            await registry.register("s", SchemaRequest(schema=text(number), schema_type=schema_type))
        await registry.update_config("s", ConfigUpdate(compatibility="FULL_TRANSITIVE"))
        wanted = SchemaRequest(schema=text(0), schema_type=schema_type)
        await registry.prepare_check("s", None, wanted)
        answer = registry.check("s", None, wanted, verbose=True)
        assert answer.is_compatible == (schema_type != "PROTOBUF"), answer
    assert len(parsed) == 3 and on_loop == []


async def test_a_log_that_does_not_answer_is_named_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked for an unknown id waited until the broker was back, and those behind him as long again."""

    async def frozen(follower: Follower) -> None:
        await anyio.sleep_forever()

    async with open_registry("memory://") as registry:
        monkeypatch.setattr(registry_module, "_READ_SECONDS", 0)
        monkeypatch.setattr(Follower, "_end", frozen)
        for _ in range(2):
            with refused(500, 50002, "do its brokers answer?"):
                await registry.catch_up()
        monkeypatch.undo()
        assert not await registry.catch_up()


# backup --------------------------------------------------------------------------------------------------------------


async def test_an_export_is_the_registry() -> None:
    async with open_registry("memory://") as source, open_registry("memory://") as copy:
        await source.update_config(None, ConfigUpdate(compatibility="NONE"))
        await source.register("z", request(record("Inner", "a")))
        await source.register("a", request(INT))
        await source.register("a", request(LONG))
        await source.register(":.c:b", request(STRING))
        await source.delete_version("a", 1)
        await source.update_mode("a", "READONLY")
        lines = list(source.export_lines())
        assert await copy.import_lines(lines) == 4
        assert await copy.import_lines(lines) == 0, "twice is as once"
        assert sorted(copy.export_lines()) == sorted(lines)
        assert copy.schema_by_id(1).guid == source.schema_by_id(1).guid
        assert copy.mode("a").mode == "READONLY" and copy.versions("a", deleted=True) == [1, 2]
        assert (await copy.register("new", request('"bytes"'))).id == 4
        only = list(source.export_lines(subject_prefix="a", deleted=False))
        assert len(only) == 2


async def test_an_import_that_would_give_an_id_twice_takes_nothing() -> None:
    async with open_registry("memory://") as source, open_registry("memory://") as copy:
        await source.register("a", request(INT))
        await source.register("b", request(LONG))
        await copy.register("c", request(LONG))
        with refused(422, 42205, "id 1 is 'c' version 1 here"):
            await copy.import_lines(source.export_lines())
        assert copy.subjects() == ["c"]
        with refused(422, 42201, "line 2"):
            await copy.import_lines([b"", b"no json"])


def _line(subject: str, version: int, id: int, schema: str | None, **more: Any) -> str:
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": id, "schema": schema, **more}
    return json.dumps({"key": key, "value": None if schema is None else value})


async def test_an_import_whose_lines_clash_takes_nothing() -> None:
    async with open_registry("memory://") as registry:
        with refused(422, 42205, "gives id 1 two meanings: 'a' version 1, and 'b' version 1"):
            await registry.import_lines([_line("a", 1, 1, INT), _line("b", 1, 1, STRING)])
        assert registry.is_ready and registry.subjects(deleted=True) == []
        assert (await registry.register("c", request(LONG))).id == 1


async def test_of_a_topics_dump_the_last_line_of_a_key_counts() -> None:
    async with open_registry("memory://") as registry:
        gone = [_line("a", 1, 1, INT), _line("a", 1, 1, None)]
        assert await registry.import_lines([*gone, _line("b", 1, 1, STRING), _line("c", 1, 2, LONG)]) == 2
        again = [_line("d", 1, 3, INT, deleted=False), _line("d", 1, 3, INT, deleted=True)]
        assert await registry.import_lines(again) == 1
        assert registry.subjects() == ["b", "c"] and registry.subjects(deleted=True) == ["b", "c", "d"]


@pytest.mark.parametrize(
    "line",
    [
        _line("a", 0, 1, INT),
        _line("a", 1 << 31, 1, INT),
        _line("a", 1, -1, INT),
        _line("a", 1, 1 << 31, INT),
        '{"key":{"keytype":"NOOP","magic":0,"for":"ids"},"value":{"maxIds":{".":99999999999}}}',
        '{"key":{"keytype":"MODE","magic":0},"value":{"mode":"NONE"}}',
        '{"key":{"keytype":"CONFIG","magic":0},"value":{"compatibilityLevel":"SOME"}}',
        '{"key":' + "[" * 100_000,
    ],
)
async def test_an_import_takes_no_record_that_no_registry_writes(line: str) -> None:
    async with open_registry("memory://") as registry:
        with refused(422, 42201, "line 1 of the export"):
            await registry.import_lines([line])


# as serdes ask -------------------------------------------------------------------------------------------------------


async def test_the_client_for_threads(url: str) -> None:
    async with open_registry(url) as registry, open_registry(url) as other:
        client: SchemaClient = registry.client()
        assert isinstance(client, SchemaClient)
        there = await other.register("elsewhere", request(STRING))

        def work() -> None:
            assert client.by_id(there.id).text == SchemaText(STRING), "written by another registry a moment ago"
            first = client.register("a", SchemaText(INT))
            assert client.by_id(first.id) is client.known(first.id)
            assert client.by_guid(first.guid or "").text == first.text == client.latest("a").text
            assert client.lookup("a", SchemaText(INT)).version == client.version("a", 1).version == 1
            assert client.by_id(first.id, "a").subject == "a"
            assert not client.is_compatible("a", SchemaText(STRING)).is_compatible
            with refused(404, 40403):
                client.by_id(99)
            client.close()

        assert client.known(99) is None
        await anyio.to_thread.run_sync(work)


@pytest.mark.system
async def test_reading_costs_no_garbage() -> None:
    """An id that is known is one look-up: the same object, until something changes."""
    async with open_registry("memory://") as registry:
        await registry.register("a", request(INT))
        known = registry.schema_by_id(1)
        gc.collect()
        assert registry.schema_by_id(1) is known
        await registry.register("b", request(LONG))
        assert registry.schema_by_id(1) == known
