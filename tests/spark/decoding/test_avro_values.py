"""Schemas of a registry to the columns of a table: versions, changes, and a registry that does not answer."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from eventbus import EventBus
from eventbus.errors import ConfigError, SchemaUnavailable, SerializationError
from schema_registry import Registry
from schema_registry.client import RegistryClient
from schema_registry.entities import SchemaRequest
from serdes.avro.codec.varint import long_bytes
from serdes.errors import SchemaRegistryError
from serdes.registry import Compatibility, Reference, RegisteredSchema, SchemaText
from spark_sinks.decoding.choose import open_values
from spark_sinks.decoding.values import Decoded, RowPlan, Values, ValueSettings
from tests.spark.decoding.batches import source_batch

pytestmark = pytest.mark.system

COORDINATES = ("_key", "_topic", "_partition", "_offset", "_timestamp")
INT, LONG, TEXT = pa.int32(), pa.int64(), pa.string()


def record(**fields: Any) -> str:
    members = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "R", "fields": members})


class Memory:
    """A registry in memory. ``down`` makes it answer nothing."""

    def __init__(self) -> None:
        self.by_ids: dict[int, RegisteredSchema] = {}
        self.down = False
        self.asked = 0

    def add(
        self, text: str, *, subject: str = "t-value", kind: str = "AVRO", references: tuple[Reference, ...] = ()
    ) -> int:
        schema_id = len(self.by_ids) + 1
        version = sum(one.subject == subject for one in self.by_ids.values()) + 1
        schema = SchemaText(text, kind, references)
        self.by_ids[schema_id] = RegisteredSchema(schema_id, None, schema, subject, version)
        return schema_id

    def _answer(self, choose: Callable[[RegisteredSchema], bool]) -> RegisteredSchema:
        self.asked += 1
        if self.down:
            raise SchemaRegistryError("nobody answers")
        found = [one for one in self.by_ids.values() if choose(one)]
        if not found:
            raise SchemaRegistryError("Schema not found", status=404, error_code=40403)
        return found[-1]

    def known(self, schema_id: int, subject: str | None = None) -> RegisteredSchema | None:
        return None

    def by_id(self, schema_id: int, subject: str | None = None) -> RegisteredSchema:
        return self._answer(lambda one: one.id == schema_id)

    def by_guid(self, guid: str) -> RegisteredSchema:
        return self._answer(lambda one: one.guid == guid)

    def register(self, subject: str, text: SchemaText, *, normalize: bool = False) -> RegisteredSchema:
        raise AssertionError("a landing registers nothing")

    def lookup(
        self, subject: str, text: SchemaText, *, normalize: bool = False, deleted: bool = False
    ) -> RegisteredSchema:
        return self._answer(lambda one: one.text == text)

    def latest(self, subject: str) -> RegisteredSchema:
        return self._answer(lambda one: one.subject == subject)

    def version(self, subject: str, version: int, *, deleted: bool = False) -> RegisteredSchema:
        return self._answer(lambda one: (one.subject, one.version) == (subject, version))

    def is_compatible(self, subject: str, text: SchemaText, version: int | str = "latest") -> Compatibility:
        return Compatibility(True)

    def close(self) -> None: ...


def opened(registry: Memory, **settings: Any) -> Values:
    return open_values(ValueSettings("t", registry=registry, **settings), url="kafka://nowhere")


def payload(plan: RowPlan) -> list[tuple[str, Any]]:
    return [(field.name, field.type) for field in plan.columns if field.name not in COORDINATES]


def decoded(plan: RowPlan, *values: tuple[int, bytes] | None) -> Decoded:
    data = [None if each is None else b"\0" + each[0].to_bytes(4, "big") + each[1] for each in values]
    found = pickle.loads(pickle.dumps(plan)).decoder().rows(source_batch(data))
    assert found.rows.schema == plan.columns
    return found


def cells(found: Decoded) -> list[dict[str, Any]]:
    return [{name: cell for name, cell in row.items() if name not in COORDINATES} for row in found.rows.to_pylist()]


def test_versions_in_one_batch_come_out_in_order_in_the_columns_of_all() -> None:
    registry = Memory()
    first = registry.add(record(a="int", price="float", gone="string"))
    second = registry.add(record(new=["null", "string"], price="double", a="long"))
    values = opened(registry, tombstones=True)
    plan = values.plan(None)
    names = [("a", LONG), ("price", pa.float64()), ("gone", TEXT), ("new", TEXT), ("_tombstone", pa.bool_())]
    assert payload(plan) == names
    old = long_bytes(1) + b"\0\0\x80\x3f" + b"\x02x"
    new = b"\x02\x02y" + b"\0" * 6 + b"\xf0\x3f" + long_bytes(1 << 40)
    found = decoded(plan, (second, new), (first, old), None, (second, new), (first, old))
    row_1 = {"a": 1, "price": 1.0, "gone": "x", "new": None, "_tombstone": False}
    row_2 = {"a": 1 << 40, "price": 1.0, "gone": None, "new": "y", "_tombstone": False}
    assert cells(found) == [row_2, row_1, {**dict.fromkeys(row_1), "_tombstone": True}, row_2, row_1]
    assert found.rejected is None
    assert found.rows.column("_offset").to_pylist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("table", [None, pa.schema([("name", TEXT)])])
def test_a_field_that_was_renamed_with_an_alias_keeps_its_column(table: pa.Schema | None) -> None:
    registry = Memory()
    first = registry.add(record(name="string"))
    renamed = {"name": "title", "type": "string", "aliases": ["name"]}
    second = registry.add(json.dumps({"type": "record", "name": "R", "fields": [renamed]}))
    third = registry.add(
        json.dumps({"type": "record", "name": "R", "fields": [renamed, {"name": "name", "type": "int"}]})
    )
    values = opened(registry, on_incompatible="new_column")
    plan = values.plan(table)
    found = decoded(plan, (first, b"\2a"), (second, b"\2b"), (third, b"\2c\4"))
    own = {"name": None, "title": None, "name__int": None}
    assert cells(found) == [{**own, "name": "a"}, {**own, "name": "b"}, {**own, "title": "c", "name__int": 2}]


def test_a_batch_of_nothing_and_a_topic_without_schemas() -> None:
    values = opened(Memory())
    plan = values.plan(None)
    assert payload(plan) == []
    assert decoded(plan).rows.num_rows == 0
    found = decoded(plan, None, (7, b""))
    assert (found.rows.num_rows, found.unknown) == (1, {7})


def test_ids_that_tasks_met_are_learned_or_refused() -> None:
    registry = Memory()
    values = opened(registry)
    elsewhere = registry.add(record(a="int"), subject="com.example.R")
    plan = values.plan(None)
    assert decoded(plan, (elsewhere, b"\2"), (99, b"\2")).unknown == {elsewhere, 99}
    values.learn({99, elsewhere})
    plan = values.plan(None)
    assert payload(plan) == [("a", INT)]
    found = decoded(plan, (elsewhere, b"\2"), (99, b"\2"))
    assert (cells(found), found.unknown) == ([{"a": 1}], frozenset())
    assert found.rejected is not None
    (refused,) = found.rejected.to_pylist()
    assert (refused["schema_id"], refused["error"]) == (
        99,
        "schema id 99: the registry does not know it: Schema not found",
    )


@pytest.mark.parametrize("subject", ["t-value", "com.example.R"])
def test_an_id_that_was_unknown_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, subject: str) -> None:
    """A damaged record named it before anyone had registered it, and the landing goes on for weeks."""
    clock = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    registry = Memory()
    values = opened(registry)
    values.plan(None)
    values.learn({1})
    assert decoded(values.plan(None), (1, b"\2")).rejected is not None
    assert registry.add(record(a="int"), subject=subject) == 1
    if subject != "t-value":  # only tasks know that it is of this topic: they say so again
        assert decoded(values.plan(None), (1, b"\2")).rejected is not None
        clock += 10
        assert decoded(values.plan(None), (1, b"\2")).unknown == {1}
        values.learn({1})
    found = decoded(values.plan(None), (1, b"\2"))
    assert (cells(found), found.rejected) == ([{"a": 1}], None)


def test_an_id_that_none_can_be_is_not_asked_for() -> None:
    registry = Memory()
    values = opened(registry)
    values.plan(None)
    registry.down = True
    values.learn({0xFFFFFFFF, 1 << 31})
    registry.down = False
    found = decoded(values.plan(None), (0xFFFFFFFF, b""))
    assert found.rejected is not None
    assert "a schema id has at most 31 bits" in found.rejected.column("error")[0].as_py()


def test_schemas_that_are_no_avro_are_refused_in_words() -> None:
    registry = Memory()
    proto = registry.add('syntax = "proto3";', kind="PROTOBUF")
    broken = registry.add('{"type": "nonsense"}')
    good = registry.add(record(a="int"))
    plan = opened(registry).plan(None)
    assert payload(plan) == [("a", INT)]
    found = decoded(plan, (proto, b"\0"), (broken, b"\0"), (good, b"\2"))
    assert found.rejected is not None
    first, second = found.rejected.column("error").to_pylist()
    assert f"schema {proto} is PROTOBUF, not Avro" in first
    assert "is not an Avro schema" in second


def test_a_schema_with_a_rule_that_nothing_executes_is_refused_in_words() -> None:
    registry = Memory()
    schema_id = registry.add(record(a="int"))
    rules = {"domainRules": [{"name": "enc", "type": "ENCRYPT", "mode": "WRITEREAD"}]}
    found = registry.by_ids[schema_id]
    text = msgspec.structs.replace(found.text, rule_set=rules)
    registry.by_ids[schema_id] = msgspec.structs.replace(found, text=text)
    (refused,) = decoded(opened(registry).plan(None), (schema_id, b"\2")).rejected.to_pylist()
    assert "Rule 'enc' of type ENCRYPT cannot be executed" in refused["error"]


def test_named_types_of_other_subjects_travel_with_the_plan() -> None:
    registry = Memory()
    registry.add('{"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}', subject="colours")
    schema_id = registry.add(record(c="Colour"), references=(Reference("Colour", "colours", 1),))
    assert cells(decoded(opened(registry).plan(None), (schema_id, b"\2"))) == [{"c": "BLUE"}]


def test_the_columns_of_the_table_come_first_and_stay() -> None:
    registry = Memory()
    schema_id = registry.add(record(a="int", b={"type": "long", "logicalType": "timestamp-micros"}))
    table = pa.schema([("old", pa.large_string()), ("b", pa.timestamp("ms", "UTC")), ("a", pa.int64())])
    plan = opened(registry).plan(table)
    assert payload(plan) == [("old", pa.large_string()), ("b", pa.timestamp("ms", "UTC")), ("a", LONG)]
    (row,) = cells(decoded(plan, (schema_id, b"\2" + long_bytes(5_000))))
    assert (row["old"], row["a"], row["b"].timestamp()) == (None, 1, 0.005)
    assert payload(opened(registry).plan(plan.columns)) == payload(plan)


def test_a_table_of_bytes_is_refused() -> None:
    registry = Memory()
    registry.add(record(a="int"))
    with pytest.raises(ConfigError, match="made with value='bytes'"):
        opened(registry).plan(pa.schema([("key", pa.binary()), ("value", pa.binary())]))


TABLE = pa.schema([("amount", pa.float64())])


def test_an_incompatible_version_fails_once_a_record_of_it_is_met() -> None:
    registry = Memory()
    good, bad = registry.add(record(amount="double")), registry.add(record(amount="string", more="int"))
    values = opened(registry)
    plan = values.plan(TABLE)
    assert payload(plan) == [("amount", pa.float64())]
    found = decoded(plan, (good, bytes(8)), (bad, b"\2x\2"))
    assert (cells(found), found.unknown) == ([{"amount": 0.0}], {bad})
    values.learn(found.unknown)
    with pytest.raises(
        SerializationError, match="field amount: the column amount is double, and the schema says strin"
    ):
        values.plan(TABLE)


def test_an_incompatible_version_that_nobody_writes_any_more_does_no_harm() -> None:
    registry = Memory()
    registry.add(record(amount="double"))
    new = registry.add(record(amount="string"))
    values = opened(registry)
    found = decoded(values.plan(None), (new, b"\2x"))
    values.learn(found.unknown)
    plan = values.plan(None)
    assert payload(plan) == [("amount", TEXT)]
    assert cells(decoded(plan, (new, b"\2x"))) == [{"amount": "x"}]


def test_an_incompatible_version_may_go_into_the_quarantine() -> None:
    registry = Memory()
    good, bad = registry.add(record(amount="double")), registry.add(record(amount="string"))
    values = opened(registry, on_incompatible="quarantine")
    values.learn({bad})
    found = decoded(values.plan(TABLE), (bad, b"\2x"), (good, bytes(8)))
    assert cells(found) == [{"amount": 0.0}]
    assert found.rejected is not None
    assert found.rejected.column("error").to_pylist() == [
        "schema id 2: it does not fit the table: field amount: the column amount is double, and the schema says string"
    ]


def test_an_incompatible_field_may_get_a_column_of_its_own() -> None:
    registry = Memory()
    good, bad = registry.add(record(amount="double")), registry.add(record(amount="string"))
    plan = opened(registry, on_incompatible="new_column").plan(TABLE)
    assert payload(plan) == [("amount", pa.float64()), ("amount__string", TEXT)]
    assert cells(decoded(plan, (bad, b"\2x"), (good, bytes(8)))) == [
        {"amount": None, "amount__string": "x"},
        {"amount": 0.0, "amount__string": None},
    ]


def test_what_the_way_to_the_table_has_no_type_for_becomes_something_else() -> None:
    registry = Memory()
    time, nanos = {"type": "long", "logicalType": "time-micros"}, {"type": "long", "logicalType": "timestamp-nanos"}
    inner = {"type": "record", "name": "I", "fields": [{"name": "at", "type": nanos}]}
    schema_id = registry.add(
        record(t=time, n=nanos, l={"type": "array", "items": time}, m={"type": "map", "values": inner})
    )
    values = opened(registry, lacks=frozenset({"time", "nanos"}))
    plan = values.plan(None)
    micros = pa.timestamp("us", "UTC")
    assert payload(plan) == [
        ("t", LONG),
        ("n", micros),
        ("l", pa.list_(pa.field("element", LONG))),
        ("m", pa.map_(TEXT, pa.struct([("at", micros)]))),
    ]
    data = long_bytes(5) + long_bytes(7_999) + b"\2\4\0" + b"\2\2k" + long_bytes(1_000) + b"\0"
    (row,) = cells(decoded(plan, (schema_id, data)))
    assert (row["t"], row["n"].microsecond, row["l"], row["m"][0][1]["at"].microsecond) == (5, 7, [2], 1)
    assert payload(values.plan(plan.columns)) == payload(plan)
    without_nanos = opened(registry, lacks=frozenset({"nanos"})).plan(None)
    assert payload(without_nanos)[:2] == [("t", pa.time64("us")), ("n", micros)]


def test_fields_with_the_names_of_the_table_s_own_columns_are_moved_aside() -> None:
    registry = Memory()
    schema_id = registry.add(record(_offset="int", dt="string", _key="int"))
    plan = opened(registry).plan(None)
    assert plan.columns.names == ["_offset__value", "dt__value", "_key__value", *COORDINATES]
    assert cells(decoded(plan, (schema_id, b"\2\2x\4"))) == [{"_offset__value": 1, "dt__value": "x", "_key__value": 2}]


def test_a_registry_that_is_down_is_no_reason_to_refuse_records() -> None:
    registry = Memory()
    registry.add(record(a="int"))
    values = opened(registry)
    registry.down = True
    with pytest.raises(SchemaUnavailable, match="nobody answers"):
        values.plan(None)
    with pytest.raises(SchemaUnavailable):
        values.learn({5})
    registry.down = False
    values.learn({5})
    assert payload(values.plan(None)) == [("a", INT)]


def test_a_registry_that_nobody_runs_is_unavailable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        client = RegistryClient(f"http://127.0.0.1:{free.getsockname()[1]}", timeout=0.2)
        values = open_values(ValueSettings("t", registry=client), url="kafka://x")
        with pytest.raises(SchemaUnavailable, match="did not answer"):
            values.plan(None)
    values.close()


def test_versions_are_asked_for_once() -> None:
    registry = Memory()
    for number in range(5):
        registry.add(record(**{f"f{number}": "int"}))
    values = opened(registry)
    values.plan(None)
    asked = registry.asked
    values.plan(None)
    assert registry.asked == asked + 1


class Flight(msgspec.Struct):
    number: str
    seats: int


async def test_a_log_with_a_registry_of_its_own_is_read_by_it(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    async with EventBus(url) as bus, Registry(bus) as registry:
        found = await registry.register("flights-value", SchemaRequest(schema=record(seats="int")))
        await registry.register("other-value", SchemaRequest(schema='{"type": "object"}', schema_type="JSON"))
    data = (found.id, b"\x14")
    for settings in (
        ValueSettings("flights"), ValueSettings("flights", registry="log"), ValueSettings("flights", value="avro"),
    ):  # fmt: skip
        for where in (url, str(tmp_path)):
            assert cells(decoded(open_values(settings, url=where).plan(None), data)) == [{"seats": 10}]
    for topic in ("other", "unknown"):
        assert open_values(ValueSettings(topic), url=url).plan(None).columns.names[:2] == ["key", "value"]
    assert open_values(ValueSettings("flights", value="bytes"), url=url).plan(None).columns.names[0] == "key"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value": "avro"}, "needs the schema registry"),
        ({"registry": "log"}, "this log is on a cluster"),
        ({"registry": "gopher://x"}, "nothing opens 'gopher'"),
        ({"registry": "file:///no/such/log"}, "there is no log"),
        ({"value": "avro", "registry": "http://x", "schema": Flight}, "schema= is of JSON values"),
    ],
)
def test_a_registry_that_cannot_be_opened_is_told(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_values(ValueSettings("t", **settings), url="kafka://host:9092")
