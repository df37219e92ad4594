"""Places in a schema's text, and the errors that name them."""

from __future__ import annotations

import json
from typing import Any

from serdes.avro.schema import AvroSchemaError, Record, Schema, Union

Path = tuple["Path", str | int] | None
"""A place in the text, innermost last; None is the text itself."""


def render(path: Path) -> str:
    """Return a place as a JSON path: ``$.fields[2].type``."""
    parts: list[str] = []
    while path is not None:
        path, step = path
        parts.append(f"[{step}]" if type(step) is int else f".{step}")
    return "$" + "".join(reversed(parts))


def error(path: Path, reason: str) -> AvroSchemaError:
    return AvroSchemaError(render(path), reason)


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def bad_name(path: Path, kind: str, name: Any) -> AvroSchemaError:
    article = "an" if kind[0] in "ae" else "a"
    return error(path, f"{shown(name)} is no name for {article} {kind}: letters, digits and _ only, no digit in front")


def bad_default(path: Path, record: Record, name: str, schema: Schema, default: Any) -> AvroSchemaError:
    wanted = f"no {schema.fullname}"
    if isinstance(schema, Union):
        wanted = "none of " + ", ".join(branch.fullname for branch in schema.branches)
    return error(
        (path, "default") if path is not None else None,
        f"the default {shown(default)} of field {name} of {record.fullname} is {wanted};"
        " change the default or the type",
    )
