"""Kafka's message schemas: a compact text table, parsed on first use.

The tables (``tables/*.txt``) are derived from the JSON message schemas of Apache Kafka 4.3 (Apache License 2.0;
``tests/protocol/schemas.py`` generates them, and checks them against Kafka's jars). A message is a line without indent,
followed by its fields; a structure's fields are indented under the field that introduces it:

    FetchRequest 1 4-18 12+                  name, API key, versions, the flexible ones among them (KIP-482; - for none)
      replica_id int32 0-14 =-1              name, type, versions, default
      topics []FetchTopic 0+                 an array; its elements' fields follow, indented
        topic_id uuid 13+
      cluster_id string 12+ ?12+ #0 =null    nullable in those versions, a tagged field with tag 0
      *TopicPartitions                       a structure that several fields name by its type

Without an explicit default, it is 0, false, "", an empty array, the null UUID, or a structure of defaults.
"""

from __future__ import annotations

from functools import cache
from pkgutil import get_data
from typing import Any, Final, NamedTuple

FORMATS: Final = {
    "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "float64": "d", "bool": "?",
    "uuid": "16s",
}  # fmt: skip
"""The `struct` formats of types with a fixed size."""

ZERO_UUID: Final = bytes(16)
LATEST: Final = 32_767
_INDENT: Final = 2


class Versions(NamedTuple):
    """A range of versions, both ends included; ``low > high`` is empty."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse ``3-5``, ``3+``, ``3``, or ``-`` for none."""
        if text == "-":
            return NO_VERSIONS
        if text.endswith("+"):
            return cls(int(text[:-1]), LATEST)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))


NO_VERSIONS: Final = Versions(0, -1)


class Field(NamedTuple):
    """A field over all versions."""

    name: str
    type: str
    """The type of the field, or of an array's elements: a key of `FORMATS`, string, bytes, records, or a structure's
    name."""
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    default: Any
    """None, a number, a bool, text or bytes; an empty list for arrays; ``...`` for a structure of defaults."""
    structure: Structure | None


class Structure(NamedTuple):
    """Fields in the order in which they are written."""

    name: str
    fields: tuple[Field, ...]


class Message(NamedTuple):
    """The schema of a message."""

    name: str
    key: int
    """The API key; for records of Kafka's internal topics the record's type; otherwise -1."""
    versions: Versions
    flexible: Versions
    body: Structure
    structures: dict[str, Structure]
    """Every nested structure, by name."""

    def check_version(self, version: int) -> None:
        """Raise ValueError for a version that the schema does not have."""
        if version not in self.versions:
            low, high = self.versions
            raise ValueError(f"{self.name} has versions {low} to {high}; version {version} was asked for")


class ApiSchema(NamedTuple):
    """The versions of an API in the tables, whether or not they are served."""

    name: str
    key: int
    min_version: int
    max_version: int
    first_flexible_version: int


@cache
def blocks() -> dict[str, tuple[str, ...]]:
    """Return the lines of every message, by name."""
    found: dict[str, tuple[str, ...]] = {}
    for table in ("clients", "groups", "admin", "security", "log"):
        text = get_data("eventbus.protocol", f"tables/{table}.txt") or b""
        for block in text.decode().split("\n\n"):
            if not block.startswith("#"):
                lines = block.strip().split("\n")
                found[lines[0].partition(" ")[0]] = tuple(lines)
    return found


@cache
def message(name: str) -> Message:
    """Return the schema with this name. Raises KeyError if it is not in the tables."""
    lines = blocks()[name]
    _, key, versions, flexible = lines[0].split(" ")
    parser = _Parser(lines[1:])
    body = Structure(name, parser.fields(_INDENT))
    return Message(name, int(key), Versions.parse(versions), Versions.parse(flexible), body, parser.structures)


class _Parser:
    """Parses fields by their indent."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        self.structures: dict[str, Structure] = {}
        self._lines = lines
        self._at = 0
        self._shared = {line[3:]: at + 1 for at, line in enumerate(lines) if line.startswith("  *")}

    def fields(self, indent: int) -> tuple[Field, ...]:
        found: list[Field] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            depth = len(line) - len(line.lstrip(" "))
            if depth < indent or line[depth] == "*":
                break
            self._at += 1
            found.append(self._field(line.strip(), indent))
        return tuple(found)

    def _structure(self, name: str, indent: int) -> Structure:
        """Return the structure whose fields come next, or that is defined separately."""
        if name not in self.structures:
            here = self._at
            if name in self._shared:
                self._at = self._shared[name]
                self.structures[name] = Structure(name, self.fields(2 * _INDENT))
                self._at = here
            else:
                self.structures[name] = Structure(name, self.fields(indent + _INDENT))
        return self.structures[name]

    def _field(self, line: str, indent: int) -> Field:
        name, kind, versions, *rest = line.split(" ")
        is_array = kind.startswith("[]")
        kind = kind.removeprefix("[]")
        nullable, tag, default = NO_VERSIONS, None, None
        for word in rest:
            match word[0]:
                case "?":
                    nullable = Versions.parse(word[1:])
                case "#":
                    tag = int(word[1:])
                case _:
                    default = word[1:]
        structure = self._structure(kind, indent) if kind[0].isupper() else None
        value = _default("[]" if is_array else kind, default)
        return Field(name, kind, is_array, Versions.parse(versions), nullable, tag, value, structure)


def _default(kind: str, text: str | None) -> Any:
    if text == "null":
        return None
    if kind == "bool":
        return text == "true"
    if kind == "float64":
        return float(text or 0)
    if kind == "uuid":
        return ZERO_UUID
    if kind in FORMATS:
        return int(text or "0", 0)
    if kind == "string":
        return text or ""
    if kind == "records":
        return None
    if kind == "bytes":
        return b""
    return [] if kind == "[]" else ...


def _api_keys() -> dict[int, ApiSchema]:
    apis: dict[int, ApiSchema] = {}
    for name, lines in blocks().items():
        if name.endswith("Request"):
            _, key, versions, flexible = lines[0].split(" ")
            low, high = Versions.parse(versions)
            first_flexible = LATEST if flexible == "-" else Versions.parse(flexible).low
            apis[int(key)] = ApiSchema(name.removesuffix("Request"), int(key), low, high, first_flexible)
    return dict(sorted(apis.items()))


API_KEYS: Final = _api_keys()
"""Every API in the tables, by key."""
