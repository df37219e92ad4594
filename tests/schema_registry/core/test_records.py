"""The bytes of the topic: what the classes of Confluent's registry 5.5 to 7.9 print, member by member."""

from __future__ import annotations

import pytest

from schema_registry import records
from schema_registry.entities import Metadata, Rule, RuleSet
from schema_registry.records import (
    MAX_IDS,
    ClearSubjectValue,
    ConfigValue,
    ContextValue,
    DeleteSubjectValue,
    Key,
    MaxIds,
    ModeValue,
    SchemaValue,
    UnreadableRecord,
    key_bytes,
    read_key,
    read_value,
    value_bytes,
)
from serdes.registry import Reference

GOLDEN = [
    (
        Key("SCHEMA", "orders-value", 1),
        SchemaValue(subject="orders-value", version=1, id=1, schema='"string"', deleted=False),
        b'{"keytype":"SCHEMA","subject":"orders-value","version":1,"magic":1}',
        b'{"subject":"orders-value","version":1,"id":1,"schema":"\\"string\\"","deleted":false}',
    ),
    (
        Key("SCHEMA", "p", 2),
        SchemaValue(
            subject="p", version=2, id=7, schema_type="JSON", references=[Reference("a.json", "a", 1)],
            metadata=Metadata({"f": ["PII"]}, {"owner": "Ada"}, ["owner"]),
            rule_set=RuleSet(domain_rules=[
                Rule("check", None, "CONDITION", "WRITE", "CEL", ["PII"], {"a": "b"}, "size > 0", None, "DLQ", False)
            ]),
            schema="{}", deleted=True,
        ),
        b'{"keytype":"SCHEMA","subject":"p","version":2,"magic":1}',
        b'{"subject":"p","version":2,"id":7,"schemaType":"JSON","references":[{"name":"a.json","subject":"a",'
        b'"version":1}],"metadata":{"tags":{"f":["PII"]},"properties":{"owner":"Ada"},"sensitive":["owner"]},'
        b'"ruleSet":{"domainRules":[{"name":"check","kind":"CONDITION","mode":"WRITE","type":"CEL","tags":["PII"],'
        b'"params":{"a":"b"},"expr":"size > 0","onFailure":"DLQ","disabled":false}]},"schema":"{}","deleted":true}',
    ),
    (
        Key("CONFIG"),
        ConfigValue(compatibility_level="FULL"),
        b'{"keytype":"CONFIG","magic":0}',
        b'{"compatibilityLevel":"FULL"}',
    ),
    (
        Key("CONFIG", "s"),
        ConfigValue(subject="s", alias="t", normalize=True, compatibility_level="NONE", compatibility_group="major"),
        b'{"keytype":"CONFIG","subject":"s","magic":0}',
        b'{"subject":"s","alias":"t","normalize":true,"compatibilityLevel":"NONE","compatibilityGroup":"major"}',
    ),
    (Key("MODE"), ModeValue(mode="IMPORT"), b'{"keytype":"MODE","magic":0}', b'{"mode":"IMPORT"}'),
    (
        Key("MODE", ":.c:"),
        ModeValue(subject=":.c:", mode="READONLY"),
        b'{"keytype":"MODE","subject":":.c:","magic":0}',
        b'{"subject":":.c:","mode":"READONLY"}',
    ),
    (
        Key("DELETE_SUBJECT", "s"),
        DeleteSubjectValue(subject="s", version=3),
        b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
        b'{"subject":"s","version":3}',
    ),
    (
        Key("CLEAR_SUBJECT", "s"),
        ClearSubjectValue("s"),
        b'{"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}',
        b'{"subject":"s"}',
    ),
    (
        Key("CONTEXT", ".c"),
        ContextValue("default", ".c"),
        b'{"keytype":"CONTEXT","tenant":"default","context":".c","magic":0}',
        b'{"tenant":"default","context":".c"}',
    ),
    (MAX_IDS, MaxIds({".": 9}), b'{"keytype":"NOOP","magic":0,"for":"ids"}', b'{"maxIds":{".":9}}'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "key_data", "value_data"), GOLDEN, ids=lambda one: getattr(one, "keytype", "")
)
def test_bytes_are_confluents(key: Key, value: records.Value, key_data: bytes, value_data: bytes) -> None:
    assert key_bytes(key) == key_data
    assert value_bytes(value) == value_data
    assert read_key(key_data) == key
    assert read_value(key, value_data) == value


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":0}', Key("SCHEMA", "s", 1)),
        (b'{"magic":1,"version":1,"subject":"s","keytype":"SCHEMA"}', Key("SCHEMA", "s", 1)),
        (b'{"keytype": "SCHEMA", "subject": "s", "version": 1, "magic": 1, "new": {}}', Key("SCHEMA", "s", 1)),
        (b'{"keytype":"CONFIG","subject":null,"magic":0}', Key("CONFIG")),
        (b'{"keytype":"CONFIG","subject":"","magic":0}', Key("CONFIG")),
        (b'{"keytype":"NOOP","magic":0}', Key("NOOP")),
        (b'{"keytype":"CLEAR_SUBJECT","subject":null,"magic":0}', Key("CLEAR_SUBJECT")),
    ],
)
def test_other_forms_name_the_same(data: bytes, key: Key) -> None:
    assert read_key(data) == key


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"{", b"\xff\xfe", b'{"keytype":1}', b'{"keytype":"EXPORTER"}', b'{"subject":"s"}',
     b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":2}', b'{"keytype":"SCHEMA","subject":"s","magic":1}',
     b'{"keytype":"SCHEMA","subject":"s","version":"1","magic":1}'],
)  # fmt: skip
def test_keys_that_are_none(data: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        read_key(data)


def test_the_oldest_values_are_read() -> None:
    value = read_value(Key("SCHEMA", "s", 1), b'{"subject":"s","version":1,"id":1,"schema":"\\"int\\""}')
    assert isinstance(value, SchemaValue) and value.deleted is not True
    assert read_value(Key("CONFIG"), b'{"compatibilityLevel":"FULL"}') == ConfigValue(compatibility_level="FULL")


def test_escapes_are_jacksons() -> None:
    text = "/é\U0001f600 \x1f\x0b\n\t\x7f \\u001f"
    written = "/é\U0001f600 \\u001F\\u000B\\n\\t\x7f \\\\u001f"
    value = SchemaValue(subject="s", version=1, id=1, schema=text, deleted=False)
    assert value_bytes(value).decode() == f'{{"subject":"s","version":1,"id":1,"schema":"{written}","deleted":false}}'
