"""Writes ``eventbus/protocol/messages.pyi``, the types of the messages, from the tables.

python tests/protocol/stubs.py
"""

from __future__ import annotations

from pathlib import Path

import eventbus.protocol
from eventbus.protocol.schema import Field, Message, Structure, blocks, message

STUBS = Path(eventbus.protocol.__file__).with_name("messages.pyi")
_HEAD = """# Written by tests/protocol/stubs.py from eventbus/protocol/tables, which derive from Apache Kafka's
# message schemas (Apache License 2.0). Every field has its schema's default.
from msgspec import Struct

from eventbus.protocol.source import Buffer
"""
_TYPES = {"string": "str", "bytes": "bytes", "bool": "bool", "float64": "float", "uuid": "bytes"}


def stubs() -> str:
    """The whole text."""
    return "\n\n".join([_HEAD.rstrip(), *(_message(message(name)) for name in blocks())]) + "\n"


def _message(schema: Message) -> str:
    lines = [f"class {schema.name}(Struct, kw_only=True):"]
    for structure in _in_order(schema.body, []):
        lines.append(f"    class {structure.name}(Struct, kw_only=True):")
        lines += [f"        {_line(field, schema.name)}" for field in structure.fields] or ["        pass"]
        lines.append("")
    lines += [f"    {_line(field, schema.name)}" for field in schema.body.fields] or ["    pass"]
    return "\n".join(lines)


def _in_order(structure: Structure, found: list[Structure]) -> list[Structure]:
    """Inner structures before those that hold them."""
    for field in structure.fields:
        if field.structure and field.structure not in found:
            _in_order(field.structure, found)
            found.append(field.structure)
    return found


def _line(field: Field, outer: str) -> str:
    kind = f"{outer}.{field.type}" if field.structure else _TYPES.get(field.type, "int")
    if field.type == "records":
        kind = "memoryview" if outer.endswith("Request") else "Buffer | list[Buffer]"
    if field.is_array:
        kind = f"list[{kind}]"
    may_be_null = field.nullable.low <= field.nullable.high or field.default is None
    return f"{field.name}: {kind}{' | None' if may_be_null else ''} = ..."


if __name__ == "__main__":
    STUBS.write_text(stubs())
