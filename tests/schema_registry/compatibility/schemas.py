"""Short ways to parse and check schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from schema_registry.formats import ParsedSchema, Verdict, check, parse
from serdes.registry import Reference, SchemaText


def parsed(
    schema: Any,
    schema_type: str = "AVRO",
    references: tuple[Reference, ...] = (),
    texts: Mapping[str, Any] | None = None,
) -> ParsedSchema:
    """A text, or a JSON value to be written as one. ``texts``: what the references lead to, by subject."""
    text = schema if isinstance(schema, str) and schema_type == "PROTOBUF" else json.dumps(schema)

    def resolve(reference: Reference) -> SchemaText:
        found = (texts or {})[reference.subject]
        return found if isinstance(found, SchemaText) else SchemaText(json.dumps(found), schema_type)

    return parse(SchemaText(text, schema_type, references), resolve)


def record(*fields: dict[str, Any], name: str = "R", **members: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, **members, "fields": list(fields)}


def column(name: str, type: Any, **members: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **members}


def checked(level: str, new: Any, *old: Any, schema_type: str = "AVRO", policy: str = "STRICT") -> Verdict:
    """Is ``new`` compatible with the versions 1, 2, ... ``old``?"""
    versions = [(number, parsed(one, schema_type)) for number, one in enumerate(old, 1)]
    return check(level, parsed(new, schema_type), versions, policy=policy)
