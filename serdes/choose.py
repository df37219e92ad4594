"""Which serde a Python type means, by one table for both directions.

Reading goes by the annotation. Writing goes by the type that is declared for a topic, and by the value's own class only
where nothing is declared.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from serdes.base import Encode, SchemaSerde, Serde, TypedSerde, bind_encoder
from serdes.json import Json
from serdes.json_engine import survey_of
from serdes.primitives import Bytes, Long, Str, into
from serdes.pydantic_json import adapter_of

BY_TYPE: dict[type, Serde] = {
    bytes: Bytes,
    bytearray: into(bytearray, Bytes),
    memoryview: into(memoryview, Bytes),
    str: Str,
    int: Long,
}
"""Types with a byte format of their own, their subclasses too (a StrEnum); every other type is JSON, bool as well."""
_JSON = Json()


class Others:
    """The key of the serde for every type without its own byte format. Without this key, such types are JSON."""


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """``(X, True)`` for ``X | None``, else ``(annotation, False)``: may a null be passed on?"""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
        if len(rest) < len(typing.get_args(annotation)):
            return _union_of(rest), True
    return annotation, annotation in (Any, object)


def _union_of(annotations: Sequence[Any]) -> Any:
    union = annotations[0]
    for other in annotations[1:]:
        union = union | other
    return union


def serde_for(annotation: Any, custom: Mapping[type, Serde] | None = None, *, only_writes: bool = False) -> Serde:
    """Return the serde of an annotation.

    That is the serde that the annotation names (``Annotated[Flight, avro]``), else the user's serde of the type, else
    Kafka's byte format, else the default, which is JSON. ``X | None`` and a NewType of X are read as X, because they
    are written as X. Raises TypeError if the serde cannot check values of the annotation, and for a union whose
    values need different formats. ``only_writes``: this process does not read the JSON, so the type need not be
    checkable.
    """
    annotation, _ = split_optional(annotation)
    while (meant := getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)) is not None:
        annotation = meant  # a NewType, a ``type`` statement
    named = serde_named(annotation)
    if named is not None:
        return typed(named, typing.get_args(annotation)[0])
    if custom:
        found = _of_users(annotation, custom)
        if found is not None:
            return typed(found, annotation)
    base = _common_format(annotation)
    if base is None:
        if custom and Others in custom:
            return typed(custom[Others], annotation)
        return Json(annotation, only_writes=only_writes)
    if isinstance(annotation, type):
        return BY_TYPE[base] if annotation is base else into(annotation, BY_TYPE[base])
    return into(_converter(annotation), BY_TYPE[base])


def _converter(annotation: Any) -> Callable[[Any], Any]:
    """Return the function that checks text, a number or bytes against more than their class. Raises TypeError."""
    problem = survey_of(annotation).problem()
    if problem:
        raise TypeError(problem)
    if survey_of(annotation).is_pydantics:
        return adapter_of(annotation).validate_python
    msgspec.json.Decoder(annotation)  # raises TypeError for what msgspec cannot tell apart
    return functools.partial(msgspec.convert, type=annotation)


def format_of(annotation: Any, custom: Mapping[type, Serde] | None = None) -> type | None:
    """The type of `BY_TYPE` in whose byte format an annotation's values are; None: they are JSON, or a serde's own."""
    if serde_named(annotation) is not None or (custom and _of_users(annotation, custom) is not None):
        return None
    return _common_format(annotation)


def _common_format(annotation: Any) -> type | None:
    """Return the type of `BY_TYPE` that all values of an annotation are written as; None: JSON carries them.

    Raises TypeError where values are bytes or something else: bytes of any kind may be the other thing's JSON.
    """
    formats = _formats_of(annotation)
    if len(formats) == 1:
        return next(iter(formats))
    if formats <= _RAW:
        return bytes
    if formats & _RAW:
        raise TypeError(
            f"no single format carries the union {annotation}: bytes are stored as they are, and cannot be "
            "distinguished from the other types. Use a topic for each, or put the bytes into a field of a class"
        )
    return None


_RAW: frozenset[type | None] = frozenset((bytes, bytearray, memoryview))


def _formats_of(annotation: Any) -> set[type | None]:
    """Return the byte formats that values of an annotation have by their own class; None: JSON."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _formats_of(annotation.__origin__)
    if not isinstance(annotation, type):
        meant = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
        if meant is not None:
            return _formats_of(meant)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return {one for arm in typing.get_args(annotation) for one in _formats_of(arm)}
    if typing.get_origin(annotation) is typing.Literal:
        return {_base(cast("type[Any]", type(value))) for value in typing.get_args(annotation)}
    kind = typing.get_origin(annotation) or annotation
    return {_base(cast("type[Any]", kind)) if isinstance(kind, type) else None}


def serde_named(annotation: Any) -> Serde | None:
    """Return the serde in ``Annotated[X, serde]``."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return None
    return next((one for one in annotation.__metadata__ if isinstance(one, Serde)), None)


def typed(serde: Serde, annotation: Any) -> Serde:
    """Return a serde of many types, as that of one."""
    return serde.of(annotation) if isinstance(serde, TypedSerde) else serde


def _of_users(annotation: Any, custom: Mapping[type, Serde]) -> Serde | None:
    """Return the user's serde for a type; for a union the serde of all its types. Raises TypeError if they differ."""
    if _is_key_of(annotation, custom):
        return custom[annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        found = [_of_users(one, custom) for one in typing.get_args(annotation)]
        if all(one is found[0] for one in found):
            return found[0]
        raise TypeError(
            f"no single format carries the union {annotation}: its types have different serdes. Use a topic for each, "
            "or give all of them the same serde"
        )
    kind = _values_of(annotation)
    return None if kind is None else _nearest(kind, custom)


def _is_key_of(annotation: Any, custom: Mapping[type, Serde]) -> bool:
    try:
        return annotation in custom
    except TypeError:  # not hashable: Annotated with a list in it, say
        return False


def _values_of(annotation: Any) -> type | None:
    """Return the type of the values an annotation describes; None when they may be of several."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _values_of(annotation.__origin__)
    if origin is typing.Literal:
        found = {cast("type[Any]", type(value)) for value in typing.get_args(annotation)}
        return found.pop() if len(found) == 1 else None
    kind = origin or annotation
    return cast("type[Any]", kind) if isinstance(kind, type) else None


class Serdes(dict[type, Serde]):
    """Custom serdes by type, and the serde of each topic whose type is declared."""

    def __init__(self, by_type: Mapping[type, Serde] | None = None) -> None:
        super().__init__(by_type or {})
        self.of_topics: dict[str, Serde] = {}
        self._types: dict[str, list[Any]] = {}
        self._is_final: set[str] = set()

    def joined_with(self, by_type: Mapping[type, Serde]) -> Serdes:
        """Return the same topics, with serdes by type that take precedence."""
        made = Serdes({**self, **by_type})
        made.of_topics = self.of_topics
        return made

    def declared_type(self, topic: str) -> Any:
        """The type that all values of a topic are written as; None: its producer functions or the values decide."""
        return self._types[topic][0] if topic in self._is_final else None

    def declare(self, topic: str, annotation: Any, *, is_final: bool) -> None:
        """Write values of ``topic`` as this type. ``is_final``: whatever its producer functions return.

        Without a final type, the topic holds what any of its producer functions returns. Their readers are elsewhere,
        and may each read a part of it: two Structs without tags are one format too. Raises TypeError as `serde_for`
        does.
        """
        if topic in self._is_final and not is_final:
            return
        declared = self._types.setdefault(topic, [])
        if topic in self._is_final and declared != [annotation]:
            raise TypeError(f"topic {topic!r} is declared twice, as {declared[0]} and as {annotation}. Declare it once")
        if is_final:
            self._is_final.add(topic)
            declared.clear()
        if annotation not in declared:
            declared.append(annotation)
        # Bytes are stored as they are whatever is declared. A function that returns them passes on what is serialized.
        written = declared if is_final else [one for one in declared if format_of(one, self) not in _RAW] or [bytes]
        serdes = [serde_for(one, self, only_writes=not is_final) for one in written]
        if len(written) > 1 and any(isinstance(one, SchemaSerde) for one in serdes):
            self.of_topics.pop(topic, None)  # each record names its schema: several may stand in a topic
        elif len(written) == 1:
            self.of_topics[topic] = serdes[0]
        else:
            self.of_topics[topic] = serde_for(_union_of(written), self, only_writes=True)


def encoder_for(value_type: type, topic: str, custom: Mapping[type, Serde] | None = None) -> Encode:
    """How values of this runtime type are written to ``topic``; keys have no declared type."""
    return bind_encoder(serde_of_topic(value_type, topic, custom), topic, value_type)


def serde_of_topic(value_type: type, topic: str, custom: Mapping[type, Serde] | None = None) -> Serde:
    """Return the serde that values of this runtime type are written to ``topic`` with.

    Bytes are stored as they are, whatever is declared: they are taken for a value that is serialized already.
    """
    declared = custom.of_topics.get(topic) if isinstance(custom, Serdes) else None
    if declared is None or _base(value_type) in _RAW:
        return serde_of_values(value_type, custom)
    if isinstance(declared, SchemaSerde) and value_type not in (dict, list):
        # An object of a subclass has its own schema, with more fields, and its record names that schema.
        own = serde_of_values(value_type, custom)
        return own if isinstance(own, SchemaSerde) else declared
    return declared


def likely_cause(serde: Serde, data: bytes) -> str:
    """A sentence about how bytes that ``serde`` could not read were probably written; empty if nothing is known."""
    undeclared = "Declare the topic's type where it is sent: bus.topic(name, value=...)"
    try:
        msgspec.json.decode(data)
        is_json = True
    except (msgspec.DecodeError, UnicodeDecodeError):
        is_json = False
    if isinstance(serde, Json) and not is_json:
        if len(data) == 8 and data[:3] in (b"\0\0\0", b"\xff\xff\xff"):
            return f"It has 8 bytes, as an int is sent to a topic without a declared type. {undeclared}"
        if len(data) > 5 and data[0] == 0:
            return "It begins with a schema id: it was written with a schema registry. Give the bus serde=Avro(...)"
        try:
            is_text = data.decode().isprintable()
        except UnicodeDecodeError:
            is_text = False
        if is_text and data[:1] not in (b"{", b"["):
            return (
                f"It is text without JSON's quotes, as a str is sent to a topic without a declared type. {undeclared}"
            )
    if serde is Long and is_json:
        return "It is JSON: the type that it is sent as is another one than the type that it is read as"
    return ""


def serde_of_values(value_type: type, custom: Mapping[type, Serde] | None = None) -> Serde:
    """Return the serde that values of this runtime type are written with."""
    found = _nearest(value_type, custom)
    if found is not None:
        return typed(found, value_type)
    base = _base(value_type)
    if base is not None:
        return BY_TYPE[base]
    return typed(custom[Others], value_type) if custom and Others in custom else _JSON


def _nearest(kind: type, custom: Mapping[type, Serde] | None) -> Serde | None:
    """Return the user's serde of the type, or of its nearest base."""
    return next((custom[cls] for cls in kind.__mro__ if cls in custom), None) if custom else None


def _base(kind: type) -> type | None:
    """Return the type of `BY_TYPE` that this one is, or derives from."""
    if issubclass(kind, bool):
        return None
    return next((cls for cls in kind.__mro__ if cls in BY_TYPE), None)
