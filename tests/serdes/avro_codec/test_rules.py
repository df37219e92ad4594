"""Rules of a schema that would have to be executed: refused before anything is written or read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serdes import Avro, SchemaRegistryError
from serdes.avro.codec.errors import AvroDataError
from serdes.framing import id_prefix
from serdes.registry import SchemaText
from tests.serdes.avro_codec.fake_registry import FakeRegistry


class Person(msgspec.Struct):
    ssn: str


TEXT = '{"type":"record","name":"Person","fields":[{"name":"ssn","type":"string"}]}'
RECORD = id_prefix(1) + b"\x06123"
ENCRYPT = {"name": "enc", "kind": "TRANSFORM", "type": "ENCRYPT", "mode": "WRITEREAD", "onFailure": "ERROR,NONE"}
WRITE = {"name": "cel", "kind": "CONDITION", "type": "CEL", "mode": "WRITE"}
READ = {**WRITE, "mode": "READ"}


def with_rules(rule_set: Any) -> FakeRegistry:
    registry = FakeRegistry()
    registry._add(SchemaText(TEXT, rule_set=rule_set), "people-value")
    return registry


def holding(*domain: dict[str, Any]) -> FakeRegistry:
    return with_rules({"domainRules": list(domain)})


WRITES = [
    {"schema": TEXT, "use_latest": True},
    {"schema": TEXT, "auto_register": False},
    {"schema": TEXT},
    {"type": Person},
]


@pytest.mark.parametrize("settings", WRITES, ids=str)
@pytest.mark.parametrize("rule", [ENCRYPT, WRITE, {**READ, "mode": "WRITEREAD"}], ids=str)
def test_a_rule_for_writing_is_an_error_before_anything_is_written(settings: Any, rule: Any) -> None:
    registry = holding(rule)
    known = registry.schemas[1]
    registry.lookup = registry.register = lambda *_, **__: registry.latest("people-value")  # type: ignore[method-assign]
    expected = f"Rule '{rule['name']}' of type {rule['type']} cannot be executed"
    with pytest.raises(SchemaRegistryError, match=expected) as caught:
        Avro(registry, **settings).serialize("people", Person("123"))
    assert (caught.value.status, caught.value.error_code) == (422, 42210)
    with pytest.raises(SchemaRegistryError, match=expected):
        Avro(registry, Person, use_latest=True).prepare("people", writes=True)
    assert registry.schemas == {1: known}
    assert Avro(registry, **settings, ignore_rules=True).serialize("people", Person("123")) == RECORD


def test_a_rule_for_reading_is_an_error_before_anything_is_read() -> None:
    for registry in (holding(READ), with_rules({"encodingRules": [{**READ, "type": "ENCRYPT_PAYLOAD"}]})):
        for avro in (Avro(registry), Avro(registry, Person)):
            with pytest.raises(AvroDataError, match=r"schema id 1.*cannot be executed.*ignore_rules=True"):
                avro.deserialize("people", RECORD)
        with pytest.raises(SchemaRegistryError, match="cannot be executed"):
            Avro(registry, Person).prepare("people", writes=False)
        assert Avro(registry, Person, ignore_rules=True).deserialize("people", RECORD) == Person("123")


def test_who_may_write_may_still_not_read() -> None:
    avro = Avro(holding(READ), schema=TEXT, use_latest=True)
    assert avro.serialize("people", Person("123")) == RECORD
    with pytest.raises(AvroDataError, match="cannot be executed"):
        avro.deserialize("people", RECORD)


@pytest.mark.parametrize("mode", ["UPGRADE", "DOWNGRADE", "UPDOWN"])
def test_a_migration_is_an_error_for_a_reader_with_a_schema_of_its_own(mode: str) -> None:
    registry = with_rules({"migrationRules": [{**WRITE, "mode": mode, "type": "JSONATA"}]})
    with pytest.raises(SchemaRegistryError, match="type JSONATA cannot be executed"):
        Avro(registry, Person).prepare("people", writes=False)
    assert Avro(registry).deserialize("people", RECORD) == {"ssn": "123"}


@pytest.mark.parametrize(
    "rule_set",
    [
        {"domainRules": [{**ENCRYPT, "onFailure": "NONE"}, {**WRITE, "disabled": True}, {**READ, "onFailure": "NONE"}]},
        {"domainRules": [ENCRYPT, WRITE], "enableAt": "SERVER"},
        {"domainRules": None, "migrationRules": []},
    ],
    ids=str,
)  # fmt: skip
def test_rules_that_do_not_run_or_may_fail_do_no_harm(rule_set: Any) -> None:
    avro = Avro(with_rules(rule_set), Person, use_latest=True)
    avro.prepare("people", writes=False)
    assert avro.deserialize("people", avro.serialize("people", Person("123"))) == Person("123")


def test_the_action_on_failure_is_that_of_the_mode() -> None:
    registry = with_rules({"domainRules": [ENCRYPT]})  # ERROR when writing, NONE when reading
    assert Avro(registry, Person).deserialize("people", RECORD) == Person("123")
    registry = with_rules({"domainRules": [{**ENCRYPT, "onFailure": "NONE,ERROR"}]})
    assert Avro(registry, Person, use_latest=True).serialize("people", Person("123")) == RECORD
    with pytest.raises(AvroDataError, match="cannot be executed"):
        Avro(registry, Person).deserialize("people", RECORD)
