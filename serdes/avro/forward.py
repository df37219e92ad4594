"""Names that are used before their definition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from serdes.avro import limits
from serdes.avro.checks import fits
from serdes.avro.places import Path, bad_default, error
from serdes.avro.schema import MISSING, AvroSchemaError, Named, Record, Schema, Union


class Forward(Schema):
    """A name that is not defined yet. Java holds it for an empty record until it knows better."""

    __slots__ = ("name", "path", "target")

    def __init__(self, name: str, path: Path) -> None:
        super().__init__("record")
        self.name = name
        self.path = path
        self.target: Named | None = None

    @property
    def fullname(self) -> str:
        return f"?{id(self)}"  # no other branch of a union is called so

    def resolved(self) -> Named:
        return cast("Named", self.target)


def undefined(forward: Forward) -> AvroSchemaError:
    return error(
        forward.path, f"{forward.name} is not defined; define it in this text, or pass its text as a reference"
    )


class _Visit:
    """A schema on the way through its children."""

    __slots__ = ("child", "children", "schema", "visited")

    def __init__(self, schema: Schema, children: tuple[Schema, ...], visited: set[int]) -> None:
        self.schema = schema
        self.children = children
        self.visited = visited
        self.child: int | None = None


class Finishing:
    """Check defaults after all names are known.

    Java completes inner types before outer types, and cannot check a default against an incomplete record, such as a
    record whose default contains the record. The order is that of Java, because it decides which defaults are refused.
    """

    def __init__(self) -> None:
        self._begun: set[int] = set()
        self._finished: set[int] = set()
        self._at: dict[int, int] = {}
        """Which child of each schema is being visited."""
        self._stack: list[_Visit] = []  # of our own: types may name each other in chains longer than Python's stack

    def run(self, schemas: Iterable[Schema]) -> None:
        for schema in schemas:
            self._enter(schema, set())
            while self._stack:
                self._step(self._stack[-1])

    def _enter(self, schema: Schema, visited: set[int]) -> None:
        """Walk a name that leads to a new type separately; that walk visits incomplete types again."""
        if isinstance(schema, Forward):
            schema, visited = schema.resolved(), set()
            if id(schema) in self._begun:
                return
        if id(schema) in visited or id(schema) in self._finished:
            return
        visited.add(id(schema))
        self._begun.add(id(schema))
        self._at.setdefault(id(schema), 0)
        children = limits.inner(schema)
        self._stack.append(_Visit(schema, children[::-1] if isinstance(schema, Union) else children, visited))

    def _step(self, visit: _Visit) -> None:
        schema = visit.schema
        at = self._at[id(schema)]
        if visit.child is not None:  # it has been visited
            at = self._at[id(schema)] = max(at, visit.child + 1)
            visit.child = None
        if at < len(visit.children):
            visit.child = at
            self._enter(visit.children[at], visit.visited)
            return
        self._stack.pop()
        if isinstance(schema, Record) and id(schema) not in self._finished:
            self._finish(schema)

    def _finish(self, record: Record) -> None:
        for field in record.fields:
            try:
                valid = field.default is MISSING or fits(field.schema, field.default, self._look)
            except _Unfinished:
                reason = f"the default of field {field.name} of {record.fullname} holds a record that holds it"
                raise error(None, f"{reason}; use null or []") from None
            if not valid:
                raise bad_default(None, record, field.name, field.schema, field.default)
        self._finished.add(id(record))

    def _look(self, schema: Schema) -> Schema:
        if isinstance(schema, Forward):
            schema = schema.resolved()
        if isinstance(schema, Record) and id(schema) not in self._finished:
            raise _Unfinished
        return schema


class _Unfinished(Exception):
    """Raised if a default must be checked against a record that is not complete yet."""
