"""The line of a field in the source, for reports."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schema_registry.tools.problems import Place

_STEP = re.compile(r"\[\]|\{\}|\(.*?\)|<.*?>")
"""Suffixes of a name for the items of an array, the values of a map, a branch of a union."""


def place_of_class(kind: Any) -> Place | None:
    """Return the line of ``class``; None for what is written nowhere."""
    try:
        file = inspect.getsourcefile(kind)
        _, line = inspect.getsourcelines(kind)
    except (TypeError, OSError):
        return None
    return None if file is None else Place(relative(file), line)


def place_of_field(kind: Any, where: str) -> Place | None:
    """The line of a field named as in ``Flight.legs[].origin``, or of the last class on the way that is found."""
    if kind is None:
        return None
    names = [name for name in (_STEP.sub("", part) for part in where.split(".")) if name]
    current, place = kind, place_of_class(kind)
    for name in names[1:]:
        owner = next((each for each in classes_in(current) if name in _own_fields(each)), None)
        if owner is None:
            break
        place = _line_of(owner, name) or place_of_class(owner) or place
        current = _own_fields(owner)[name]
    return place


def place_in_file(file: str, where: str) -> Place | None:
    """Return the line of a schema's file that names a field."""
    name = _STEP.sub("", where.rpartition(".")[2])
    named = re.compile(rf"""["']?name["']?\s*:\s*["']{re.escape(name)}["']""")
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    return next((Place(file, number) for number, line in enumerate(lines, 1) if named.search(line)), None)


def classes_in(annotation: Any) -> Iterator[type]:
    """Yield the classes that an annotation speaks of: ``list[Leg] | None`` of Leg."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        yield from annotation.__mro__
    for argument in typing.get_args(annotation):
        yield from classes_in(argument)


def _own_fields(kind: type) -> dict[str, Any]:
    """Return the fields defined in the class itself, with their types as far as they can be determined."""
    own: dict[str, Any] = vars(kind).get("__annotations__", {})
    try:
        hints = typing.get_type_hints(kind)
    except Exception:  # a name that only a type checker sees: the field's line is found without it
        hints = {}
    return {name: hints.get(name, annotation) for name, annotation in own.items()}


def _line_of(kind: type, field: str) -> Place | None:
    try:
        file = inspect.getsourcefile(kind)
        lines, first = inspect.getsourcelines(kind)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (TypeError, OSError, SyntaxError):
        return None
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == field:
            return None if file is None else Place(relative(file), first + node.lineno - 1)
    return None


def relative(file: str) -> str:
    """Return a path relative to the project's root."""
    path = Path(file)
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()
