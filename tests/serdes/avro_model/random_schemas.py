"""Random schema texts, most of them good, some with one thing wrong."""

from __future__ import annotations

import json
import random
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMES = ("A", "B", "C", "D", "n.A", "n.B", "m.n.C", "E", "F", "record", "int2", "_x")
LOGICAL = (
    "date", "time-millis", "time-micros", "timestamp-millis", "timestamp-micros", "uuid", "decimal", "duration", "odd",
)  # fmt: skip
TEXTS = ("", "a", "b", "é", '"\\', "\x01\x1f", "1", "NaN", "\u00ff", "😀", "A", "x y")
NUMBERS = (0, 1, -1, 7, 2**31 - 1, 2**31, -(2**31) - 1, 2**63, 0.5, 1.0, -0.0, 1e-7, 1e21, 3.4e38, 123456.789)


class Texts:
    """Give it a seed; each call of `text` is another schema."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._names: list[str] = []

    def question(self) -> dict[str, Any]:
        """A text, now and then with referenced texts and a registry's names."""
        chance = self._chance
        found: dict[str, Any] = {"text": self.text()}
        if chance.random() < 0.3:
            found["references"] = [self.text() for _ in range(chance.choice((1, 2)))]
        if chance.random() < 0.3:
            found["names"] = "ascii"
        if chance.random() < 0.2:
            found["validate_defaults"] = False
        return found

    def text(self) -> str:
        self._names = []
        schema = self.schema(self._chance.choice((1, 2, 3, 4)))
        for _ in range(self._chance.choice((0, 0, 1, 1, 2))):
            schema = self._spoiled(schema)
        return json.dumps(schema)

    def schema(self, depth: int) -> Any:
        chance = self._chance
        kind = chance.random()
        if depth == 0 or kind < 0.15:
            return self._leaf()
        if kind < 0.25:
            return {"type": "array", "items": self.schema(depth - 1)} | self._extra()
        if kind < 0.35:
            return {"type": "map", "values": self.schema(depth - 1)} | self._extra()
        if kind < 0.5:
            return [self.schema(depth - 1) for _ in range(chance.randrange(4))]
        if kind < 0.55:
            symbols = chance.sample(("a", "b", "A", "Z1"), chance.randrange(5))
            enum = self._named("enum", symbols=symbols)
            return enum | ({"default": chance.choice(symbols)} if symbols and chance.random() < 0.3 else {})
        if kind < 0.6:
            return self._named("fixed", size=chance.choice((0, 1, 4, 12, 16))) | self._logical()
        record = self._named(chance.choice(("record", "record", "record", "error")))
        record["fields"] = [self._field(name, depth) for name in chance.sample("abcd", chance.randrange(5))]
        return record

    def value(self, schema: Any, depth: int = 4) -> Any:
        """A value that mostly fits."""
        chance = self._chance
        if depth == 0 or chance.random() < 0.04:
            return chance.choice((None, True, *TEXTS, *NUMBERS, [], {}))
        if isinstance(schema, list):
            return self.value(chance.choice(schema) if schema else "null", depth)
        kind = schema["type"] if isinstance(schema, dict) else schema if schema in PRIMITIVES else "a name"
        match kind:
            case "null":
                return None
            case "boolean":
                return chance.random() < 0.5
            case "int" | "long" | "float" | "double":
                return chance.choice(NUMBERS if chance.random() < 0.3 else NUMBERS[:4])
            case "array":
                return [self.value(schema["items"], depth - 1) for _ in range(chance.randrange(3))]
            case "map":
                return {
                    chance.choice(TEXTS): self.value(schema["values"], depth - 1) for _ in range(chance.randrange(3))
                }
            case "record" | "error":
                fields = [one for one in schema["fields"] if "default" not in one or chance.random() < 0.7]
                return {one["name"]: self.value(one["type"], depth - 1) for one in fields}
            case "enum" if schema["symbols"]:
                return chance.choice(schema["symbols"])
            case "string" | "bytes" | "enum" | "fixed":
                return chance.choice(TEXTS)
            case _:
                return chance.choice(({}, {"a": 1}, {"b": {}}, None, [], "a"))

    def _leaf(self) -> Any:
        chance = self._chance
        if self._names and chance.random() < 0.35:
            return chance.choice(self._names)
        if chance.random() < 0.05:
            return chance.choice(NAMES)
        kind = chance.choice(PRIMITIVES)
        return kind if chance.random() < 0.6 else {"type": kind} | self._logical() | self._extra()

    def _logical(self) -> dict[str, Any]:
        chance = self._chance
        if chance.random() < 0.5:
            return {}
        found: dict[str, Any] = {"logicalType": chance.choice(LOGICAL)}
        if chance.random() < 0.5:
            found |= {"precision": chance.choice((0, 1, 4, 9, 38)), "scale": chance.choice((0, 2, 9))}
        members = list(found.items())
        chance.shuffle(members)
        return dict(members)

    def _named(self, kind: str, **members: Any) -> dict[str, Any]:
        chance = self._chance
        name = chance.choice(NAMES)
        found: dict[str, Any] = {"type": kind, "name": name}
        if chance.random() < 0.3:
            found["namespace"] = chance.choice(("n", "m.n", "", "k"))
        self._names += [name, name.rpartition(".")[2]]
        if chance.random() < 0.2:
            found["doc"] = chance.choice(TEXTS)
        if chance.random() < 0.2:
            found["aliases"] = chance.sample(NAMES, chance.randrange(3))
        return found | members | self._extra()

    def _field(self, name: str, depth: int) -> dict[str, Any]:
        chance = self._chance
        kind = self.schema(depth - 1)
        field: dict[str, Any] = {"name": name, "type": kind}
        if chance.random() < 0.5:
            field["default"] = self.value(kind)
        if chance.random() < 0.15:
            field["doc"] = chance.choice(TEXTS)
        if chance.random() < 0.15:
            field["order"] = chance.choice(("ascending", "descending", "ignore"))
        if chance.random() < 0.15:
            field["aliases"] = chance.sample(("x", "y", "z"), 2)
        return field | self._extra()

    def _extra(self) -> dict[str, Any]:
        chance = self._chance
        if chance.random() < 0.85:
            return {}
        return {
            chance.choice(("k", "é", "x y")): chance.choice(
                (None, 1, 2.5, "v", [1, {"a": None}], {"b": 1, "a": [2**40]})
            )
        }

    def _spoiled(self, schema: Any) -> Any:
        """One member, somewhere, taken away, doubled or replaced."""
        chance = self._chance
        places: list[tuple[Any, Any]] = []
        waiting = [schema]
        while waiting:
            value = waiting.pop()
            keys: Any = (
                value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
            )
            for key in list(keys):
                places.append((value, key))
                waiting.append(value[key])
        if not places:
            return chance.choice((None, 1, {}, [], "int", schema))
        holder, key = chance.choice(places)
        match chance.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, holder[key])
            case _:
                holder[key] = chance.choice((None, True, 1, 1.5, "", "int", "A", "n.B", "a b", [], {}, ["null", "int"]))
        return schema
