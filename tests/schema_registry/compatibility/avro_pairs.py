"""Random pairs of Avro schemas: one, and the same with a few random changes, so that both verdicts are frequent.

A schema is a tree of `Node`; a named type used twice is one node in two places, also inside itself. `text` writes the
first place as the definition and every other as its name.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMES = ("A", "B", "C", "D", "E", "F")
NAMESPACES = ("x", "y.z")
SYMBOLS = ("S0", "S1", "S2", "S3", "S4")
FIELDS = ("a", "b", "c", "d", "e", "f", "g")
PROMOTED = {"int": "long", "long": "double", "float": "double", "bytes": "string", "string": "bytes"}


class ImpossibleError(Exception):
    """The tree is no valid schema (two types of one name, ...): make another."""


@dataclass(eq=False)
class FieldNode:
    name: str
    type: Node
    has_default: bool = False
    aliases: list[str] = field(default_factory=list[str])


@dataclass(eq=False)
class Node:
    kind: str
    name: str = ""
    namespace: str = ""
    aliases: list[str] = field(default_factory=list[str])
    inner: list[Node] = field(default_factory=list["Node"])
    """Branches of a union, items of an array, values of a map."""
    fields: list[FieldNode] = field(default_factory=list[FieldNode])
    symbols: list[str] = field(default_factory=list[str])
    default: str | None = None
    size: int = 0
    logical: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def fullname(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else self.name or self.kind


def pairs(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """(reader, writer) as texts, no two alike."""
    chance = random.Random(seed)
    known: set[tuple[str, str]] = set()
    while len(known) < count:
        try:
            one = Maker(chance).schema()
            other = copy.deepcopy(one)
            for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 5))):
                other = changed(chance, other)
            if chance.random() < 0.03:
                other = Maker(chance).schema()
            reader, writer = (one, other) if chance.random() < 0.5 else (other, one)
            both = text(reader), text(writer)
        except ImpossibleError:
            continue
        if max(map(len, both)) <= 2500 and both not in known:
            known.add(both)
            yield both


class Maker:
    """Makes one schema: the names it has used, so that types can be used again."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.named: list[Node] = []
        self.free = [(ns, name) for ns in NAMESPACES for name in NAMES]
        self.nameless = chance.random() < 0.2
        chance.shuffle(self.free)

    def schema(self) -> Node:
        kinds = ("record",) * 12 + ("union", "enum", "fixed", "array", "map", "primitive")
        return self.node(0, self.chance.choice(kinds))

    def node(self, depth: int, kind: str | None = None) -> Node:
        chance = self.chance
        if kind is None:
            if self.named and chance.random() < 0.2:
                return chance.choice(self.named)
            deep = ("record", "record", "union", "union", "union", "array", "map") if depth < 4 else ()
            kind = chance.choice(("primitive",) * 7 + ("enum", "enum", "fixed") + deep)
        match kind:
            case "primitive":
                return self.primitive()
            case "array" | "map":
                return Node(kind, inner=[self.node(depth + 1)])
            case "union":
                return self.union(depth)
            case _:
                return self.a_named(kind, depth)

    def primitive(self) -> Node:
        node = Node(self.chance.choice(PRIMITIVES))
        if self.chance.random() < 0.15:
            node.logical = logical(self.chance, node.kind)
        return node

    def union(self, depth: int) -> Node:
        branches: dict[str, Node] = {}
        if self.chance.random() < 0.5:
            branches["null"] = Node("null")
        for _ in range(self.chance.randrange(1, 4)):
            branch = self.node(depth + 1)
            if branch.kind != "union":
                branches.setdefault(branch.fullname, branch)
        order = list(branches.values()) or [Node("string")]
        self.chance.shuffle(order)
        return Node("union", inner=order)

    def a_named(self, kind: str, depth: int) -> Node:
        chance = self.chance
        if not self.free:
            raise ImpossibleError
        namespace, name = self.free.pop()
        if self.nameless:
            namespace = ""
            self.free = [(ns, n) for ns, n in self.free if n != name]
        node = Node(kind, name=name, namespace=namespace)
        if kind == "record" and chance.random() < 0.03:
            node.kind = "error"
        if chance.random() < 0.1:
            node.aliases = [alias(chance)]
        match kind:
            case "enum":
                node.symbols = chance.sample(SYMBOLS, chance.randrange(1, 5))
                node.default = chance.choice(node.symbols) if chance.random() < 0.35 else None
            case "fixed":
                node.size = chance.choice((1, 2, 4, 16))
            case _:
                self.named.append(node)  # before its fields: it may hold itself
                for name in chance.sample(FIELDS, chance.randrange(0 if depth else 1, 5)):
                    node.fields.append(a_field(chance, name, self.node(depth + 1)))
                return node
        self.named.append(node)
        return node


def a_field(chance: random.Random, name: str, type: Node) -> FieldNode:
    made = FieldNode(name, type, chance.random() < 0.4)
    if chance.random() < 0.1:
        made.aliases = [chance.choice(FIELDS)]
    return made


def alias(chance: random.Random) -> str:
    return f"{chance.choice(NAMESPACES)}.{chance.choice(NAMES)}" if chance.random() < 0.7 else chance.choice(NAMES)


def logical(chance: random.Random, kind: str) -> dict[str, Any]:
    match kind:
        case "bytes":
            return {"logicalType": "decimal", "precision": chance.choice((4, 9)), "scale": chance.choice((0, 2))}
        case "int":
            return {"logicalType": chance.choice(("date", "time-millis"))}
        case "long":
            return {"logicalType": chance.choice(("timestamp-millis", "timestamp-micros", "time-micros"))}
        case "string":
            return {"logicalType": "uuid"}
        case _:
            return {"unit": chance.choice(("m", "km"))}


def every(root: Node) -> list[Node]:
    found: dict[int, Node] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in found:
            found[id(node)] = node
            waiting += node.inner + [one.type for one in node.fields]
    return list(found.values())


def changed(chance: random.Random, root: Node) -> Node:
    """One random change somewhere. May make an impossible tree; writing it tells."""
    node = chance.choice(every(root))
    match node.kind:
        case "record" | "error" if chance.random() < 0.8:
            _change_fields(chance, node, root)
        case "enum" if chance.random() < 0.7:
            node.symbols = chance.sample(SYMBOLS, chance.randrange(1, 5))
            node.default = chance.choice(node.symbols) if chance.random() < 0.4 else None
        case "fixed" if chance.random() < 0.5:
            node.size = chance.choice((1, 2, 4, 16))
        case "union":
            _change_union(chance, node)
        case "array" | "map" if chance.random() < 0.5:
            node.kind = "map" if node.kind == "array" else "array"
        case kind if kind in PROMOTED and chance.random() < 0.6:
            node.kind, node.logical = PROMOTED[kind], {}
        case kind if kind in PRIMITIVES:
            node.kind, node.logical = chance.choice(PRIMITIVES), {}
        case _:
            _change_name(chance, node)
    if chance.random() < 0.05 and root.kind != "union":
        return Node("union", inner=[Node("null"), root])
    return root


def _change_name(chance: random.Random, node: Node) -> None:
    before = node.fullname
    if not node.name:
        return
    if chance.random() < 0.5:
        node.namespace = chance.choice(NAMESPACES) if node.namespace else ""
    if chance.random() < 0.6:
        node.name = chance.choice(NAMES)
    if chance.random() < 0.4:
        node.aliases = [before]


def _change_fields(chance: random.Random, node: Node, root: Node) -> None:
    fields = node.fields
    unused = [name for name in FIELDS if name not in {one.name for one in fields}]
    match chance.choice(("add", "add", "drop", "rename", "default", "alias", "type", "wrap", "order")):
        case "add" if unused:
            some = [found for found in every(root) if found.kind != "union"]
            type = Node(chance.choice(PRIMITIVES)) if chance.random() < 0.6 else chance.choice(some)
            fields.insert(chance.randrange(len(fields) + 1), a_field(chance, chance.choice(unused), type))
        case "drop" if fields:
            fields.pop(chance.randrange(len(fields)))
        case "rename" if fields and unused:
            one = chance.choice(fields)
            before, one.name = one.name, chance.choice(unused)
            if chance.random() < 0.5:
                one.aliases = [before]
        case "default" if fields:
            one = chance.choice(fields)
            one.has_default = not one.has_default
        case "alias" if fields:
            chance.choice(fields).aliases = chance.sample(FIELDS, chance.choice((1, 1, 2)))
        case "type" if fields:
            chance.choice(fields).type = Node(chance.choice(PRIMITIVES))
        case "wrap" if fields:
            one = chance.choice(fields)
            inner = [Node("null"), one.type]
            chance.shuffle(inner)
            one.type = Node("union", inner=inner)
        case _:
            chance.shuffle(fields)


def _change_union(chance: random.Random, node: Node) -> None:
    match chance.choice(("add", "drop", "order")):
        case "add":
            node.inner.insert(chance.randrange(len(node.inner) + 1), Node(chance.choice(PRIMITIVES)))
        case "drop" if len(node.inner) > 1:
            node.inner.pop(chance.randrange(len(node.inner)))
        case _:
            chance.shuffle(node.inner)


def text(root: Node) -> str:
    return json.dumps(_Text().json(root), separators=(",", ":"))


class _Text:
    def __init__(self) -> None:
        self.defined: dict[str, Node] = {}
        self.written: set[Node] = set()

    def json(self, node: Node) -> Any:
        match node.kind:
            case "array":
                return {"type": "array", "items": self.json(node.inner[0])}
            case "map":
                return {"type": "map", "values": self.json(node.inner[0])}
            case "union":
                kinds = [branch.fullname for branch in node.inner]
                if "union" in kinds or len(set(kinds)) < len(kinds):
                    raise ImpossibleError
                return [self.json(branch) for branch in node.inner]
            case kind if not node.name:
                return {"type": kind, **node.logical} if node.logical else kind
            case _:
                return self.a_named(node)

    def a_named(self, node: Node) -> Any:
        known = self.defined.setdefault(node.fullname, node)
        if known is not node:
            raise ImpossibleError
        if node in self.written:
            return node.fullname
        self.written.add(node)
        made: dict[str, Any] = {"type": node.kind, "name": node.name}
        if node.namespace:
            made["namespace"] = node.namespace
        if node.aliases:
            made["aliases"] = node.aliases
        if node.kind == "enum":
            made["symbols"] = node.symbols
            if node.default is not None:
                made["default"] = node.default
        elif node.kind == "fixed":
            made["size"] = node.size
        else:
            made["fields"] = [self.a_field(one) for one in node.fields]
        return made

    def a_field(self, one: FieldNode) -> Any:
        made: dict[str, Any] = {"name": one.name, "type": self.json(one.type)}
        if one.has_default:
            made["default"] = _default(one.type, 0)
        if one.aliases:
            made["aliases"] = one.aliases
        return made


def _default(node: Node, depth: int) -> Any:
    if depth > 6:
        raise ImpossibleError
    match node.kind:
        case "null":
            return None
        case "boolean":
            return False
        case "int" | "long":
            return 0
        case "float" | "double":
            return 0.5
        case "bytes" | "string":
            return ""
        case "array":
            return []
        case "map":
            return {}
        case "union":
            return _default(node.inner[0], depth + 1)
        case "enum":
            return node.symbols[0]
        case "fixed":
            return "\x00" * node.size
        case _:
            return {one.name: _default(one.type, depth + 1) for one in node.fields}
