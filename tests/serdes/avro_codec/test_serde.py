"""`Avro` alone: subjects, modes, framing, what it asks a registry for and when, and how errors read."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any

import msgspec
import pytest

from serdes import Avro, SchemaRegistryError, Str, serde_for
from serdes.avro import AvroDataError
from serdes.avro.from_types import schema_of
from serdes.avro.text import to_text
from serdes.base import SchemaNeeded, for_keys
from serdes.choose import Others, serde_of_values
from serdes.registry import RegisteredSchema, SchemaText, schema_client
from tests.serdes.avro_codec.fake_registry import FakeRegistry, guid_of


class Flight(msgspec.Struct):
    number: str
    seats: int = 0


class Baggage(msgspec.Struct):
    tag: int


FLIGHT = Flight("BA1", 180)


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("topic_name", "flights-value"),
        ("record_name", "Flight"),
        ("topic_record_name", "flights-Flight"),
        (lambda topic, is_key, record: f"{topic}.{record}.{is_key}", "flights.Flight.False"),
    ],
)
def test_subjects(registry: FakeRegistry, subject: Any, expected: str) -> None:
    Avro(registry, Flight, subject=subject).serialize("flights", FLIGHT)
    assert list(registry.subjects) == [expected]


def test_a_subject_that_is_none_is_refused(registry: FakeRegistry) -> None:
    with pytest.raises(ValueError, match="subject='topic': one of topic_name, record_name, topic_record_name"):
        Avro(registry, subject="topic")


def test_a_schema_is_registered_once(registry: FakeRegistry) -> None:
    avro = Avro(registry, Flight, normalize=True)
    for _ in range(3):
        assert avro.deserialize("flights", avro.serialize("flights", FLIGHT)) == FLIGHT
    assert registry.calls == ["register flights-value normalized"]


def test_without_auto_register_it_is_looked_up(registry: FakeRegistry) -> None:
    avro = Avro(registry, Flight, auto_register=False)
    with pytest.raises(SchemaRegistryError, match="Subject 'flights-value' not found"):
        avro.serialize("flights", FLIGHT)
    registry.add(to_text(schema_of(Flight)), "flights-value")
    assert avro.serialize("flights", FLIGHT) == b"\0\0\0\0\1\x06BA1\xe8\x02"


def test_the_latest_schema_is_written_where_it_is_asked_for(registry: FakeRegistry) -> None:
    text = (
        '{"type":"record","name":"Flight","fields":['
        '{"name":"number","type":"string"},{"name":"gate","type":"string","default":"A1"}]}'
    )
    registry.add(text, "flights-value")
    avro = Avro(registry, Flight, use_latest=True)
    assert avro.serialize("flights", FLIGHT) == b"\0\0\0\0\1\x06BA1\x04A1"
    assert Avro(registry, use_latest=True).serialize("flights", {"number": "x"}) == b"\0\0\0\0\1\x02x\x04A1"
    assert avro.deserialize("flights", b"\0\0\0\0\1\x06BA1\x04A1") == Flight("BA1", 0)


def test_nulls_stay_nulls(registry: FakeRegistry) -> None:
    avro = Avro(registry, Flight, id_in="header")
    assert avro.serialize("t", None) is None
    assert avro.serialize_with_headers("t", None, [("a", b"b")]) == (None, (("a", b"b"),))
    assert avro.deserialize("t", None, [("__value_schema_id", b"\1" * 17)]) is None
    assert registry.calls == []


def test_the_guid_goes_into_a_header_and_is_read_from_there_or_from_the_front(registry: FakeRegistry) -> None:
    avro = Avro(registry, Flight, id_in="header")
    data, headers = avro.serialize_with_headers("t", FLIGHT)
    name = b"\1" + bytes.fromhex(guid_of(1).replace("-", ""))
    assert (data, headers) == (b"\x06BA1\xe8\x02", (("__value_schema_id", name),))
    other = Avro(registry, Flight)
    assert other.deserialize("t", data, headers) == FLIGHT
    assert other.deserialize("t", name + (data or b"")) == FLIGHT
    assert other.deserialize("t", data, [("__value_schema_id", b"\0\0\0\0\1")]) == FLIGHT
    assert other.deserialize("t", b"\0\0\0\0\1" + (data or b""), [("__key_schema_id", b"\0\0\0\0\7")]) == FLIGHT
    key = Avro(registry, str, id_in="header", is_key=True)
    assert key.serialize_with_headers("t", "k")[1][0][0] == "__key_schema_id"


def test_a_registry_without_guids_is_said() -> None:
    class Old(FakeRegistry):
        def register(self, subject: str, text: SchemaText, *, normalize: bool = False) -> RegisteredSchema:
            return RegisteredSchema(1, None, text)

    with pytest.raises(SchemaRegistryError, match=r"gives no GUID .* use id_in='prefix'"):
        Avro(Old(), Flight, id_in="header").serialize_with_headers("t", FLIGHT)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the message is empty"),
        (b"\0\0\0", "too short for a schema id"),
        (b"\1" + b"\0" * 15, "too short for a schema GUID"),
        (b'{"a": 1}', "begins with the byte 0x7b, not with a schema id"),
        (b"\0\0\0\0\x63\x02x", "schema id 99 (subject flights-value): Schema 99 not found"),
        (b"\0\0\0\0\1\x06BA1", "schema id 1 (subject flights-value): field seats: the message ends before"),
        (b"\0\0\0\0\1\x06BA1\0\0", "schema id 1 (subject flights-value): 1 bytes are left after the value"),
        (b"\0\0\0\0\2\0", "schema id 2 (subject flights-value): Baggage was written without the field 'number'"),
        (b"\0\0\0\0\3\0", "schema 3 is JSON, not Avro"),
        (b"\0\0\0\0\4\0", "schema 4 of the registry is not an Avro schema"),
    ],
)
def test_an_error_names_schema_subject_and_field(registry: FakeRegistry, data: bytes, said: str) -> None:
    avro = Avro(registry, Flight)
    registry.add(to_text(schema_of(Flight)))
    registry.add(to_text(schema_of(Baggage)))
    registry.schemas[3] = SchemaText("{}", "JSON")
    registry.schemas[4] = SchemaText("{")
    for _ in range(2):  # the second time from the cache
        with pytest.raises(ValueError, match=".") as raised:  # noqa: RUF043 - any text: it is looked at below
            avro.deserialize("flights", data)
        assert said in str(raised.value)


def test_a_value_that_cannot_be_written_names_schema_subject_and_field(registry: FakeRegistry) -> None:
    avro = Avro(registry, Flight)
    avro.serialize("flights", FLIGHT)
    wrong: Any = 7
    with pytest.raises(AvroDataError) as raised:
        avro.serialize("flights", Flight(wrong))
    assert str(raised.value) == "schema id 1 (subject flights-value): field number: 7 is int, not str"


def test_an_unknown_id_is_not_asked_for_again_at_once(registry: FakeRegistry) -> None:
    avro = Avro(registry, Flight)
    data = b"\0\0\0\0\x63\0"
    for _ in range(5):
        with pytest.raises(AvroDataError):
            avro.deserialize("flights", data)
        assert avro.needed("flights", [data]) is None
    assert registry.calls == ["by_id 99"]


def test_an_unknown_id_is_asked_for_again_later(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    avro = Avro(registry, Flight)
    with pytest.raises(AvroDataError):
        avro.deserialize("flights", b"\0\0\0\0\1\x02x\0")
    registry.add(to_text(schema_of(Flight)))
    with pytest.raises(AvroDataError):
        avro.deserialize("flights", b"\0\0\0\0\1\x02x\0")
    monkeypatch.setattr("serdes.avro.catalog._ASK_AGAIN_SECONDS", 0)
    assert avro.deserialize("flights", b"\0\0\0\0\1\x02x\0") == Flight("x", 0)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
@pytest.mark.parametrize("headers", [(), [("a", b"1")]])
def test_other_kinds_of_bytes(registry: FakeRegistry, kind: Any, headers: Any) -> None:
    avro = Avro(registry, Flight)
    data = avro.serialize("flights", FLIGHT)
    assert avro.deserialize("flights", kind(data), headers) == FLIGHT


def test_ids_count_in_each_context(registry: FakeRegistry) -> None:
    """The same id is of one schema in ``:.a:`` and of another in ``:.b:``."""
    texts = {":.a:": to_text(schema_of(Flight)), ":.b:": to_text(schema_of(Baggage)), ":.:": '"string"'}

    class InContexts(FakeRegistry):
        def known(self, schema_id: int, subject: str | None = None) -> RegisteredSchema | None:
            return None

        def by_id(self, schema_id: int, subject: str | None = None) -> RegisteredSchema:
            assert subject is not None
            return RegisteredSchema(schema_id, None, SchemaText(texts[subject[: subject.index(":", 1) + 1]]), subject)

        def latest(self, subject: str) -> RegisteredSchema:
            return self.by_id(1, subject)

    avro = Avro(InContexts(), subject=lambda topic, is_key, record: f":.{topic}:subject")
    assert avro.deserialize("a", b"\0\0\0\0\1\x02x\0") == {"number": "x", "seats": 0}
    assert avro.deserialize("b", b"\0\0\0\0\1\x02") == {"tag": 1}
    assert avro.deserialize("", b"\0\0\0\0\1\x02x") == "x"
    typed = Avro(InContexts(), Baggage, subject=lambda topic, is_key, record: f":.{topic}:subject", use_latest=True)
    assert typed.serialize("b", Baggage(1)) == b"\0\0\0\0\1\x02"
    with pytest.raises(TypeError, match="Baggage lacks the field"):
        typed.serialize("a", Baggage(1))


def test_what_cannot_be_held_does_not_hide_what_can(registry: FakeRegistry) -> None:
    """A schema that does not fit the annotation is needed no more: the next one is asked for."""
    registry.add('"string"')
    registry.add(to_text(schema_of(Flight)))
    avro = Avro(registry, dict)
    values = [b"\0\0\0\0\1\x02x", b"\0\0\0\0\2\x02x\0"]
    while (needed := avro.needed("t", values)) is not None:
        needed.fetch()
    assert registry.calls == ["by_id 1", "by_id 2"]
    for _ in range(2):
        with pytest.raises(
            AvroDataError, match=r"schema id 1 \(subject t-value\): Avro's string cannot be read as dict"
        ):
            avro.decoder("t")(values[0])
    assert avro.decoder("t")(values[1]) == {"number": "x", "seats": 0}


def test_decoding_never_asks_by_itself(registry: FakeRegistry) -> None:
    registry.add(to_text(schema_of(Flight)))
    avro = Avro(registry, Flight)
    decode = avro.decoder("t")
    data = b"\0\0\0\0\1\x02x\0"
    with pytest.raises(SchemaNeeded) as needed:
        decode(data)
    assert registry.calls == []
    needed.value.fetch()
    assert decode(data) == Flight("x", 0)
    assert registry.calls == ["by_id 1"]


def test_what_is_needed_for_many_messages(registry: FakeRegistry) -> None:
    for kind in (Flight, Baggage):
        registry.add(to_text(schema_of(kind)))
    avro = Avro(registry)
    one, two = b"\0\0\0\0\1\x02x\0", b"\0\0\0\0\2\0"
    by_guid = b"\1" + bytes.fromhex(guid_of(1).replace("-", "")) + b"\x02x\0"
    values = [None, one, b"", b"junk", one, b"\1short", two, by_guid]
    fetched: list[str] = []
    while (needed := avro.needed("t", values)) is not None:
        needed.fetch()
        fetched.append(str(needed))
    assert len(fetched) == 3
    assert [avro.decoder("t")(data) for data in (one, two, by_guid)] == [
        {"number": "x", "seats": 0}, {"tag": 0}, {"number": "x", "seats": 0},
    ]  # fmt: skip


def test_a_registry_that_is_down_is_asked_again(registry: FakeRegistry) -> None:
    registry.add(to_text(schema_of(Flight)))
    avro = Avro(registry, Flight)
    registry.down = True
    with pytest.raises(SchemaRegistryError) as raised:
        avro.deserialize("t", b"\0\0\0\0\1\x02x\0")
    assert raised.value.is_retriable
    registry.down = False
    assert avro.deserialize("t", b"\0\0\0\0\1\x02x\0") == Flight("x", 0)


def test_references_are_fetched_with_a_schema(registry: FakeRegistry) -> None:
    from serdes.registry import Reference

    city = '{"type":"record","name":"City","namespace":"geo","fields":[{"name":"name","type":"string"}]}'
    trip = '{"type":"record","name":"Trip","fields":[{"name":"to","type":"geo.City"}]}'
    registry.add(city, "cities")
    registry.schemas[2] = SchemaText(trip, references=(Reference("geo.City", "cities", 1),))
    assert Avro(registry).deserialize("t", b"\0\0\0\0\2\x06Rom") == {"to": {"name": "Rom"}}
    assert registry.calls == ["by_id 2", "version cities 1"]


def test_records_of_several_types_in_one_topic(registry: FakeRegistry) -> None:
    avro = Avro(registry, subject="record_name")
    data = [avro.serialize("events", one) for one in (FLIGHT, Baggage(7))]
    assert list(registry.subjects) == ["Flight", "Baggage"]
    both = avro.of(Flight | Baggage)
    assert [both.deserialize("events", one) for one in data] == [FLIGHT, Baggage(7)]
    with pytest.raises(AvroDataError, match="a union without it"):
        avro.of(Baggage | str).deserialize("events", data[0])


def test_plain_values_need_a_schema(registry: FakeRegistry) -> None:
    with pytest.raises(TypeError, match=r"it has no schema to write with: give schema=\.\.\., or use_latest=True"):
        Avro(registry).serialize("t", {"a": 1})


def test_preparing_checks_what_is_there(registry: FakeRegistry) -> None:
    avro = Avro(registry, Flight)
    avro.prepare("flights", writes=False)  # nothing was written yet
    registry.add(to_text(schema_of(Baggage)), "flights-value")
    with pytest.raises(TypeError, match=r"the latest schema of flights-value \(version 1\) cannot be read.*'number'"):
        avro.prepare("flights", writes=False)
    avro.prepare("others", writes=True)
    assert list(registry.subjects) == ["flights-value", "others-value"]


def test_annotations_choose_it(registry: FakeRegistry) -> None:
    avro = Avro(registry)
    assert serde_for(Annotated[Flight, avro]) is avro.of(Flight)
    assert serde_for(Flight | None, {Flight: avro}) is avro.of(Flight)
    assert serde_for(Flight | Baggage, {Flight: avro, Baggage: avro}) is avro.of(Flight | Baggage)
    with pytest.raises(TypeError, match="no single format carries the union"):
        serde_for(Flight | str, {Flight: avro})
    assert serde_for(Flight, {Others: avro}) is avro.of(Flight)
    assert serde_for(str, {Others: avro}) is Str
    assert serde_for(Any, {Others: avro}) is avro
    assert serde_of_values(Flight, {Others: avro}) is avro.of(Flight)
    assert for_keys(avro.of(Flight)) is avro.for_keys().of(Flight)
    assert for_keys(Str) is Str


def test_registries_are_found_by_what_their_name_begins_with(registry: FakeRegistry) -> None:
    assert schema_client(registry) is registry
    with pytest.raises(ValueError, match=r"registry='gopher://x': nothing opens 'gopher' \(there is: file, http, "):
        Avro("gopher://x")
    with pytest.raises(ValueError, match="id_in='body'"):
        Avro(registry, id_in="body")


@pytest.mark.system
def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, eventbus, serdes\n"
        "heavy = {'fastavro', 'urllib3', 'starlette', 'uvicorn', 'jsonschema', 'numpy', 'serdes.avro'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
