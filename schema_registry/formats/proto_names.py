"""Checks of a .proto file beyond its grammar: known names, unique numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from schema_registry.formats.errors import InvalidSchema
from schema_registry.formats.proto_model import SCALARS, Enum, Field, File, Message, Reserved

WELL_KNOWN: Final = ("google/protobuf/", "google/type/", "confluent/")
"""Imports that every reader of .proto files brings along; what they define is taken on trust."""


def check_names(file: File, imported: Mapping[str, File]) -> None:
    """Resolves the types of all fields, and refuses what has no meaning. ``imported``: files by the path of import."""
    names = _Names(file, imported)
    for message in file.every_message():
        _check_message(message)
        for field in message.fields:
            names.resolve(field, message.fullname)
    for enum in file.every_enum():
        _check_enum(enum)


class _Names:
    def __init__(self, file: File, imported: Mapping[str, File]) -> None:
        self.kinds: dict[str, bool] = {}
        """Full name -> is it an enum."""
        self.trusted = [path for _, path in file.imports if path.startswith(WELL_KNOWN) and path not in imported]
        self.add(file)
        for _, path in file.imports:
            if path not in imported and path not in self.trusted:
                raise _invalid(
                    f"the import {path!r} is neither a reference of this name nor a well-known file "
                    "(nothing is fetched)",
                    "import",
                )
            if path in imported:
                self.add_imported(path, imported, set())

    def add(self, file: File) -> None:
        own = [(one.fullname, False) for one in file.every_message()] + [
            (one.fullname, True) for one in file.every_enum()
        ]
        for fullname, is_enum in own:
            if fullname in self.kinds:
                raise _invalid(f"{fullname!r} is defined twice", fullname)
            self.kinds[fullname] = is_enum

    def add_imported(self, path: str, imported: Mapping[str, File], seen: set[str]) -> None:
        if path in seen or path not in imported:
            return
        seen.add(path)
        file = imported[path]
        for message in file.every_message():
            self.kinds.setdefault(message.fullname, False)
        for enum in file.every_enum():
            self.kinds.setdefault(enum.fullname, True)
        for kind, further in file.imports:
            if kind == "public":
                self.add_imported(further, imported, seen)

    def resolve(self, field: Field, scope: str) -> None:
        if field.type in SCALARS:
            return
        for candidate in _candidates(field.type, scope):
            if candidate in self.kinds:
                field.target, field.is_enum = candidate, self.kinds[candidate]
                return
        if not self.trusted:
            raise _invalid(
                f"the field {field.name!r} is of the unknown type {field.type!r}: define it, or import it and give "
                "the file as a reference",
                scope,
            )
        field.target = field.type.lstrip(".")


def _candidates(name: str, scope: str) -> Iterable[str]:
    """Full names that a name may mean, from the innermost scope outwards."""
    if name.startswith("."):
        yield name[1:]
        return
    while scope:
        yield f"{scope}.{name}"
        scope = scope.rpartition(".")[0]
    yield name


def _check_message(message: Message) -> None:
    numbers: dict[int, str] = {}
    names: set[str] = set()
    for field in message.fields:
        other = numbers.setdefault(field.number, field.name)
        if other != field.name:
            raise _invalid(f"{other!r} and {field.name!r} both have the number {field.number}", message.fullname)
        if field.name in names:
            raise _invalid(f"two fields are called {field.name!r}", message.fullname)
        names.add(field.name)
        _check_reserved(message.reserved, field.name, field.number, message.fullname)
        if any(first <= field.number <= last for first, last in message.extensions):
            raise _invalid(f"the number of {field.name!r}, {field.number}, is kept for extensions", message.fullname)


def _check_enum(enum: Enum) -> None:
    numbers: dict[int, str] = {}
    alias = any(one.name == "allow_alias" and one.value == "true" for one in enum.options)
    for name, number, _ in enum.values:
        other = numbers.setdefault(number, name)
        if other != name and not alias:
            raise _invalid(f"{other!r} and {name!r} both are {number}; set allow_alias if they shall", enum.fullname)
        _check_reserved(enum.reserved, name, number, enum.fullname)


def _check_reserved(reserved: Reserved, name: str, number: int, where: str) -> None:
    if name in reserved.names or any(first <= number <= last for first, last in reserved.ranges):
        raise _invalid(f"{name!r} with the number {number} is reserved", where)


def _invalid(reason: str, where: str) -> InvalidSchema:
    return InvalidSchema(reason, where, "PROTOBUF")
