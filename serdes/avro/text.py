"""A schema as text: what Java's ``Schema.toString()`` prints, byte for byte, and the forms that are made of it."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from serdes.avro.java_numbers import double_text
from serdes.avro.schema import PRIMITIVES, Array, Enum, Fixed, Map, Named, Record, Schema, Union

TYPE_NAMES: Final = PRIMITIVES | {"record", "enum", "array", "map", "union", "fixed"}
"""Names that a reference may not have without its namespace: they would be read as the type."""

_SPECIAL: Final = re.compile(r'["\\\x00-\x1f]')
_ESCAPES: Final = {code: f"\\u{code:04X}" for code in range(0x20)} | {
    ord(letter): "\\" + short for letter, short in zip('"\\\b\t\n\f\r', '"\\btnfr', strict=True)
}


def to_text(schema: Schema, references: Iterable[Schema] = ()) -> str:
    """Java's ``Schema.toString()``. ``references`` are types that are named only, as if printed before."""
    out: list[str] = []
    _print(schema, None, {reference.fullname for reference in references}, out)
    return "".join(out)


def _print(schema: Schema, namespace: str | None, known: set[str], out: list[str]) -> None:
    if isinstance(schema, Named):
        _print_named(schema, namespace, known, out)
    elif isinstance(schema, Union):
        lead = "["
        for branch in schema.branches:
            out.append(lead)
            _print(branch, namespace, known, out)
            lead = ","
        out.append("]" if schema.branches else "[]")
    elif isinstance(schema, Array):
        out.append('{"type":"array","items":')
        _print(schema.items, namespace, known, out)
        _print_props(schema.props, out)
        out.append("}")
    elif isinstance(schema, Map):
        out.append('{"type":"map","values":')
        _print(schema.values, namespace, known, out)
        _print_props(schema.props, out)
        out.append("}")
    elif schema.props:
        out.append(f'{{"type":"{schema.type}"')
        _print_props(schema.props, out)
        out.append("}")
    else:
        out.append(f'"{schema.type}"')


def _print_named(schema: Named, namespace: str | None, known: set[str], out: list[str]) -> None:
    if schema.fullname in known:
        out.append(json_text(_qualified(schema.fullname, namespace)))
        return
    known.add(schema.fullname)
    out.append(f'{{"type":"{schema.type}","name":{json_text(schema.name)}')
    if schema.namespace != namespace:
        out.append(f',"namespace":{json_text(schema.namespace or "")}')
    if schema.doc is not None:
        out.append(f',"doc":{json_text(schema.doc)}')
    match schema:
        case Record():
            _print_fields(schema, known, out)
        case Enum():
            out.append(f',"symbols":[{",".join(map(json_text, schema.symbols))}]')
            if schema.default is not None:
                out.append(f',"default":{json_text(schema.default)}')
        case Fixed():
            out.append(f',"size":{schema.size}')
        case _:
            raise TypeError(f"{schema!r} is not a record, enum or fixed")
    _print_props(schema.props, out)
    _print_aliases(tuple(_qualified(alias, schema.namespace) for alias in schema.aliases), out)
    out.append("}")


def _print_fields(record: Record, known: set[str], out: list[str]) -> None:
    lead = ',"fields":['
    for field in record.fields:
        out.append(f'{lead}{{"name":{json_text(field.name)},"type":')
        _print(field.schema, record.namespace, known, out)
        if field.doc is not None:
            out.append(f',"doc":{json_text(field.doc)}')
        if field.has_default:
            out.append(f',"default":{json_text(field.default)}')
        if field.order != "ascending":
            out.append(f',"order":"{field.order}"')
        _print_aliases(field.aliases, out)
        _print_props(field.props, out)
        out.append("}")
        lead = ","
    out.append("]" if record.fields else ',"fields":[]')


def _print_props(props: Mapping[str, Any], out: list[str]) -> None:
    for name, value in props.items():
        out.append(f",{json_text(name)}:{json_text(value)}")


def _print_aliases(aliases: Sequence[str], out: list[str]) -> None:
    if aliases:
        out.append(f',"aliases":[{",".join(map(json_text, aliases))}]')


def _qualified(fullname: str, namespace: str | None) -> str:
    """Return the spelling of a name inside ``namespace``."""
    space, _, name = fullname.rpartition(".")
    return name if space and space == namespace and name not in TYPE_NAMES else fullname


def json_text(value: Any) -> str:
    """A JSON value as Jackson prints it."""
    match value:
        case str():
            return f'"{value.translate(_ESCAPES) if _SPECIAL.search(value) else value}"'
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return double_text(value)
        case dict():
            members = cast("dict[str, Any]", value).items()
            return "{" + ",".join([f"{json_text(name)}:{json_text(item)}" for name, item in members]) + "}"
        case list() | tuple():
            return "[" + ",".join(map(json_text, cast("Sequence[Any]", value))) + "]"
        case _:
            raise TypeError(f"{type(value).__name__} is no JSON value")


# Identities


def canonical_form(schema: Schema) -> str:
    """Return the schema in Avro's Parsing Canonical Form: only what affects reading, in a unique spelling."""
    out: list[str] = []
    _canonical(schema, set(), out)
    return "".join(out)


def _canonical(schema: Schema, known: set[str], out: list[str]) -> None:
    match schema:
        case Union():
            lead = "["
            for branch in schema.branches:
                out.append(lead)
                _canonical(branch, known, out)
                lead = ","
            out.append("]" if schema.branches else "[]")
        case Array():
            out.append('{"type":"array","items":')
            _canonical(schema.items, known, out)
            out.append("}")
        case Map():
            out.append('{"type":"map","values":')
            _canonical(schema.values, known, out)
            out.append("}")
        case Named():
            _canonical_named(schema, known, out)
        case _:
            out.append(f'"{schema.type}"')


def _canonical_named(schema: Named, known: set[str], out: list[str]) -> None:
    if schema.fullname in known:
        out.append(f'"{schema.fullname}"')
        return
    known.add(schema.fullname)
    out.append(f'{{"name":"{schema.fullname}","type":"{"record" if schema.type == "error" else schema.type}"')
    if isinstance(schema, Enum):
        out.append(f',"symbols":[{",".join(f"{_QUOTE}{symbol}{_QUOTE}" for symbol in schema.symbols)}]')
    elif isinstance(schema, Fixed):
        out.append(f',"size":{schema.size}')
    elif isinstance(schema, Record):
        lead = ',"fields":['
        for field in schema.fields:
            out.append(f'{lead}{{"name":"{field.name}","type":')
            _canonical(field.schema, known, out)
            out.append("}")
            lead = ","
        out.append("]" if schema.fields else ',"fields":[]')
    out.append("}")


def _crc_table() -> tuple[int, ...]:
    table: list[int] = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY if value & 1 else 0)
        table.append(value)
    return tuple(table)


_QUOTE: Final = '"'
_EMPTY: Final = 0xC15D213AA4D7A795
_TABLE: Final = _crc_table()


def fingerprint64(schema: Schema) -> int:
    """CRC-64-AVRO of the canonical form, unsigned."""
    crc = _EMPTY
    for byte in canonical_form(schema).encode():
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc


def fingerprint(schema: Schema, algorithm: str = "md5") -> bytes:
    """Return a digest of the canonical form: ``md5``, ``sha256``, or any other that hashlib knows."""
    return hashlib.new(algorithm, canonical_form(schema).encode(), usedforsecurity=False).digest()


def guid(
    text: str,
    references: Iterable[Any] = (),
    metadata: Mapping[str, Any] | None = None,
    rule_set: Mapping[str, Any] | None = None,
) -> str:
    """Return the identity that a Confluent registry gives to a schema, as text: see `guid_bytes`."""
    return str(uuid.UUID(bytes=guid_bytes(text, references, metadata, rule_set)))


def guid_bytes(
    text: str,
    references: Iterable[Any] = (),
    metadata: Mapping[str, Any] | None = None,
    rule_set: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the sixteen bytes that identify a schema of any type in every registry.

    ``text`` is the stored text (for an Avro schema, that of `to_text`); ``references`` have ``name``, ``subject`` and
    ``version``; ``metadata`` and ``rule_set`` have the form of the registry's requests.
    """
    digest = hashlib.md5(usedforsecurity=False)

    def add(*texts: str | None) -> None:
        for part in texts:
            digest.update((part or "").encode(errors="replace"))

    add(text)
    for reference in references:
        add(reference.name, reference.subject)
        digest.update(reference.version.to_bytes(4, "big", signed=True))
    if metadata is not None:
        digest.update(b"\x01")
        for tag, values in _sorted_items(metadata.get("tags")):
            add(tag, *java_sorted(set(values)))
        for name, value in _sorted_items(metadata.get("properties")):
            add(name, value)
        add(*java_sorted(set(metadata.get("sensitive") or ())))
    if rule_set is not None:
        digest.update(b"\x01")
        for kind in ("migrationRules", "domainRules", "encodingRules"):
            for rule in rule_set.get(kind) or ():
                add(rule.get("name"), rule.get("doc"), rule.get("kind") or "TRANSFORM")
                add(rule.get("mode") or "WRITEREAD", rule.get("type"), *java_sorted(set(rule.get("tags") or ())))
                for name, value in _sorted_items(rule.get("params")):
                    add(name, value)
                add(rule.get("expr"), rule.get("onSuccess"), rule.get("onFailure"))
                digest.update(b"\x01" if rule.get("disabled") else b"")
        add(rule_set.get("enableAt"))
    return digest.digest()


def java_sorted(texts: Iterable[str]) -> list[str]:
    """Sort like Java's strings, by UTF-16 code units."""
    return sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass"))


def _sorted_items(members: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    return [(name, members[name]) for name in java_sorted(members)] if members else []
