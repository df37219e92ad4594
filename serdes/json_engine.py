"""Decide which library reads an annotation from JSON: pydantic if any part of it is pydantic's, else msgspec.

msgspec fills dataclasses, attrs classes and named tuples field by field, without their ``__init__``. It does not know
pydantic's dataclasses and ``Field`` constraints, and ignores them silently. So the whole annotation is inspected once,
where a serde is made for it: a rule that neither library would apply is an error there, not data in a handler.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec

_PYDANTIC_PACKAGES = ("pydantic", "pydantic_core", "annotated_types")
"""pydantic's own constrained types, such as PositiveInt, are marked with objects of annotated_types."""
_OF_MSGSPEC: tuple[type[Any], ...] = (msgspec.UnsetType, msgspec.Raw)
_META_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")

INT32 = msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)
"""The bounds of Avro's int, by which `serdes.avro.Int32` is marked. The format guarantees them."""


class Survey:
    """The parts of an annotation that decide how it is read and written. Each list holds where a part was found."""

    def __init__(self, annotation: Any, *, only_marks: bool = False) -> None:
        """``only_marks``: of the outermost ``Annotated`` alone, without the type that it marks."""
        self.models: list[str] = []
        """pydantic models: msgspec can have pydantic read such a value where it finds one."""
        self.rules: list[str] = []
        """Other parts of pydantic: dataclasses, constrained types, ``Field`` in ``Annotated`` or as a default."""
        self.msgspec_only: list[str] = []
        """Structs, attrs classes and others that pydantic cannot read."""
        self.metas: list[str] = []
        """Constraints of msgspec.Meta, which pydantic does not check."""
        self.bypassed: list[str] = []
        """Rules that no library runs: a hand-written ``__init__``. Each is a message."""
        self.bypassed_by_msgspec: list[str] = []
        """Rules that pydantic runs and msgspec does not: ``init=False``, attrs' converters. Each is a message."""
        self._seen: set[Any] = set()
        if only_marks:
            for mark in annotation.__metadata__:
                self._mark(mark, "")
        else:
            self._visit(annotation, "")

    @property
    def is_pydantics(self) -> bool:
        """True if pydantic reads and writes the whole annotation.

        pydantic does not check constraints of msgspec.Meta. Next to these, msgspec has it read the models alone.
        """
        return bool(self.rules or (self.models and not self.metas)) and not self.msgspec_only

    def problem(self) -> str:
        """The rule of the type that reading it from JSON would bypass, and what to do; empty if there is none."""
        if self.bypassed:
            return self.bypassed[0]
        if self.is_pydantics:
            if self.metas:
                return (
                    f"{self.metas[0]} has a constraint of msgspec.Meta, and pydantic reads this type and does not check"
                    " it. Write it as pydantic.Field(...)"
                )
            return ""
        if self.rules:
            return (
                f"pydantic's rule of {self.rules[0]} does not run inside {self.msgspec_only[0]}. Make that a dataclass "
                "or a pydantic model, or write the constraint as msgspec.Meta(...)"
            )
        return self.bypassed_by_msgspec[0] if self.bypassed_by_msgspec else ""

    def _visit(self, annotation: Any, where: str) -> None:
        if typing.get_origin(annotation) is typing.Annotated:
            for mark in annotation.__metadata__:
                self._mark(mark, where or repr(mark))
            return self._visit(annotation.__origin__, where)
        if not isinstance(annotation, type):
            meant = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
            if meant is not None:  # a NewType, a ``type`` statement
                if annotation not in self._seen:
                    self._seen.add(annotation)
                    self._visit(meant, where)
                return None
        origin = typing.get_origin(annotation)
        if origin is typing.Literal:
            return None
        for argument in typing.get_args(annotation):
            self._visit(argument, where)
        kind = origin or annotation
        if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) and kind not in self._seen:
            self._seen.add(kind)
            self._class(cast("type[Any]", kind), where)
        return None

    def _mark(self, mark: Any, where: str) -> None:
        if is_pydantics_mark(mark):
            self.rules.append(where)
        elif (
            mark != INT32
            and isinstance(mark, msgspec.Meta)
            and any(getattr(mark, name) is not None for name in _META_CONSTRAINTS)
        ):
            self.metas.append(where)

    def _class(self, kind: type[Any], where: str) -> None:
        name = kind.__name__
        if issubclass(kind, msgspec.Struct):
            self.msgspec_only.append(f"the msgspec.Struct {name}")
            self._defaults(name, ((one.name, one.default) for one in msgspec.structs.fields(kind)))
        elif hasattr(kind, "__get_pydantic_core_schema__") or hasattr(kind, "__pydantic_validator__"):
            place = f"{where} ({name})" if where else name
            (self.models if hasattr(kind, "model_validate") else self.rules).append(place)
            return  # pydantic reads all of it
        elif dataclasses.is_dataclass(kind):
            self._dataclass(kind)
        elif hasattr(kind, "__attrs_attrs__"):
            self._attrs_class(kind)
        elif hasattr(kind, "_fields") and tuple in kind.__mro__:
            if "_fields" not in vars(_maker(kind, "__new__")):
                self.bypassed_by_msgspec.append(_not_run(f"{name}.__new__"))
        elif typing.is_typeddict(kind):
            if sys.version_info < (3, 12) and type(kind).__module__ == "typing":
                self.msgspec_only.append(f"the typing.TypedDict {name} (on Python < 3.12)")
        else:
            if kind in _OF_MSGSPEC:
                self.msgspec_only.append(f"msgspec.{name}")
            return
        if hasattr(kind, "__pydantic_config__"):
            self.rules.append(name)
        for field, hint in hints_of(kind).items():
            self._visit(hint, f"{name}.{field}")

    def _dataclass(self, kind: type[Any]) -> None:
        name = kind.__name__
        maker = _maker(kind, "__init__")
        parameters = vars(maker).get("__dataclass_params__")
        if parameters is None or not parameters.init:
            self.bypassed.append(_not_run(f"{name}.__init__"))
        fields = dataclasses.fields(kind)
        self._defaults(name, ((one.name, one.default) for one in fields))
        self.bypassed_by_msgspec += [_init_false(name, one.name) for one in fields if not one.init]

    def _attrs_class(self, kind: Any) -> None:
        name = kind.__name__
        self.msgspec_only.append(f"the attrs class {name}")
        maker = _maker(kind, "__init__")
        if "__attrs_init__" in vars(maker) or "__attrs_attrs__" not in vars(maker):
            self.bypassed.append(_not_run(f"{name}.__init__"))
        for one in kind.__attrs_attrs__:
            if one.converter is not None:
                self.bypassed_by_msgspec.append(_not_run(f"the converter of {name}.{one.name}"))
            if not one.init:
                self.bypassed_by_msgspec.append(_init_false(name, one.name))

    def _defaults(self, name: str, defaults: Iterator[tuple[str, Any]]) -> None:
        """``cents: int = Field(gt=0)`` is a default to everybody but pydantic."""
        self.rules += [f"{name}.{field}" for field, default in defaults if is_pydantics_mark(default)]


def is_pydantics_mark(mark: Any) -> bool:
    """True for an object by which pydantic constrains or changes a value."""
    kind = cast("type[Any]", mark if isinstance(mark, type) else type(mark))
    return kind.__module__.partition(".")[0] in _PYDANTIC_PACKAGES or hasattr(kind, "__get_pydantic_core_schema__")


def survey_of(annotation: Any) -> Survey:
    """Return the survey of an annotation; remembered where it can be hashed."""
    try:
        return _remembered(annotation)
    except TypeError:  # Annotated with a list or a pydantic Field, say
        return Survey(annotation)


@lru_cache(maxsize=1024)
def _remembered(annotation: Any) -> Survey:
    return Survey(annotation)


def _maker(kind: type[Any], name: str) -> type[Any]:
    """Return the class that a method is inherited from."""
    return next(cls for cls in kind.__mro__ if name in vars(cls))


def hints_of(kind: Any) -> Mapping[str, Any]:
    """Return the annotations of a class's fields; empty if one of them cannot be resolved."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # a name that is not known: the library that reads the type reports it
        return {}


def _not_run(what: str) -> str:
    return f"{what} does not run for what is read from JSON. Move it into __post_init__, or make it a pydantic model"


def _init_false(name: str, field: str) -> str:
    return (
        f"{name}.{field} has init=False, but would be taken from JSON. Make it a property, or make {name} "
        "a pydantic model"
    )
