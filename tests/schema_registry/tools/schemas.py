"""Schemas of the tests here, parsed."""

from __future__ import annotations

import json
from typing import Any

from schema_registry.formats import ParsedSchema
from schema_registry.tools.judge import Declared, Reader
from schema_registry.tools.recorded import parse_alone

CARRIER = {"name": "carrier", "type": "string"}
TAIL = {"name": "tailnum", "type": ["null", "string"], "default": None}
GATE = {"name": "gate", "type": "string"}
NULLABLE_GATE = {"name": "gate", "type": ["null", "string"], "default": None}


def flight(*fields: dict[str, Any], name: str = "Flight") -> ParsedSchema:
    """A record of those fields."""
    return parse_alone(json.dumps({"type": "record", "name": name, "fields": list(fields)}))


def written(schema: ParsedSchema, subject: str = "flights-value", kind: Any = None) -> Declared:
    return Declared(subject=subject, schema=schema, type=kind)


def read(schema: ParsedSchema, handler: str = "bill", group: str = "billing", kind: Any = None) -> Declared:
    return Declared(subject="flights-value", schema=schema, type=kind, group=group, handler=handler)


def deployed(schema: ParsedSchema, handler: str = "bill", group: str = "billing") -> Reader:
    return Reader(group, handler, schema)
