"""Kafka's message schemas: a compact text table, read on first use.

The tables (``tables/*.txt``) derive from the JSON message schemas of Apache Kafka 4.3 (Apache License 2.0;
``tests/protocol/schemas.py`` makes them, and checks them against Kafka's jars). A message is a line without indent and
its fields below it, a structure's fields indented under the field that introduces it:

    FetchRequest 1 4-18 12+                  name, API key, versions, the flexible ones among them (KIP-482; - for none)
      replica_id int32 0-14 =-1              name, type, versions, default
      topics []FetchTopic 0+                 an array; its elements' fields follow, indented
        topic_id uuid 13+
      cluster_id string 12+ ?12+ #0 =null    nullable in those versions, a tagged field with tag 0
      *TopicPartitions                       a structure that several fields name by its type

Default defaults are 0, false, "", an empty array, the null UUID, and a structure of defaults.
"""

from __future__ import annotations

from functools import cache
from pkgutil import get_data
from typing import Any, Final, NamedTuple

FORMATS: Final = {
    "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q", "float64": "d", "bool": "?",
    "uuid": "16s",
}  # fmt: skip
"""Types of fixed size, and how `struct` names them."""

ZERO_UUID: Final = bytes(16)
LATEST: Final = 32_767
_INDENT: Final = 2


class Versions(NamedTuple):
    """From ``low`` to ``high``, both included; ``low > high`` is none."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    @classmethod
    def parse(cls, text: str) -> Versions:
        """``3-5``, ``3+``, ``3``, or ``-`` for none."""
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
    """Of the field, or of an array's elements: a key of `FORMATS`, string, bytes, records, or a structure's name."""
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
    """One schema."""

    name: str
    key: int
    """The API key; for records of Kafka's own topics the record's type; -1 where there is none."""
    versions: Versions
    flexible: Versions
    body: Structure
    structures: dict[str, Structure]
    """Every structure inside, by name."""

    def check_version(self, version: int) -> None:
        """Raises ValueError for a version the schema does not have."""
        if version not in self.versions:
            low, high = self.versions
            raise ValueError(f"{self.name} has versions {low} to {high}; version {version} was asked for")


class ApiSchema(NamedTuple):
    """What the tables know of an API: its versions, whether or not they are served."""

    name: str
    key: int
    min_version: int
    max_version: int
    first_flexible_version: int


@cache
def blocks() -> dict[str, tuple[str, ...]]:
    """The lines of every message, by its name."""
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
    """The schema of that name. Raises KeyError when the tables do not have it."""
    lines = blocks()[name]
    _, key, versions, flexible = lines[0].split(" ")
    parser = _Parser(lines[1:])
    body = Structure(name, parser.fields(_INDENT))
    return Message(name, int(key), Versions.parse(versions), Versions.parse(flexible), body, parser.structures)


class _Parser:
    """Fields by their indent."""

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
        """The structure whose fields come next, or, if it stands by itself, those there."""
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
"""Every API of the tables, by key."""
