"""Schema files and subjects as a command is given them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema as TheirSchema
from confluent_kafka.schema_registry import SchemaRegistryClient

from schema_registry.client import RegistryClient
from serdes.registry import SchemaText
from tests.cli.conftest import Cli

pytestmark = pytest.mark.system

KIND = '{"type":"enum","name":"Kind","symbols":["A"]}'
USE = '{"type":"record","name":"R","fields":[{"name":"kind","type":"Kind","default":"A"}]}'
FILES = {
    "a.avsc": '"int"',
    "a.json": '{"type":"integer"}',
    "a.proto": 'syntax = "proto3"; package a . b ; message A {}',
}


def test_a_byte_order_mark_is_not_part_of_a_schema(cli: Cli, served: str) -> None:
    for name, text in FILES.items():
        Path(name).write_text(text, "utf-8-sig")
        assert cli("schema", "register", name, name, "--registry", served).code == 0
        data = Path(name).read_bytes()
        kind = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}[Path(name).suffix]
        assert cli("schema", "register", name, "-", "--type", kind, "--registry", served, stdin=data).code == 0
        assert cli("schema", "check", name, "--subject", name, "--registry", served).code == 0


def test_codegen_takes_a_type_and_references_too(cli: Cli, served: str) -> None:
    Path("kind.avsc").write_text(KIND, "utf-8")
    Path("use.txt").write_text(USE, "utf-8")
    assert cli("schema", "register", "kind", "kind.avsc", "--registry", served).code == 0
    refused = cli("schema", "codegen", "use.txt")
    assert "Kind is not defined; define it in this text above this field" in refused.err and "?" not in refused.err
    reference = ("--reference", "Kind=kind:1", "--type", "avro", "--registry", served)
    made = cli("schema", "codegen", "use.txt", *reference)
    assert made.code == 0 and "class Kind" in made.out and "class R" in made.out


SUBJECTS = [
    ".", "..", "...", "a/b", "a?b", "a#b", "a%2Fb", "%", "a b", "a+b", "a&b=c", "a;b", "é", "a\\b", "a:b:c", "*",
    "latest", "a,b", "a@b", "'\"", "x" * 300, ":.ctx:a/b",
]  # fmt: skip


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda one: one[:20])
def test_a_subject_with_characters_of_urls_survives_every_tool(subject: str, cli: Cli, served: str) -> None:
    Path("a.avsc").write_text('"int"', "utf-8")
    assert cli("schema", "register", subject, "a.avsc", "--registry", served).code == 0
    assert any(
        one["subject"] == subject for one in json.loads(cli("schema", "list", "--json", "--registry", served).out)
    )
    client = RegistryClient(served)
    assert client.latest(subject).text.schema == '"int"'
    assert client.lookup(subject, SchemaText('"int"')).version == 1
    assert client.is_compatible(subject, SchemaText('"long"')).is_compatible
    assert cli("schema", "show", subject, "--registry", served).code == 0
    assert cli("schema", "diff", subject, "a.avsc", "--registry", served).code == 0
    if subject not in (".", ".."):  # their client does not quote a dot, and httpx removes it
        with SchemaRegistryClient({"url": served}) as theirs:
            assert theirs.get_latest_version(subject).schema.schema_str == '"int"'
            assert theirs.register_schema(subject, TheirSchema('"int"', "AVRO")) > 0
    assert cli("schema", "delete", subject, "--registry", served).code == 0
    client.close()


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("a\nb", "is not a valid"),
        ("a\0b", "is not a valid"),
        ("\x7f", "is not a valid"),
        ("\udc80", r"'\udc80' is not UTF-8"),
    ],
)
def test_a_subject_with_control_characters_is_refused(subject: str, why: str, cli: Cli, served: str) -> None:
    Path("a.avsc").write_text('"int"', "utf-8")
    result = cli("schema", "register", subject, "a.avsc", "--registry", served)
    assert result.code != 0 and why in result.err
