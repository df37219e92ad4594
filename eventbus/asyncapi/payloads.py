"""Convert types to payloads: JSON Schema for values written as JSON, Avro schemas for values written as Avro."""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from eventbus.errors import ConfigError
from serdes import Int, Json, Serde, serde_for
from serdes.base import SchemaSerde, for_keys
from serdes.choose import format_of, split_optional, typed
from serdes.json_engine import survey_of
from serdes.pydantic_json import adapter_of

JsonObject = dict[str, Any]

AVRO_FORMAT = "application/vnd.apache.avro;version=1.9.0"
_REFERENCE = "#/components/schemas/"
_RAW = "#/$defs/"
"""The form of references between schemas before they have their names in the document."""
_PRIMITIVES: dict[type, tuple[str, JsonObject]] = {
    bytes: ("application/octet-stream", {"type": "string", "format": "binary"}),
    bytearray: ("application/octet-stream", {"type": "string", "format": "binary"}),
    memoryview: ("application/octet-stream", {"type": "string", "format": "binary"}),
    str: ("text/plain", {"type": "string"}),
    int: (
        "application/octet-stream",
        {"type": "integer", "format": "int64", "description": "Eight bytes, as Kafka's LongSerializer writes them."},
    ),
}


AVRO_KEY = "x-avro"
"""The extension that holds the schema of an Avro key, for which the binding has no field."""


class Payload(msgspec.Struct, frozen=True):
    """A type of values in a topic."""

    name: str
    content_type: str
    schema: JsonObject
    description: str = ""
    avro_id_in: str = ""
    """The place of Confluent's schema id, "payload" or "header"; "" for other formats than Avro."""


class Payloads:
    """The payloads of one document, and the schemas that they share."""

    def __init__(self) -> None:
        self.schemas: dict[str, JsonObject] = {}
        """The schemas of ``components.schemas``."""
        self._names: dict[str, str] = {}
        """The name of each schema in `schemas`, by the content of the schema and all that it refers to."""
        self._taken: set[str] = set()

    def key(self, annotation: Any, serdes: Mapping[type, Serde], where: str) -> JsonObject:
        """Return the schema of keys, which Kafka's binding requires to be JSON Schema. Raises ConfigError as `of`
        does."""
        found = [one.schema for one in self.of(annotation, serdes, where, is_key=True)]
        schemas = [
            {"description": "Avro, in Confluent's format.", AVRO_KEY: one["schema"]} if "schemaFormat" in one else one
            for one in found
        ]
        return any_of(schemas)

    def of(
        self,
        annotation: Any,
        serdes: Mapping[type, Serde],
        where: str,
        *,
        is_key: bool = False,
        written: Serde | None = None,
    ) -> list[Payload]:
        """Return a payload for each member of a union. Raises ConfigError with ``where`` for a type that has no schema.

        ``written``: the serde of its topic, if that decides the format.
        """
        annotation = split_optional(annotation)[0]
        try:
            whole = written or serde_for(annotation, serdes)
            whole = for_keys(whole) if is_key else whole
            return [self._payload(arm, _of_arm(whole, arm), serdes) for arm in arms(annotation)]
        except (TypeError, ValueError, RuntimeError) as error:  # pydantic's errors are Runtime- or ValueErrors
            named = getattr(annotation, "__qualname__", annotation)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(
                f"{where}: cannot derive a schema of its type {named}: {reason}. Make it a msgspec.Struct, a "
                "dataclass, a TypedDict or a pydantic model of such fields; or give the bus a serde for it"
            ) from error

    def _payload(self, arm: Any, serde: Serde, serdes: Mapping[type, Serde]) -> Payload:
        name, description = _name_of(arm), _doc_of(arm)
        if isinstance(serde, SchemaSerde):
            avro = avro_schema(serde)
            if avro is not None:
                return Payload(
                    name,
                    "application/vnd.apache.avro",
                    avro,
                    description,
                    "header" if serde.writes_header else "payload",
                )
        if isinstance(serde, Json):
            return Payload(name, "application/json", self.json_schema(arm), description)
        if serde is Int:
            return Payload(name, "application/octet-stream", {"type": "integer", "format": "int32"}, description)
        base = format_of(arm, serdes)
        if base is not None:
            content_type, schema = _PRIMITIVES[base]
            return Payload(name, content_type, self._primitive(arm, base, schema), description)
        text = f"Bytes of {type(serde).__name__}, which has no schema for them."
        return Payload(name, "application/octet-stream", {"description": text}, description)

    def _primitive(self, arm: Any, base: type, schema: JsonObject) -> JsonObject:
        """Return a schema of text or numbers, with their enumeration or bounds."""
        if arm is base or base not in (str, int):
            return schema
        try:
            own = self.json_schema(arm)
        except TypeError:  # a user's class that derives from str: treated as any text
            return schema
        return own if base is str else {"allOf": [own], **schema}

    def json_schema(self, annotation: Any) -> JsonObject:
        """Return the schema of a type; classes become references to `schemas`. Raises TypeError and pydantic's
        errors."""
        if annotation in (Any, inspect.Parameter.empty):
            return {}
        if survey_of(annotation).is_pydantics:
            return self._pydantic(annotation)
        (schema,), components = msgspec.json.schema_components(
            [annotation], schema_hook=self._hook, ref_template=_RAW + "{name}"
        )
        return self._keep(schema, components)

    def _hook(self, kind: type) -> JsonObject:
        if survey_of(kind).is_pydantics:
            return self._pydantic(kind)
        raise NotImplementedError  # so that msgspec reports the type without a schema

    def _pydantic(self, annotation: Any) -> JsonObject:
        schema: JsonObject = adapter_of(annotation).json_schema(ref_template=_RAW + "{model}")
        components = cast("dict[str, JsonObject]", schema.pop("$defs", {}))
        if "$ref" in schema or not isinstance(annotation, type):
            return self._keep(schema, components)
        name = annotation.__name__
        return self._keep({"$ref": _RAW + name}, {**components, name: schema})

    def _keep(self, schema: JsonObject, components: dict[str, JsonObject]) -> JsonObject:
        """Add ``components``; a number is added to a name that is already used by another one.

        Two components are equal if they and all that they refer to are: each of two classes called Order may have a
        different Line.
        """
        names: dict[str, str] = {}
        for name in components:
            meaning = json.dumps([name, _reachable(name, components)], sort_keys=True, default=str)
            if meaning not in self._names:
                free = first = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
                number = 2
                while free in self._taken:
                    free, number = f"{first}_{number}", number + 1
                self._names[meaning] = free
                self._taken.add(free)
            names[name] = self._names[meaning]
        for name, component in components.items():
            self.schemas[names[name]] = _as_draft_07(component, names)
        return _as_draft_07(schema, names)


def _reachable(name: str, components: dict[str, JsonObject]) -> dict[str, JsonObject]:
    """Return a component, and those that it refers to."""
    found: dict[str, JsonObject] = {}
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in components and one not in found:
            found[one] = components[one]
            waiting.extend(_references(components[one]))
    return found


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [name for one in cast("list[Any]", node) for name in _references(one)]
    if not isinstance(node, dict):
        return []
    found = [name for one in cast(JsonObject, node).values() for name in _references(one)]
    reference: Any = cast(JsonObject, node).get("$ref")
    return [*found, reference.removeprefix(_RAW)] if isinstance(reference, str) else found


def any_of(schemas: list[JsonObject]) -> JsonObject:
    """Return a schema for the values of all of them. A schema without conditions is dropped if there are others."""
    distinct: list[JsonObject] = []
    for one in schemas:
        if one and one not in distinct:
            distinct.append(one)
    if len(distinct) > 1:
        return {"anyOf": distinct}
    return {"allOf": distinct} if distinct and "$ref" in distinct[0] else distinct[0] if distinct else {}


def arms(annotation: Any) -> list[Any]:
    """Return the members of a union, or the type itself, without the metadata of ``Annotated``."""
    annotation = split_optional(annotation)[0]
    while (meant := getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)) is not None:
        annotation = meant
    if typing.get_origin(annotation) is typing.Annotated:
        inner = typing.get_args(annotation)[0]
        return arms(inner) if _is_named(annotation) or _is_union(inner) else [annotation]
    if _is_union(annotation):
        return [arm for one in typing.get_args(annotation) if one is not type(None) for arm in arms(one)]
    return [annotation]


def avro_schema(serde: Any) -> JsonObject | None:
    """Return the multi-format schema of an Avro serde; None for another serde, or one without a schema."""
    from serdes.avro.schema import Schema
    from serdes.avro.text import to_text

    schema = getattr(serde, "schema", None)
    if not isinstance(schema, Schema):
        return None
    return {"schemaFormat": AVRO_FORMAT, "schema": json.loads(to_text(schema))}


def _of_arm(whole: Serde, arm: Any) -> Serde:
    return whole if isinstance(whole, Json) else typed(whole, arm)


def _is_named(annotation: Any) -> bool:
    return any(isinstance(one, Serde) for one in annotation.__metadata__)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _name_of(annotation: Any) -> str:
    """Return a message's name: that of the class, ``list_Order`` for ``list[Order]``."""
    if annotation in (Any, object, inspect.Parameter.empty):
        return "any"
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _name_of(typing.get_args(annotation)[0])
    inner = [_name_of(one) for one in typing.get_args(annotation)] if origin is not typing.Literal else []
    text = "_".join([getattr(origin or annotation, "__name__", "value"), *inner])
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in text)


def _doc_of(annotation: Any) -> str:
    """Return the docstring from the user's source; not one generated by `dataclass`, nor that of a built-in class."""
    text = (vars(annotation).get("__doc__") or "") if inspect.isclass(annotation) else ""
    generated = text.startswith(f"{getattr(annotation, '__name__', '')}(")
    is_own = str(getattr(annotation, "__module__", "builtins")).partition(".")[0] not in sys.stdlib_module_names
    return inspect.cleandoc(text) if is_own and not generated else ""


def _as_draft_07(node: Any, names: dict[str, str]) -> Any:
    """Convert draft 2020-12, which msgspec and pydantic write, to AsyncAPI's draft 07."""
    if isinstance(node, list):
        return [_as_draft_07(one, names) for one in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    out: JsonObject = {}
    for key, value in cast(JsonObject, node).items():
        if key == "$ref" and isinstance(value, str):
            out[key] = _REFERENCE + names[value.removeprefix(_RAW)] if value.startswith(_RAW) else value
        elif key == "properties":  # names of fields, which may be anything
            out[key] = {name: _as_draft_07(one, names) for name, one in value.items()}
        elif key in ("enum", "const", "default", "examples"):
            out[key] = value
        elif key == "discriminator":
            out[key] = value["propertyName"] if isinstance(value, dict) else value
        elif key == "items" and "prefixItems" in node:
            out["additionalItems"] = _as_draft_07(value, names)
        elif key == "prefixItems":
            out["items"] = _as_draft_07(value, names)
        else:
            out[key] = _as_draft_07(value, names)
    return out
