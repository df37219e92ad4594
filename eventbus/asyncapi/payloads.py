"""Types to payloads: JSON Schema of what is written as JSON, Avro schemas of what is written as Avro."""

from __future__ import annotations

import inspect
import json
import types
import typing
from typing import Any, cast

import msgspec

from eventbus.errors import ConfigError
from serdes import Int, Json, SchemaSerde, Serde, serde_for, split_optional
from serdes.choose import typed

JsonObject = dict[str, Any]

AVRO_FORMAT = "application/vnd.apache.avro;version=1.9.0"
_REFERENCE = "#/components/schemas/"
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


class Payload(msgspec.Struct, frozen=True):
    """One kind of value in a topic."""

    name: str
    content_type: str
    schema: JsonObject
    description: str = ""
    avro_id_in: str = ""
    """"payload" or "header": where Confluent's schema id stands; "" for what is no Avro."""


class Payloads:
    """The payloads of one document, and the schemas that they share."""

    def __init__(self) -> None:
        self.schemas: dict[str, JsonObject] = {}
        """For ``components.schemas``."""

    def of(self, annotation: Any, serdes: dict[type, Serde], where: str) -> list[Payload]:
        """One for each arm of a union. Raises ConfigError naming ``where`` for a type that has no schema."""
        annotation = split_optional(annotation)[0]
        try:
            whole = serde_for(annotation, serdes)
            return [self._payload(arm, _of_arm(whole, arm), serdes) for arm in arms(annotation)]
        except (TypeError, ValueError, RuntimeError) as error:  # pydantic's errors are Runtime- or ValueErrors
            named = getattr(annotation, "__qualname__", annotation)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(
                f"{where}: there is no schema of its type {named}: {reason}. Make it a msgspec.Struct, a dataclass, a "
                "TypedDict or a pydantic model of such fields; or give the bus a serde for it"
            ) from error

    def _payload(self, arm: Any, serde: Serde, serdes: dict[type, Serde]) -> Payload:
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
        base = next((kind for kind in getattr(arm, "__mro__", ()) if kind in _PRIMITIVES), None)
        if base is not None and type(serde) is type(serde_for(base)):
            content_type, schema = _PRIMITIVES[base]
            if arm is not base and base is str:
                schema = self.json_schema(arm)  # a StrEnum: its values
            return Payload(name, content_type, schema, description)
        said = f"Bytes of {type(serde).__name__}, which tells no schema of them."
        return Payload(name, "application/octet-stream", {"description": said}, description)

    def json_schema(self, annotation: Any) -> JsonObject:
        """Of a type; classes become references to `schemas`. Raises TypeError, and what pydantic raises."""
        if annotation in (Any, inspect.Parameter.empty):
            return {}
        if hasattr(annotation, "model_json_schema"):
            return self._pydantic(annotation)
        (schema,), components = msgspec.json.schema_components(
            [annotation], schema_hook=self._hook, ref_template=_REFERENCE + "{name}"
        )
        return self._keep(schema, components)

    def _hook(self, kind: type) -> JsonObject:
        if hasattr(kind, "model_json_schema"):
            return self._pydantic(kind)
        raise NotImplementedError  # by which msgspec knows that there is no schema, and names the type

    def _pydantic(self, model: Any) -> JsonObject:
        schema: JsonObject = model.model_json_schema(ref_template=_REFERENCE + "{model}")
        components = cast("dict[str, JsonObject]", schema.pop("$defs", {}))
        if "$ref" in schema:
            return self._keep(schema, components)
        name = model.__name__
        return self._keep({"$ref": _REFERENCE + name}, {**components, name: schema})

    def _keep(self, schema: JsonObject, components: dict[str, JsonObject]) -> JsonObject:
        """Add ``components``; one whose name another has already gets a number."""
        names: dict[str, str] = {}
        for name, component in components.items():
            names[name], number = name, 2
            while self.schemas.get(names[name], said := _as_draft_07(component, names)) != said:
                names[name] = f"{name}_{number}"
                number += 1
        for name, component in components.items():
            self.schemas[names[name]] = _as_draft_07(component, names)
        return _as_draft_07(schema, names)


def arms(annotation: Any) -> list[Any]:
    """The types of a union, or the one that it is; what ``Annotated`` says beside the type is left out."""
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
    """The multi-format schema of an Avro serde; None: it is another one, or has no schema of its own."""
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
    """A message's name: that of the class, ``list_Order`` for ``list[Order]``."""
    if annotation in (Any, object, inspect.Parameter.empty):
        return "any"
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _name_of(typing.get_args(annotation)[0])
    inner = [_name_of(one) for one in typing.get_args(annotation)] if origin is not typing.Literal else []
    text = "_".join([getattr(origin or annotation, "__name__", "value"), *inner])
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in text)


def _doc_of(annotation: Any) -> str:
    """The docstring that somebody wrote; not the one that `dataclass` makes."""
    text = (vars(annotation).get("__doc__") or "") if inspect.isclass(annotation) else ""
    generated = text.startswith(f"{getattr(annotation, '__name__', '')}(")
    is_own = getattr(annotation, "__module__", "builtins") != "builtins"
    return inspect.cleandoc(text) if is_own and not generated else ""


def _as_draft_07(node: Any, names: dict[str, str]) -> Any:
    """Draft 2020-12, which msgspec and pydantic write, in the words of AsyncAPI's draft 07."""
    if isinstance(node, list):
        return [_as_draft_07(one, names) for one in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    out: JsonObject = {}
    for key, value in cast(JsonObject, node).items():
        if key == "$ref" and isinstance(value, str):
            name = value.removeprefix(_REFERENCE)
            out[key] = _REFERENCE + names.get(name, name)
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
