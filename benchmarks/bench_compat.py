"""Compatibility of parsed schemas: a record of 20 fields, and one of 500 in nested records."""

from __future__ import annotations

import json
import time
from typing import Any

from harness import Figure, Meter, Numbers, case, percentile
from schema_registry.formats import ParsedSchema, check, parse
from serdes.registry import Reference, SchemaText

COMPAT_FIGURES = [
    Figure("R6", "check of a 20-field record", "compat small:checks cpu", None, None, 2_000),
    Figure("R6a", "of 500 fields, nested: p99", "compat large:p99", None, None, 20, True, "ms"),
]

TYPES: list[Any] = [
    "string",
    "long",
    ["null", "double"],
    {"type": "array", "items": "int"},
    {"type": "map", "values": "int"},
]


def _never(reference: Reference) -> SchemaText:
    raise LookupError(reference)


def _parsed(schema: Any) -> ParsedSchema:
    return parse(SchemaText(json.dumps(schema)), _never)


def _record(name: str, fields: list[Any]) -> dict[str, Any]:
    named = [{"name": f"f{place}", "type": type} for place, type in enumerate(fields)]
    return {"type": "record", "name": name, "fields": named}


def _nested(name: str, depth: int, number: str) -> dict[str, Any]:
    """Five records in each other, ten fields each."""
    inner: Any = ["null", _nested(f"{name}x", depth - 1, number)] if depth else "string"
    return _record(name, [number, *TYPES, *TYPES[:3], inner])


@case("compat small", n=20_000, quick=1_000)
def compat_small(n: int) -> Numbers:
    """FULL, against the version before: a nullable field was added."""
    old, new = _record("R", TYPES * 4), _record("R", TYPES * 4)
    new["fields"].append({"name": "added", "type": ["null", "string"], "default": None})
    versions, schema = [(1, _parsed(old))], _parsed(new)
    with Meter() as meter:
        for _ in range(n):
            assert check("FULL", schema, versions)
    return meter.rates("checks", n)


@case("compat large", n=400, quick=50)
def compat_large(n: int) -> Numbers:
    """FULL; the old schema can read none of the ten widened branches of the new one: findings are made as well."""
    old, new = (
        _parsed(_record("R", [_nested(f"N{place}", 4, number) for place in range(10)])) for number in ("int", "long")
    )
    times: list[float] = []
    for _ in range(n):
        begin = time.process_time()
        assert not check("FULL", new, [(1, old)])
        times.append(1000 * (time.process_time() - begin))
    return {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}
