"""Check whether an Avro schema can read data of another, with the verdicts of Java's ``SchemaCompatibility``.

Findings, their types and their locations are Java's as well, with its peculiarities, because registries return them:

* named types match by their short name, or by an alias of the reader that is the writer's full name;
* logical types and other properties are ignored;
* an enum-typed field without a default, whose enum has a default, is compared with the writer's *record*;
* inside a union the location starts again at the root, and only the union is reported. The reason inside it is
  kept in ``because``, for explanations;
* a pair of schemas is judged once, even if several paths lead to it, and keeps the location of the first path.
"""

from __future__ import annotations

from typing import Final, NamedTuple, cast

from serdes.avro.resolve import fields_for, is_promoted, kind_of, same_name
from serdes.avro.schema import Array, Enum, Field, Fixed, Map, Named, Primitive, Record, Schema, Union

MAX_DEPTH: Final = 120
MAX_STEPS: Final = 500_000
"""About a second. A new pair of types counts as ten, a pair seen before as one."""
MAX_FINDINGS: Final = 1_000


Steps = tuple["Steps", str] | None
"""A way, its last step first: making one longer copies nothing."""


class Incompatibility(NamedTuple):
    """One thing the reader cannot read."""

    rule: str
    reader: Schema
    writer: Schema
    detail: str
    """Java's message: the field's name, the missing symbols, ..."""
    location: Steps
    """Java's location; the first step is the root's."""
    trail: Steps
    """The fields that lead here from the top, for people."""
    because: tuple[Incompatibility, ...] = ()
    """The reason inside a union branch, which Java drops."""

    @property
    def path(self) -> str:
        """A JSON pointer, written as Java writes it: the root is ``/``."""
        return "/" + "/".join(step.replace("~", "~0").replace("/", "~1") for step in _walked(self.location)[1:])

    @property
    def where(self) -> str:
        """The place for people, from the top: ``Flight.legs[].origin``."""
        return "".join(_walked(self.trail))


def _walked(steps: Steps) -> list[str]:
    walked: list[str] = []
    while steps is not None:
        steps, step = steps
        walked.append(step)
    return walked[::-1]


class Unanswerable(Exception):
    """The comparison cannot be made; a registry refuses the schema with this text."""


def incompatibilities(reader: Schema, writer: Schema) -> list[Incompatibility]:
    """Return why data written with ``writer`` may be unreadable with ``reader``; empty if all of it can be read.

    Raises ``Unanswerable`` where Java throws, and where two schemas are made to be slow to compare.
    """
    return list(_Comparison(reader).compare("", reader, writer))


Findings = tuple[Incompatibility, ...]
_NONE: Final[Findings] = ()


class _Comparison:
    """The memory of one comparison: pairs judged, and the way to where it is."""

    def __init__(self, reader: Schema) -> None:
        self.judged: dict[tuple[int, int], Findings] = {}
        self.location: Steps = None
        self.trail: Steps = (None, reader.name if isinstance(reader, Named) else reader.type)
        self.depth = 0
        self.steps = 0

    def compare(self, step: str, reader: Schema, writer: Schema, trail: str = "") -> Findings:
        kind = reader.type
        if kind == writer.type and isinstance(reader, Primitive):
            return _NONE
        self.steps += 1
        pair = (id(reader), id(writer))
        known = self.judged.get(pair)
        if known is not None:
            return known
        self.judged[pair] = _NONE  # a pair inside itself fits, unless the outside does not
        self.steps += 9
        if self.depth >= MAX_DEPTH:
            raise Unanswerable(f"the schemas are too deep to be compared (at most {MAX_DEPTH} levels)")
        if self.steps > MAX_STEPS:
            raise Unanswerable(f"the schemas have too many pairs of types to be compared ({len(self.judged):,} so far)")
        self.depth += 1
        location, before = self.location, self.trail
        self.location = (location, step)
        if trail:
            self.trail = (before, trail)
        found = self.judged[pair] = self._judge(kind_of(reader), reader, writer)[:MAX_FINDINGS]
        self.location, self.trail = location, before
        self.depth -= 1
        return found

    def _judge(self, kind: str, reader: Schema, writer: Schema) -> Findings:
        writer_kind = kind_of(writer)
        if kind == writer_kind:
            return self._same_kind(kind, reader, writer)
        if isinstance(writer, Union):
            found: list[Incompatibility] = []
            for index, branch in enumerate(writer.branches):
                found += self.compare(str(index), reader, branch)
            return tuple(found)
        if isinstance(reader, Union):
            return self._one_branch_reads(reader, writer)
        if is_promoted(writer, reader):
            return _NONE
        detail = f"reader type: {kind.upper()} not compatible with writer type: {writer_kind.upper()}"
        return self._finding("TYPE_MISMATCH", reader, writer, detail)

    def _same_kind(self, kind: str, reader: Schema, writer: Schema) -> Findings:
        match kind:
            case "record":
                return self._names(reader, writer) + self._fields(cast(Record, reader), cast(Record, writer))
            case "enum":
                return self._names(reader, writer) + self._symbols(cast(Enum, reader), cast(Enum, writer))
            case "fixed":
                return self._names(reader, writer) + self._size(cast(Fixed, reader), cast(Fixed, writer))
            case "array":
                return self.compare("items", cast(Array, reader).items, cast(Array, writer).items, "[]")
            case "map":
                return self.compare("values", cast(Map, reader).values, cast(Map, writer).values, "{}")
            case "union":
                return self._every_branch_is_read(cast(Union, reader), cast(Union, writer))
            case _:
                return _NONE

    def _every_branch_is_read(self, reader: Union, writer: Union) -> Findings:
        found: list[Incompatibility] = []
        for index, branch in enumerate(writer.branches):
            because = self._afresh(reader, branch)
            if because:
                # Two unions report the branch itself; the inner "no branch fits" adds nothing to it.
                reasons = because[0].because if because[0].rule == "MISSING_UNION_BRANCH" else because
                found += self._finding(
                    "MISSING_UNION_BRANCH", reader, writer, _lacking(branch), str(index), because=reasons
                )
        return tuple(found)

    def _one_branch_reads(self, reader: Union, writer: Schema) -> Findings:
        nearest: Findings = _NONE
        for branch in reader.branches:
            because = self._afresh(branch, writer)
            if not because:
                return _NONE
            if branch.type == writer.type and (not nearest or same_name(writer, branch)):
                nearest = because
        return self._finding("MISSING_UNION_BRANCH", reader, writer, _lacking(writer), because=nearest)

    def _afresh(self, reader: Schema, writer: Schema) -> Findings:
        """Compare with an empty location, as Java does for the branches of a reader's union."""
        outside, self.location = self.location, None
        found = self.compare("", reader, writer)
        self.location = outside
        return found

    def _names(self, reader: Schema, writer: Schema) -> Findings:
        if same_name(writer, reader):
            return _NONE
        return self._finding("NAME_MISMATCH", reader, writer, f"expected: {writer.fullname}", "name")

    def _size(self, reader: Fixed, writer: Fixed) -> Findings:
        if reader.size == writer.size:
            return _NONE
        detail = f"expected: {writer.size}, found: {reader.size}"
        return self._finding("FIXED_SIZE_MISMATCH", reader, writer, detail, "size")

    def _symbols(self, reader: Enum, writer: Enum) -> Findings:
        missing = set(writer.symbols).difference(reader.symbols)
        if not missing or (reader.default is not None and reader.default in reader.symbols):
            return _NONE
        detail = f"[{', '.join(sorted(missing))}]"
        return self._finding("MISSING_ENUM_SYMBOLS", reader, writer, detail, "symbols")

    def _fields(self, reader: Record, writer: Record) -> Findings:
        found: list[Incompatibility] = []
        outside = self.location
        inside: Steps = (outside, "fields")
        for field in reader.fields:
            source = _writer_field(field, writer)
            if source is not None:
                inner = source.schema
                if inner.type == field.schema.type and isinstance(inner, Primitive):
                    continue
            elif field.has_default:
                continue
            elif isinstance(field.schema, Enum) and field.schema.default is not None:
                inner = writer
            else:
                inner = None
            self.location = (inside, str(field.position))
            if inner is None:
                found += self._finding("READER_FIELD_MISSING_DEFAULT_VALUE", reader, writer, field.name)
            else:
                found += self.compare("type", field.schema, inner, "." + field.name)
        self.location = outside
        return tuple(found)

    def _finding(
        self, rule: str, reader: Schema, writer: Schema, detail: str, step: str = "", because: Findings = _NONE
    ) -> Findings:
        location = (self.location, step) if step else self.location
        return (Incompatibility(rule, reader, writer, detail, location, self.trail, because[:10]),)


def _lacking(branch: Schema) -> str:
    return f"reader union lacking writer type: {kind_of(branch).upper()}"


def _writer_field(field: Field, writer: Record) -> Field | None:
    """Return the field that was written for a reader's field."""
    if not field.aliases:
        return writer.field(field.name)
    matching = fields_for(field, writer)
    if len(matching) > 1:
        from serdes.avro.text import to_text

        raise Unanswerable(
            f"Reader record field {field.name} type:{kind_of(field.schema).upper()} pos:{field.position} "
            f"matches multiple fields in writer record schema {to_text(writer)}"
        )
    return matching[0] if matching else None
