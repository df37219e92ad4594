"""What a change breaks, and for whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eventbus.asyncapi import Change, changes_between, read_document
from eventbus.errors import ConfigError

pytestmark = pytest.mark.system

Json = dict[str, Any]
ORDER: Json = {
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "string"}, "amount": {"type": "integer", "minimum": 1}},
    "required": ["id"],
}


def document(action: str, payload: Any, **message: Any) -> Json:
    said = {"name": "Order", "payload": payload, **message}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "shop", "version": "1"},
        "channels": {"orders": {"address": "orders", "messages": {"Order": said}}},
        "operations": {"one": {"action": action, "channel": {"$ref": "#/channels/orders"}}},
    }


def changed(**properties: Any) -> Json:
    return {**ORDER, "properties": {**ORDER["properties"], **properties}}


def severities(old: Any, new: Any) -> tuple[str, str]:
    """``(where it is sent, where it is received)``, the worst of each."""
    worst: list[str] = []
    for action in ("send", "receive"):
        changes = changes_between(document(action, old), document(action, new))
        worst.append(changes[0].severity if changes else "none")
    return worst[0], worst[1]


WIDER = ("breaking", "compatible")
NARROWER = ("compatible", "breaking")
BOTH = ("breaking", "breaking")
NEITHER = ("info", "info")


@pytest.mark.parametrize(
    ("new", "verdict"),
    [
        (ORDER, ("none", "none")),
        ({**ORDER, "description": "Something."}, ("none", "none")),
        ({**ORDER, "required": ["id", "amount"]}, NARROWER),
        ({**ORDER, "required": []}, WIDER),
        (changed(note={"type": "string"}), NEITHER),
        ({**changed(note={"type": "string"}), "required": ["id", "note"]}, NARROWER),
        ({**ORDER, "properties": {"id": {"type": "string"}}}, NEITHER),
        ({**ORDER, "properties": {"amount": {"type": "integer", "minimum": 1}}, "required": []}, WIDER),
        (changed(id={"type": "integer"}), BOTH),
        (changed(amount={"type": "number", "minimum": 1}), WIDER),
        (changed(amount={"type": "integer", "minimum": 2}), NARROWER),
        (changed(amount={"type": "integer", "minimum": 0}), WIDER),
        (changed(amount={"type": "integer"}), WIDER),
        (changed(id={"type": "string", "maxLength": 3}), NARROWER),
        (changed(id={"type": "string", "pattern": "^a"}), NARROWER),
        (changed(id={"enum": ["a"]}), NARROWER),
        (changed(id={"anyOf": [{"type": "string"}, {"type": "null"}]}), WIDER),
        ({**ORDER, "additionalProperties": False}, NARROWER),
    ],
)
def test_wider_breaks_who_reads_and_narrower_who_sends(new: Json, verdict: tuple[str, str]) -> None:
    assert severities(ORDER, new) == verdict
    mirrored: dict[tuple[str, str], tuple[str, str]] = {WIDER: NARROWER, NARROWER: WIDER}
    if verdict in mirrored and "required" not in str(new.get("properties", {}).get("amount", "required")):
        assert severities(new, ORDER) == mirrored[verdict]


def test_values_come_and_go() -> None:
    assert severities({"enum": ["a", "b"]}, {"enum": ["a", "b", "c"]}) == WIDER
    assert severities({"enum": ["a", "b"]}, {"enum": ["a"]}) == NARROWER
    assert severities({"const": "a"}, {"enum": ["b"]}) == BOTH


def test_the_place_is_told_within_arrays_maps_and_alternatives() -> None:
    def nested(kind: str) -> Json:
        items = {"type": "array", "items": {"type": "object", "properties": {"price": {"type": kind}}}}
        return {"type": "object", "properties": {"lines": {"anyOf": [items, {"type": "null"}]}}}

    (change,) = changes_between(document("send", nested("integer")), document("send", nested("number")))
    assert change.path == "lines[].price" and change.where == "orders Order lines[].price"
    assert change.what == "its type was integer and is number (sent)" and change.whom == "consumers"
    maps: list[Json] = [{"type": "object", "additionalProperties": {"type": kind}} for kind in ("string", "null")]
    (change,) = changes_between(document("receive", maps[0]), document("receive", maps[1]))
    assert change.path == "{}" and change.severity == "breaking"


def test_schemas_that_hold_themselves_end() -> None:
    def tree(kind: str) -> Json:
        node = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}, "x": {"type": kind}}}
        made = document("send", {"$ref": "#/components/schemas/Node"})
        return {**made, "components": {"schemas": {"Node": node}}}

    assert changes_between(tree("string"), tree("string")) == []
    assert [one.path for one in changes_between(tree("string"), tree("boolean"))] == ["x"]


@pytest.mark.parametrize("around", ["anyOf", "items", "allOf"])
def test_schemas_that_hold_themselves_among_alternatives_end(around: str) -> None:
    reference = {"$ref": "#/components/schemas/Node"}
    inner: Json = {
        "anyOf": {"anyOf": [reference, {"type": "null"}]},
        "items": {"type": "array", "items": {"anyOf": [{"type": "null"}, reference]}},
        "allOf": {"allOf": [reference], "minProperties": 1},
    }[around]

    def tree(kind: str) -> Json:
        node = {"type": "object", "properties": {"next": inner, "x": {"type": kind}}}
        return {**document("send", reference), "components": {"schemas": {"Node": node}}}

    assert changes_between(tree("string"), tree("string")) == []
    found = {one.path for one in changes_between(tree("string"), tree("boolean"))}
    assert found == {"next.x" if around == "allOf" else "x"}


def test_channels_senders_and_receivers_that_go() -> None:
    sent = document("send", ORDER)
    gone: Json = {**sent, "channels": {}, "operations": {}}
    assert found(sent, gone) == [("breaking", "orders", "the channel is gone")]
    assert found(gone, sent) == [("compatible", "orders", "a new channel")]
    silent: Json = {**sent, "operations": {}}
    assert found(sent, silent) == [("breaking", "orders", "nothing is sent to it any more")]
    assert found(silent, sent) == [("compatible", "orders", "it is sent to, which is new")]
    two = {**sent, "operations": {**sent["operations"], "two": sent["operations"]["one"]}}
    assert found(two, sent) == [("info", "orders", "operation two is gone; others are left")]
    unused = {**gone, "channels": sent["channels"]}
    assert found(unused, gone) == [("info", "orders", "the channel is gone")]


def found(old: Json, new: Json) -> list[tuple[str, str, str]]:
    return [(one.severity, one.where, one.what) for one in changes_between(old, new)]


@pytest.mark.parametrize(
    ("action", "came", "went"), [("send", "breaking", "compatible"), ("receive", "compatible", "breaking")]
)
def test_messages_that_come_and_go(action: str, came: str, went: str) -> None:
    one = document(action, ORDER)
    two = document(action, ORDER)
    two["channels"]["orders"]["messages"]["Cancelled"] = {"payload": {"type": "object"}}
    assert [(each.severity, each.message) for each in changes_between(one, two)] == [(came, "Cancelled")]
    assert [(each.severity, each.message) for each in changes_between(two, one)] == [(went, "Cancelled")]


def test_keys_formats_and_partitions() -> None:
    keyed = document("send", ORDER, bindings={"kafka": {"key": {"type": "string"}}})
    (change,) = changes_between(keyed, document("send", ORDER))
    assert change.severity == "breaking" and change.path == "(key)"
    numbered = document("send", ORDER, bindings={"kafka": {"key": {"type": "integer"}}})
    assert [one.path for one in changes_between(keyed, numbered)] == ["(key)"]
    (change,) = changes_between(document("send", ORDER), document("send", ORDER, contentType="text/plain"))
    assert change.severity == "breaking" and "it was written as application/json" in change.what
    wider = document("send", ORDER)
    wider["channels"]["orders"]["bindings"] = {"kafka": {"partitions": 6}}
    (change,) = changes_between(document("send", ORDER), wider)
    assert change.severity == "info" and "keys may move" in change.what


def test_replies_are_sent_to_who_asks() -> None:
    def asking(reply: Any) -> Json:
        made = document("receive", ORDER)
        made["channels"]["replies"] = {"address": None, "messages": {"R": {"payload": reply}}}
        if reply is not None:
            made["operations"]["one"]["reply"] = {
                "channel": {"$ref": "#/channels/replies"},
                "messages": [{"$ref": "#/channels/replies/messages/R"}],
            }
        return made

    (change,) = changes_between(asking({"type": "integer"}), asking({"type": "number"}))
    assert (change.severity, change.whom) == ("breaking", "requesters") and change.what.endswith("(replied)")
    (change,) = changes_between(asking({"type": "integer"}), asking(None))
    assert change == Change(
        severity="breaking", channel="orders", what="one does not reply any more", whom="requesters"
    )
    assert changes_between(asking(None), asking({"type": "integer"}))[0].severity == "compatible"


def record(*fields: Json, **more: Any) -> Json:
    return {"type": "record", "name": "Order", "fields": list(fields), **more}


ENUMS = [{"name": at, "type": {"type": "enum", "name": f"{at}.S", "symbols": [at]}} for at in "ab"]
ID, NUMBER = {"name": "id", "type": "string"}, {"name": "number", "type": "int"}


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (record(ID), record(ID), ("none", "none")),
        (record(ID), record(ID, NUMBER), NARROWER),
        (record(ID), record(ID, {**NUMBER, "default": 0}), NEITHER),
        (record(ID, NUMBER), record(ID), WIDER),
        (record(ID, {**NUMBER, "default": 0}), record(ID), NEITHER),
        (record(NUMBER), record({**NUMBER, "type": "long"}), WIDER),
        (record(NUMBER), record({**NUMBER, "type": "string"}), BOTH),
        (record(ID), record({**ID, "type": ["null", "string"]}), WIDER),
        (record(ID), record({"name": "ident", "type": "string", "aliases": ["id"]}), WIDER),
        (record(ID), record(ID, name="Other"), BOTH),
        (record(ID), record(ID, name="Other", aliases=["Order"]), WIDER),
        (
            record({"name": "c", "type": {"type": "enum", "name": "C", "symbols": ["A"]}}),
            record({"name": "c", "type": {"type": "enum", "name": "C", "symbols": ["A", "B"]}}),
            WIDER,
        ),
        (
            record({"name": "c", "type": {"type": "array", "items": "int"}}),
            record({"name": "c", "type": {"type": "array", "items": "long"}}),
            WIDER,
        ),
        (
            record({"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}),
            record({"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}),
            BOTH,
        ),
        (
            record({"name": "next", "type": ["null", "Order"]}, ID),
            record({"name": "next", "type": ["null", "Order"]}, ID, NUMBER),
            NARROWER,
        ),
        (record(*ENUMS, {"name": "z", "type": "a.S"}), record(*ENUMS, {"name": "z", "type": "b.S"}), BOTH),
    ],
)
def test_avro_goes_by_its_own_rules(old: Json, new: Json, verdict: tuple[str, str]) -> None:
    said = "application/vnd.apache.avro;version=1.9.0"
    assert severities({"schemaFormat": said, "schema": old}, {"schemaFormat": said, "schema": new}) == verdict


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "not an AsyncAPI document"),
        ('{"asyncapi": "2.6.0"}', "is AsyncAPI 2.6.0, not 3"),
        ('{"asyncapi": "3.0.0", "channels": []}', "'channels' is not an object"),
    ],
)
def test_what_is_no_document_is_told(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "old.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_document(str(file))


def test_no_file_and_references_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="eventbus docs build"):
        read_document(str(tmp_path / "none.json"))
    bad = document("send", {"$ref": "#/components/schemas/None"})
    with pytest.raises(ConfigError, match="points to nothing"):
        changes_between(bad, json.loads(json.dumps(bad)))
    outside = document("send", {"$ref": "other.json#/Order"})
    with pytest.raises(ConfigError, match="outside of the document"):
        changes_between(outside, outside)
    circle = document("send", {"$ref": "#/channels/orders/messages/Order/payload"})
    with pytest.raises(ConfigError, match="in a circle"):
        changes_between(circle, circle)


def test_a_class_with_another_name_is_the_same_message() -> None:
    renamed = document("send", {**ORDER, "title": "Purchase"})
    messages = renamed["channels"]["orders"]["messages"]
    messages["Purchase"] = messages.pop("Order")
    assert found(document("send", ORDER), renamed) == [("info", "orders Purchase", "its class was Order before (sent)")]


@pytest.mark.parametrize(
    "payload",
    [
        {"type": "object", "required": 5},
        {"enum": 3},
        {"minimum": "a"},
        {"anyOf": [{"$ref": "#/channels/orders/messages/Order/payload"}]},
        {"schemaFormat": "application/vnd.apache.avro", "schema": {"name": "no type"}},
    ],
)
def test_documents_that_break_the_rules_are_refused(payload: Json) -> None:
    bad = document("send", payload)
    with pytest.raises(ConfigError, match="breaks AsyncAPI's rules"):
        changes_between(bad, document("send", {**payload, "minimum": 1, "properties": {"a": {}}}))
    bad["operations"]["one"] = 5
    with pytest.raises(ConfigError, match="asyncapi validate"):
        changes_between(document("send", ORDER), bad)


OPTIONAL: Json = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
LIST: Json = {"type": "array", "items": [{"type": "integer"}], "minItems": 1}
STRINGS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
CARD, CASH = ({"title": name, "type": "object", "properties": {name: {"type": "string"}}} for name in ("Card", "Cash"))


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (OPTIONAL, {"anyOf": [{"type": "number"}, {"type": "null"}]}, WIDER),
        (OPTIONAL, {"type": ["integer", "null"]}, ("none", "none")),
        ({}, OPTIONAL, NARROWER),
        ({}, {"anyOf": [CARD, CASH]}, NARROWER),
        ({}, {"type": "string"}, NARROWER),
        ({"type": "object"}, STRINGS, NARROWER),
        ({"type": "object", "additionalProperties": True}, {"type": "object"}, ("none", "none")),
        ({"type": "array"}, {"type": "array", "items": {"type": "integer"}}, NARROWER),
        (LIST, {**LIST, "items": [{"type": "integer"}, {"type": "string"}]}, NEITHER),
        (LIST, {**LIST, "items": [{"type": "integer"}, {"type": "string"}], "minItems": 2}, NARROWER),
        (LIST, {**LIST, "items": {"type": "integer"}}, BOTH),
        (STRINGS, {**STRINGS, "propertyNames": {"pattern": "^a"}}, BOTH),
        (ORDER, {**ORDER, "allOf": [{"required": ["amount"]}]}, NARROWER),
        ({"allOf": [{"type": "string"}], "maxLength": 3}, {"allOf": [{"type": "string"}], "maxLength": 4}, WIDER),
        ({"enum": [1]}, {"enum": [True]}, BOTH),
        ({"anyOf": [CARD, CASH]}, {"anyOf": [{**CARD, "title": "Plastic"}, CASH]}, ("none", "none")),
        ({"anyOf": [CARD, CASH]}, {"anyOf": [CARD]}, NARROWER),
    ],
)
def test_what_values_there_are_is_told_by_all_words_of_a_schema(old: Json, new: Json, verdict: tuple[str, str]) -> None:
    assert severities(old, new) == verdict
    if verdict in (WIDER, NARROWER):
        assert severities(new, old) == (NARROWER if verdict == WIDER else WIDER)


def avro(schema: Any) -> Json:
    return {"schemaFormat": "application/vnd.apache.avro;version=1.9.0", "schema": schema}


def decimal(precision: int, scale: int) -> Json:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (decimal(4, 2), decimal(4, 1), BOTH),
        (decimal(4, 2), decimal(6, 2), WIDER),
        ("int", ["null", "long"], WIDER),
        (["null", "int"], ["null", "long"], WIDER),
        (["null", "long"], ["null", "int"], NARROWER),
        (["null", "int"], ["null", "string"], BOTH),
        ({"type": "fixed", "name": "A", "size": 4}, {"type": "fixed", "name": "B", "size": 4}, BOTH),
    ],
)
def test_avro_promotes_within_unions_and_decimals_have_digits(old: Any, new: Any, verdict: tuple[str, str]) -> None:
    assert severities(avro(old), avro(new)) == verdict


def test_a_key_that_is_not_known_changes_nothing_and_avro_keys_go_by_avro() -> None:
    def keyed(key: Json) -> Json:
        return document("send", ORDER, bindings={"kafka": {"key": key}})

    assert changes_between(keyed({}), keyed({"type": "string"})) == []
    schemas = [{"x-avro": record(field)} for field in (ID, {**ID, "type": "bytes"}, {**ID, "type": "int"})]
    assert changes_between(keyed(schemas[0]), keyed(schemas[1])) != []
    assert [one.severity for one in changes_between(keyed(schemas[0]), keyed(schemas[2]))] == ["breaking"]
    (change,) = changes_between(keyed(schemas[0]), keyed({"type": "string"}))
    assert change.severity == "breaking" and "Avro" in change.what


def test_two_classes_of_one_name_may_change_places() -> None:
    one, two = document("send", ORDER), document("send", ORDER)
    other = {"payload": {"type": "object", "properties": {"ref": {"type": "integer"}}, "required": ["ref"]}}
    first = one["channels"]["orders"]["messages"]["Order"]
    one["channels"]["orders"]["messages"] = {"Order": first, "Order_2": other}
    two["channels"]["orders"]["messages"] = {"Order": other, "Order_2": first}
    assert {change.severity for change in changes_between(one, two)} == {"info"}


def test_what_is_renamed_in_the_program_alone_breaks_nobody() -> None:
    def asked_by(name: str) -> Json:
        made = document("receive", ORDER)
        made["channels"][f"replies.{name}"] = {"address": None, "messages": {"R": {"payload": {"type": "integer"}}}}
        made["channels"][f"pattern.{name}"] = {"address": None, "messages": {}, "x-eventbus": {"pattern": "a.*"}}
        reply = {"channel": {"$ref": f"#/channels/replies.{name}"}}
        one = {**made["operations"].pop("one"), "reply": reply}
        reads = {"action": "receive", "channel": {"$ref": f"#/channels/pattern.{name}"}}
        return {**made, "operations": {f"receive.orders.{name}": one, f"receive.pattern.{name}.{name}": reads}}

    changes = changes_between(asked_by("old"), asked_by("new"))
    assert {change.severity for change in changes} == {"info"} and {one.channel for one in changes} == {
        "orders",
        "/a.*/",
    }
    wider = asked_by("new")
    wider["channels"]["replies.new"]["messages"]["R"]["payload"] = {"type": "number"}
    assert [one.whom for one in changes_between(asked_by("old"), wider) if one.severity == "breaking"] == ["requesters"]


def test_settings_groups_and_nulls_are_told() -> None:
    def made(retention_ms: int, group: str, **more: Any) -> Json:
        found = document("receive", ORDER)
        found["channels"]["orders"]["bindings"] = {"kafka": {"topicConfiguration": {"retention.ms": retention_ms}}}
        found["operations"]["one"]["bindings"] = {"kafka": {"groupId": {"type": "string", "enum": [group]}}}
        found["operations"]["one"]["x-eventbus"] = more
        return found

    assert found(made(1000, "a", nulls=True), made(2000, "b")) == [
        ("breaking", "orders", "operation one: it takes no nulls any more (received)"),
        ("info", "orders", "operation one: its group was a and is b: it starts over"),
        ("info", "orders", "retention.ms: 1000 before, 2000 now"),
    ]
    assert [one for one, _, _ in found(made(1, "a"), made(1, "a", nulls=True))] == ["compatible"]
