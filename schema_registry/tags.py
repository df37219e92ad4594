"""Inline tags: ``confluent:tags`` in the named types and fields of an Avro schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from schema_registry import errors
from schema_registry.entities import SchemaEntity, SchemaTags

MEMBER = "confluent:tags"
_RECORD, _FIELD = "sr_record", "sr_field"


def tagged(text: str, schema_type: str, add: Sequence[SchemaTags] | None, remove: Sequence[SchemaTags] | None) -> str:
    """Return the text with tags added and taken away. Raises 42201 for a place that is not in it."""
    if not add and not remove:
        return text
    if schema_type != "AVRO":
        raise errors.invalid_schema(f"inline tags are set in Avro schemas only, not in {schema_type}")
    tree = msgspec.json.decode(text)
    places = {entity: node for entity, node in _places(tree, "")}
    for changes, change in ((add, _added), (remove, _removed)):
        for one in changes or ():
            entity = (one.schema_entity.entity_path.removeprefix("."), one.schema_entity.entity_type)
            node = places.get(entity)
            if node is None:
                raise errors.invalid_schema(
                    f"No matching path '{entity[0]}' of type {entity[1]!r} found in the schema; there are: "
                    + ", ".join(sorted(path for path, _ in places))
                )
            tags = change(cast("list[str]", node.get(MEMBER, [])), one.tags)
            node.pop(MEMBER, None)
            if tags:
                node[MEMBER] = tags
    return msgspec.json.encode(tree).decode()


def tags_in(text: str, schema_type: str, wanted: Sequence[str]) -> list[SchemaTags]:
    """Return the places that have one of these tags; ``*`` is any."""
    if schema_type != "AVRO":
        return []
    found: list[SchemaTags] = []
    for (path, kind), node in _places(msgspec.json.decode(text), ""):
        tags = cast("list[str]", node.get(MEMBER, []))
        if tags and ("*" in wanted or any(tag in wanted for tag in tags)):
            found.append(SchemaTags(SchemaEntity(path, kind), tags))
    return found


def carried(old: str, new: str, schema_type: str) -> str:
    """``new`` with the tags that its places have in ``old``."""
    if schema_type != "AVRO":
        return new
    there = {entity for entity, _ in _places(msgspec.json.decode(new), "")}
    kept = [one for one in tags_in(old, schema_type, ["*"])
            if (one.schema_entity.entity_path, one.schema_entity.entity_type) in there]  # fmt: skip
    return tagged(new, schema_type, kept, None)


def _added(tags: list[str], more: list[str]) -> list[str]:
    return [*tags, *(tag for tag in dict.fromkeys(more) if tag not in tags)]


def _removed(tags: list[str], fewer: list[str]) -> list[str]:
    return [tag for tag in tags if tag not in fewer]


_Place = tuple[tuple[str, str], dict[str, Any]]


def _places(node: Any, namespace: str) -> Iterator[_Place]:
    """Records and their fields: (path, kind) and what carries the tags."""
    if isinstance(node, list):
        for branch in cast("list[Any]", node):
            yield from _places(branch, namespace)
    elif isinstance(node, dict):
        yield from _of_object(cast("dict[str, Any]", node), namespace)


def _of_object(node: dict[str, Any], namespace: str) -> Iterator[_Place]:
    kind = node.get("type")
    if kind not in ("record", "error"):
        for member in ("type", "items", "values"):
            yield from _places(node.get(member), namespace)
        return
    name, namespace = str(node.get("name", "")), str(node.get("namespace", namespace))
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    yield (full, _RECORD), node
    for field in cast("list[dict[str, Any]]", node.get("fields", [])):
        yield (f"{full}.{field.get('name', '')}", _FIELD), field
        yield from _places(field.get("type"), full.rpartition(".")[0])
