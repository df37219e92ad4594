"""Good schemas as JSON, by hypothesis."""

from __future__ import annotations

import json
import string
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

NAMES = st.text(string.ascii_letters + "_", min_size=1, max_size=6)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
PROPS = st.just({}) | st.dictionaries(NAMES.map(lambda name: f"x-{name}"), VALUES, max_size=2)
PRIMITIVES: dict[str, Any] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.text(st.characters(max_codepoint=255), max_size=6),
    "string": TEXTS,
}
LOGICAL = (
    ("int", {"logicalType": "date"}),
    ("int", {"logicalType": "time-millis"}),
    ("long", {"logicalType": "time-micros"}),
    ("long", {"logicalType": "timestamp-millis"}),
    ("long", {"logicalType": "local-timestamp-micros"}),
    ("string", {"logicalType": "uuid"}),
    ("bytes", {"logicalType": "decimal", "precision": 9, "scale": 2}),
)


@st.composite
def schemas(draw: st.DrawFn, spaces: tuple[str, ...] = ("shop", "a.b", "")) -> Any:
    """A schema; every named type in it has a name of its own, and is named again now and then."""
    return _Draw(draw, spaces).schema(3)


texts = schemas().map(json.dumps)
texts_in_namespaces = schemas(("shop", "a.b")).map(json.dumps)
"""Inside a namespace a name without one is looked up there first: other parsers look nowhere else, Java does."""


class _Draw:
    def __init__(self, draw: st.DrawFn, spaces: tuple[str, ...]) -> None:
        self._draw = draw
        self._spaces = spaces
        self._count = 0
        self._named: list[tuple[str, Json]] = []

    def schema(self, depth: int, *, in_union: bool = False) -> Any:
        draw = self._draw
        kinds = ["primitive", "primitive", "logical", "known"]
        if depth > 0:
            kinds += ["array", "map", "record", "record", "enum", "fixed"] + ([] if in_union else ["union"])
        match draw(st.sampled_from(kinds)):
            case "array":
                return {"type": "array", "items": self.schema(depth - 1)} | draw(PROPS)
            case "map":
                return {"type": "map", "values": self.schema(depth - 1)} | draw(PROPS)
            case "record":
                return self._record(depth)
            case "enum":
                symbols = draw(st.lists(NAMES, unique=True, min_size=1, max_size=3))
                more = {"default": draw(st.sampled_from(symbols))} if draw(st.booleans()) else {}
                return self._name({"type": "enum", "symbols": symbols} | more)
            case "fixed":
                return self._name({"type": "fixed", "size": draw(st.integers(0, 20))})
            case "union":
                return self._union(depth)
            case "known" if self._named:
                return draw(st.sampled_from(self._named))[0]
            case "logical":
                base, members = draw(st.sampled_from(LOGICAL))
                return {"type": base} | members
            case _:
                name = draw(st.sampled_from(sorted(PRIMITIVES)))
                props = draw(PROPS)
                return {"type": name} | props if props else name

    def _union(self, depth: int) -> list[Any]:
        branches: dict[str, Any] = {}
        for _ in range(self._draw(st.integers(1, 3))):
            known = len(self._named)
            branch = self.schema(depth - 1, in_union=True)
            if _branch_name(branch) in branches:
                del self._named[known:]  # nobody may name what is in no text
            else:
                branches[_branch_name(branch)] = branch
        return list(branches.values())

    def _name(self, members: Json) -> Json:
        draw = self._draw
        self._count += 1
        name, space = f"{draw(NAMES)}{self._count}", draw(st.sampled_from(self._spaces))
        named = {"type": members["type"], "name": name, "namespace": space}
        if draw(st.booleans()):
            named["doc"] = draw(TEXTS)
        if draw(st.booleans()):
            named["aliases"] = [f"{space or 'o'}.Old{name}"]
        named |= members | draw(PROPS)
        self._named.append((f"{space}.{name}" if space else name, named))
        return named

    def _record(self, depth: int) -> Json:
        draw = self._draw
        names = draw(st.lists(NAMES, unique=True, max_size=4))
        fields = [self._field(name, depth) for name in names]
        return self._name({"type": "record", "fields": fields})

    def _field(self, name: str, depth: int) -> Json:
        draw = self._draw
        kind = self.schema(depth - 1)
        field: Json = {"name": name, "type": kind}
        if draw(st.booleans()):
            field["default"] = self.value(kind)
        if draw(st.booleans()):
            field["doc"] = draw(TEXTS)
        if draw(st.booleans()):
            field["order"] = draw(st.sampled_from(("ascending", "descending", "ignore")))
        return field | draw(PROPS)

    def value(self, kind: Any) -> Any:
        """A default: of a union one for its first branch."""
        if isinstance(kind, list):
            return self.value(kind[0])
        if isinstance(kind, str) and kind not in PRIMITIVES:
            kind = dict(self._named)[kind]
        members: Json = kind if isinstance(kind, dict) else {"type": kind}
        match members["type"]:
            case "array":
                return [self.value(members["items"])]
            case "map":
                return {"k": self.value(members["values"])}
            case "record":
                return {one["name"]: self.value(one["type"]) for one in members["fields"]}
            case "enum":
                return members["symbols"][0]
            case "fixed":
                return "x" * members["size"]
            case name:
                return self._draw(PRIMITIVES[name])


def _branch_name(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    space = f"{branch['namespace']}." if branch.get("namespace") else ""
    return space + branch.get("name", branch["type"])
