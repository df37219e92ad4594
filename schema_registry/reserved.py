"""Reserved names of a subject: ``confluent:reserved`` in the metadata, checked if ``validateFields`` is set."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from schema_registry.state import Content

PROPERTY = "confluent:reserved"


def violations(new: Content, newest: Content | None) -> list[str]:
    """Confluent's sentences: a name must not be freed again, and no field may have one."""
    wanted = _reserved(new)
    gone = sorted(_reserved(newest) - wanted) if newest is not None else []
    taken = sorted(wanted & _top_level(new)) if wanted else []
    return [
        *(
            f"The new schema has reserved field {name} removed from its metadata which is present in the old schema's "
            "metadata."
            for name in gone
        ),
        *(f"The new schema has field that conflicts with the reserved field {name}." for name in taken),
    ]


def _reserved(content: Content) -> set[str]:
    listed = content.metadata.properties.get(PROPERTY, "") if content.metadata is not None else ""
    return {name.strip() for name in listed.split(",")} - {""}


def _top_level(content: Content) -> set[str]:
    """Return the fields of an Avro record, the properties of a JSON object."""
    if content.schema_type == "PROTOBUF":
        return set()
    tree = msgspec.json.decode(content.text)
    if not isinstance(tree, dict):
        return set()
    members = cast("dict[str, Any]", tree)
    if content.schema_type == "JSON":
        return set(cast("dict[str, Any]", members.get("properties") or {}))
    return {field["name"] for field in cast("list[dict[str, str]]", members.get("fields") or [])}
