"""Schema texts to ask Java about: every rule, from both sides of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from serdes.avro.logical import ON_TYPE

Question = dict[str, Any]

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")

LIBRARY_CHECKOUT = """{
  "type": "record", "name": "Checkout", "namespace": "library", "fields": [
    {"name": "checkout_id", "type": "string"},
    {"name": "days", "type": "int", "default": "14"}
  ]}"""
"""A number's default written as a string: refused."""

FIELD_LOGICAL_TYPE = """{
  "type": "record", "name": "Checkout", "namespace": "library", "fields": [
    {"name": "checkout_id", "type": "string"},
    {"name": "due", "type": "int", "logicalType": "date", "default": 14}
  ]}"""
"""A logical type beside the type instead of inside it: kept as a property of the field, and without any effect."""


def record(*fields: Any, **members: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)} | members


def field(type: Any, default: Any = ..., **members: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": "f", "type": type}
    if default is not ...:
        found["default"] = default
    return found | members


def enum(*symbols: Any, **members: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols)} | members


def fixed(size: Any, **members: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size} | members


ARRAY = {"type": "array", "items": "int"}
MAP = {"type": "map", "values": "string"}
POINT = {"type": "record", "name": "P", "fields": [field("int", name="x"), field("int", 7, name="y")]}


def shapes() -> Iterator[Any]:
    """What is a schema at all."""
    yield from PRIMITIVES
    yield from ({"type": name} for name in PRIMITIVES)
    yield from ({"type": name, "doc": "d", "x": 1, "aliases": 3, "default": 5} for name in PRIMITIVES)
    yield from (
        None,
        True,
        1,
        1.5,
        "",
        "Foo",
        "record",
        "union",
        "array",
        {},
        {"type": None},
        {"type": 1},
        {"type": []},
    )
    yield from ({"type": {"type": "int"}}, {"type": ["null", "int"]}, {"type": "Foo"}, {"type": "union"}, {"x": "int"})
    yield from (
        ARRAY,
        MAP,
        {"type": "array"},
        {"type": "map"},
        {"type": "array", "items": None},
        {"type": "map", "values": 3},
    )
    yield from (
        {"type": "array", "items": ["null", ARRAY], "x": [1]},
        {"type": "map", "values": MAP, "default": {}, "doc": "no"},
    )
    yield from ({"type": "array", "items": "int", "order": "x", "name": "n", "java-class": "L"},)
    yield from ([], ["null"], ["null", "int"], ["int", "int"], ["null", ["int"]], ["int", "long", "float", "double"])
    yield from (
        [ARRAY, ARRAY],
        [MAP, MAP],
        [ARRAY, MAP],
        ["bytes", {"type": "bytes", "logicalType": "decimal", "precision": 3}],
    )
    yield from ([enum("A"), fixed(2), record()], [record(name="a.R"), record(name="b.R")], [record(), "R"])
    yield from (
        [record(), record()],
        [record(), record(doc="d")],
        [{"type": "union"}],
        [None],
        [enum("A"), "E", "null"],
    )


def records() -> Iterator[Any]:
    yield from (
        record(),
        {"type": "record", "name": "R"},
        {"type": "record", "fields": []},
        record(fields={}),
        record(fields=None),
    )
    yield from (
        record(type="error"),
        record(field("int"), type="error", doc="d"),
        record(1),
        record("f"),
        record(None),
        record([]),
    )
    yield from (record({"name": "f"}), record({"type": "int"}), record({"name": 1, "type": "int"}), record(field(None)))
    yield from (
        record(field("int"), field("long")),
        record(field("int"), field("int", name="F")),
        record(field("int", name="")),
    )
    yield from (
        record(field("int", doc="d")),
        record(field("int", doc=1)),
        record(field("int", doc="")),
        record(doc=""),
        record(doc=5),
    )
    for order in ("ascending", "descending", "ignore", "DESCENDING", "Ignore", "up", "", None, 1):
        yield record(field("int", order=order))
    for aliases in ([], ["a"], ["a", "a"], ["b", "a"], ["9", "a b", ""], "a", {}, [1], None):
        yield record(field("int", aliases=aliases))
        yield record(aliases=aliases)
    for aliases in (
        ["n.A"],
        ["A", "n.A", ".A", "m.A"],
        ["int", "m.record", "m.int"],
        [".int"],
        ["a..b"],
        ["9.A"],
        ["n."],
        ["é"],
    ):
        yield record(aliases=aliases, namespace="n")
        yield record(aliases=aliases)
    for name in (*PRIMITIVES, "record", "union", "enum"):
        yield record(name=name)
        yield record(name=name, namespace="n")
        yield record(
            field(record(name=name, namespace="n")), field(name, name="g"), field(f"n.{name}", name="h"), namespace="n"
        )
    yield record(
        field("int", 1, x=1, y={"b": [1, None, 2.5], "a": "é"}), k="v", default=3, order="x", size=1, symbols=[], z=None
    )
    for value in (2**63 - 1, 2**63, -(2**63), -(2**63) - 1, [2**64], {"a": [2**70]}, 1e300, -0.0, None, [None]):
        yield record(x=value)
        yield record(field("int", x=value))
        yield {"type": "array", "items": "int", "x": value}
        yield {"type": "map", "values": "int", "x": value}
        yield {"type": "int", "x": value}
        yield enum("A", x=value)
        yield fixed(1, x=value)


def names() -> Iterator[Any]:
    for name in (
        "A",
        "_",
        "a1",
        "1a",
        "a-b",
        "a b",
        "",
        ".",
        "A.",
        ".A",
        "a.A",
        "a..A",
        ".a.A",
        "a.1.A",
        "é",
        "aé",
        "名前",
        "a\u0663",
    ):
        yield record(name=name)
        yield record(name=name, namespace="n.m")
        yield record(field("int", name=name))
        yield enum(name)
        yield fixed(1, name=name)
    for name in ("a\U0001d400", "\u2160", "a\u0301", "ª", "a\u00b2", "ǅ", "a\u200c", "\ud800", "a$", "a\u2028"):
        yield record(field("int", name=name))
    for namespace in ("", "n", "n.m", "n..m", ".n", "n.", "1", "a-b", "é", None, 3):
        yield record(namespace=namespace)
        yield record(field(record(name="S", namespace=namespace)), namespace="o")
        yield record(field(record(name="S")), field("S", name="g"), field("o.S", name="h"), namespace=namespace)
    yield record(field(enum("A", namespace="x")), field("x.E", name="g"), field("E", name="h"))
    yield record(field(enum("A", namespace="")), field("E", name="g"), namespace="n")
    yield record(field(fixed(1)), field("F", name="g"), field("n.F", name="h"), field("m.F", name="i"), namespace="n")
    yield record(field({"type": "F2", "x": 1}), field(fixed(1, name="F2"), name="g"))


def enums_and_fixed() -> Iterator[Any]:
    yield from (
        enum(),
        enum("A"),
        enum("A", "A"),
        enum("A", "a"),
        enum(1),
        enum(None),
        enum("A", 1),
        {"type": "enum", "name": "E"},
    )
    yield from (enum(symbols="A"), enum(symbols={}), {"type": "enum", "symbols": ["A"]})
    for default in ("A", "B", "", 1, None, ["A"]):
        yield enum("A", default=default)
    yield enum("A", "B", doc="d", default="B", namespace="n", aliases=["O"], logicalType="x", order="y")
    for size in (0, 1, 16, -1, 1.0, "1", None, True, 2**31 - 1, 2**31 - 9, 2**31 - 8, 2**31, 2**70):
        yield fixed(size)
    yield from (
        {"type": "fixed", "name": "F"},
        {"type": "fixed", "size": 2},
        fixed(2, doc="d", aliases=["x.G"], default=1, z=1),
    )


VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**100,
    0.0, -0.0, 1.0, 1.5, "", "a", "é", "\u00ff", "ĀĀ", "1", [], [1], ["a"], [None], {}, {"a": "b"}, {"a": 1}, {"x": 1},
    {"x": 1, "z": 2},
)  # fmt: skip


def defaults() -> Iterator[Any]:
    types = (
        *PRIMITIVES,
        ARRAY,
        MAP,
        enum("a", "b"),
        fixed(1),
        POINT,
        ["null", "string"],
        ["int", "null"],
        [POINT, ARRAY, MAP],
        [],
    )
    for kind in types:
        for value in VALUES:
            yield record(field(kind, value))
    yield record(field(POINT, {"x": 1, "y": None}))
    yield record(field({"type": "array", "items": ["null", POINT]}, [None, {"x": 1}, {"y": 1}]))
    yield record(field({"type": "map", "values": ["null", "int"]}, {"a": None, "b": 2, "c": "3"}))
    yield record(field(["null", "int"], 1, name="a"), field(["int", "null"], None, name="b"))


NUMBERS = (
    "1e2", "1E-7", "0.001", "0.0009999", "9999999.0", "1e7", "12345678.9", "1e21", "1e22", "1e23", "2e23", "4.9E-324",
    "5e-324", "2e-323", "1.7976931348623157e308", "1e400", "-1e400", "123456789012345680", "0.1", "100", "-0", "1.10",
    "3.0e-44", "9007199254740993", "1e-3", "9.999999999999999e22", "-0.0", "00", "1.", ".5", "+1", "0x1", "NaN", "1e",
    "-",
)  # fmt: skip
NUMBERS_AS_STRINGS = (
    "1", "1.5", " 2 ", "NaN", "+NaN", "-Infinity", "Infinity", "inf", "nan", "", "1f", "1.5D", "1d2", "0x1p3", "0xp1",
    "0x1.8p1f", "0x1", "1e400", "1_000", "1e", ".5", "5.", ".", "\\u0661", "1e5f", "x", "\\u0000 3\\n", "0x1p5000",
)  # fmt: skip


def double_texts() -> Iterator[str]:
    """Defaults of floats and doubles, in their spelling."""
    schema = '{"type":"record","name":"R","fields":[{"name":"f","type":%s,"default":%s}],"x":%s}'
    for text in NUMBERS:
        for kind in ("float", "double"):
            yield schema % (f'"{kind}"', text, text)
    for text in NUMBERS_AS_STRINGS:
        for kind in ('"float"', '"double"', '["double","string"]'):
            yield schema % (kind, f'"{text}"', 1)


def strings() -> Iterator[Any]:
    every = "".join(map(chr, range(0x20))) + '"\\/\x7f\x80é\u2028\U0001f600\\u001f'
    yield record(field("string", every, doc=every), doc=every, x=every, **{every: every})
    yield record(field("bytes", "".join(map(chr, range(256)))))
    yield enum("A", doc="\ud800", x="a\udc00b")


def logical_types() -> Iterator[Any]:
    known = (*ON_TYPE, "uuid", "duration", "decimal", "other", "", 1, None)
    for name in known:
        for kind in ("int", "long", "bytes", "string", "double"):
            yield {"type": kind, "logicalType": name}
        for size in (12, 16):
            yield fixed(size, logicalType=name)
        yield record(logicalType=name)
        yield record(field("int", logicalType=name))
    for precision in (0, 1, 9, 10, 2**31 - 1, 2**31, -1, 4.0, "4", None, True):
        yield {"type": "bytes", "logicalType": "decimal", "precision": precision}
        yield fixed(4, logicalType="decimal", precision=precision)
    for scale in (0, 4, 5, -1, 1.0, None, "1", 2**31):
        yield {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": scale}
        yield {"scale": scale, "type": "bytes", "precision": 4, "logicalType": "decimal"}
    yield from (fixed(0, logicalType="decimal", precision=1), fixed(100, logicalType="decimal", precision=240))
    for prop in ("avro.java.string", "java-class", "java-key-class", "java-element-class", "java-other"):
        for value in ("String", 1):
            yield {"type": "string", "logicalType": "uuid", prop: value}
    yield {"type": "array", "items": "int", "logicalType": "date"}


def forward_references() -> Iterator[Any]:
    """Names before their definition; a record's own name is one."""
    of_itself = (
        ("null", None), ("R", {}), ("R", None), (["null", "R"], None), (["null", "R"], {}), (["R", "null"], None),
        ({"type": "array", "items": "R"}, []), ({"type": "array", "items": "R"}, [{}]), (["R", "string"], "x"),
        ({"type": "map", "values": "R"}, {}), ({"type": "map", "values": "R"}, {"a": {}}), (["string", "R"], "x"),
    )  # fmt: skip
    for kind, default in of_itself:
        yield record(field(kind, default))
        yield record(field(kind))
        yield record(field(kind, default), namespace="n")
        yield record(field("int", 1), field({"type": "array", "items": kind}, [default], name="g"))
    for later, defaults_ in (
        (enum("a"), ("a", {}, "z")),
        (fixed(1), ("a", {})),
        (POINT, ({}, {"x": 1}, {"y": 2}, "a")),
    ):
        for default in defaults_:
            yield record(field(later["name"], default), field(later, name="g"))
            yield record(field(["null", later["name"]], default), field(later, name="g"))
            yield record(field({"type": "map", "values": later["name"]}, {"k": default}), field(later, name="g"))
        yield record(field(later["name"]), field(later, name="g"))
        yield [later["name"], later]
        yield ["null", later["name"], {"type": "array", "items": later}]
        yield [{"type": "array", "items": later["name"]}, {"type": "map", "values": later}]
        yield record(field(later["name"]), field({**later, "namespace": "n"}, name="g"), namespace="n")
        yield record(field(later["name"]), field({**later, "namespace": ""}, name="g"), namespace="n")
        yield record(field("n." + later["name"]), field(later, name="g"), namespace="n")
    b_of_a = {"type": "record", "name": "B", "fields": [field(["null", "R"], None, name="r")]}
    yield record(field(["null", b_of_a], None))
    yield record(field("B", {}), field(b_of_a, name="g"))
    yield record(field("B", {"r": None}), field(b_of_a, name="g"))
    yield record(field("B", {"r": {}}), field(b_of_a, name="g"))
    yield record(field(b_of_a, {"r": None}))
    yield record(field(b_of_a), field(record(field("R", {"f": {}}), name="C"), name="g"))
    yield [record(field("B", {})), {"type": "record", "name": "B", "fields": [field("R", {}, name="r")]}]
    yield [
        record(field("B", {"q": 1})),
        {"type": "record", "name": "B", "fields": [field("int", name="q"), field(["null", "R"], name="r")]},
    ]


def redefinitions() -> Iterator[Any]:
    for one in (enum("a"), fixed(1), POINT, enum("a", doc="d"), record(field(["null", "Q"]), name="Q")):
        for change in ({}, {"doc": "other"}, {"x": 1}, {"aliases": ["O"]}, {"namespace": "n"}, {"logicalType": "uuid"}):
            yield record(field(one), field({**one, **change}, name="g"))
    yield record(field(enum("a", "b", default="a")), field(enum("a", "b", default="b"), name="g"))
    yield record(field(enum("a")), field(enum("a", "b"), name="g"))
    yield record(field(fixed(1)), field(fixed(2), name="g"))
    yield record(field(enum("a")), field(fixed(1, name="E"), name="g"))
    yield record(field(record(field("int", 1), name="S")), field(record(field("int", 1.0), name="S"), name="g"))
    yield record(field(record(field("double", 1), name="S")), field(record(field("double", 1.0), name="S"), name="g"))
    yield record(
        field(record(field("double", "NaN"), name="S")), field(record(field("double", "NaN"), name="S"), name="g")
    )
    yield record(
        field(record(field("int", x={"a": 1, "b": 2}), name="S")),
        field(record(field("int", x={"b": 2, "a": 1}), name="S"), name="g"),
    )
    yield record(field(record(field("int", order="ignore"), name="S")), field(record(field("int"), name="S"), name="g"))
    yield record(field(record(name="R"), name="g"))
    yield record(field(record(field("int"), name="R"), name="g"), field("int"))
    yield record(field(record(type="error", name="S")), field(record(name="S"), name="g"))


def raw_texts() -> Iterator[str]:
    """Not only values: JSON's own corners."""
    yield from (
        "",
        " ",
        "\n",
        "{",
        "[",
        "int",
        "'int'",
        '"int',
        '"int" x',
        '"int""int"',
        '"int" \n\t ',
        '\ufeff"int"',
        '"int"\x00',
        '\x00"int"',
    )
    yield from (
        '"int" // end',
        '// start\n"int"',
        '/* a */ {"type": /* "x" */ "int", // y\n "k": "// no /* comment */"}',
        '/* open "int"',
    )
    yield from (
        '{"type":"int",}',
        '["int",]',
        "{'type':'int'}",
        '{type:"int"}',
        '{"type":"int","type":"long"}',
        '{"type":"in\\u0074"}',
    )
    yield from (
        '{"type":"int","x":1,"y":2,"x":3}',
        '{"type":"int","x":"a\tb"}',
        '{"type":"int","x":"\\x"}',
        '{"type":"int","x":tru}',
    )
    yield from (
        '{"type":"int","x":01}',
        '{"type":"int","x":-}',
        '{"type":"int","x":Infinity}',
        '{"type":"int" "x":1}',
        '#c\n"int"',
    )
    yield from (
        '{"type":"fixed","name":"F","size":1e0}',
        '{"type":"fixed","name":"F","size":-0}',
        '{"type":"int","x":%s}' % ("1" * 1000),
    )
    yield from (
        '{"type":"int","x":%s}' % ("1" * 1001),
        '{"type":"int","x":%s}' % ("[" * 200 + "]" * 200),
        '{"type":"int","x":"\\ud83d\\ude00"}',
    )
    yield from (
        '{"type":"int","":1}',
        '{"type":"int","x":1.0e+2}',
        '{"type":"int","x":1E400}',
        "1 2",
        "nul",
        "null",
        "true",
        "{}",
        "[[]]",
    )


def with_references() -> Iterator[Question]:
    user = json.dumps(record(field("string", name="id"), name="User", namespace="io"))
    team = json.dumps(
        record(field({"type": "array", "items": "io.User"}), field(POINT, name="p"), name="Team", namespace="io")
    )
    main = record(field("User", name="u"), field("Team", name="t"), field("P", name="p"), name="Main", namespace="io")
    yield {"text": json.dumps(main), "references": [user, team]}
    yield {"text": json.dumps(main), "references": [team, user]}
    yield {"text": json.dumps(main), "references": [user]}
    yield {"text": json.dumps("io.User"), "references": [user]}
    other = json.loads(user) | {"doc": "mine", "aliases": ["O"]}
    yield {"text": json.dumps(other), "references": [user]}
    yield {"text": json.dumps([other, team]), "references": [user]}
    yield {
        "text": json.dumps(record(field(other), field("io.User", name="g"), field("O", name="h"))),
        "references": [user],
    }
    yield {"text": json.dumps(record(field("io.User"), field(other, name="g"))), "references": [user]}
    yield {"text": json.dumps("User"), "references": [user]}
    yield {"text": user, "references": [user]}
    yield {"text": user.replace("id", "key"), "references": [user]}
    yield {"text": json.dumps(["null", "io.Team"]), "references": [user, team]}
    yield {"text": json.dumps(["null", "io.Team", "io.P"]), "references": [user, team]}
    yield {
        "text": json.dumps(record(field("io.User", {"id": "x"}), field("io.User", {}, name="g"))),
        "references": [user],
    }
    yield {"text": json.dumps(record(field("io.User", {"id": "x"}))), "references": [user]}
    yield {"text": '"int"', "references": ['"int"', '["null",{"type":"enum","name":"E","symbols":[]}]']}
    yield {"text": '"E"', "references": ['"int"', '["null",{"type":"enum","name":"E","symbols":[]}]']}
    yield {"text": json.dumps(record(field("S"), namespace="n")), "references": [json.dumps(record(name="S"))]}
    yield {
        "text": json.dumps(record(field("n.R"), field("R", name="g"))),
        "references": [json.dumps(record(namespace="n"))],
    }


def with_options() -> Iterator[Question]:
    for names in ("ascii", "any"):
        for name in ("é", "a-b", "1", "", "a..b", ".b", "A"):
            yield {"text": json.dumps(record(field("int", name=name))), "names": names}
            yield {"text": json.dumps(record(name=name)), "names": names}
            yield {"text": json.dumps(enum(name)), "names": names}
            yield {"text": json.dumps(record(namespace=name)), "names": names}
            yield {"text": json.dumps(record(aliases=[name])), "names": names}
    for kind, value in (
        ("int", "14"),
        (["null", "int"], 1.5),
        (POINT, {}),
        ("float", "x"),
        (enum("A", default="B"), "A"),
        (["null", "R"], {}),
    ):
        yield {"text": json.dumps(record(field(kind, value))), "validate_defaults": False}


def questions() -> list[Question]:
    """All of them, each once."""
    found: dict[str, Question] = {}
    texts = [LIBRARY_CHECKOUT, FIELD_LOGICAL_TYPE]
    for group in (
        shapes,
        records,
        names,
        enums_and_fixed,
        defaults,
        strings,
        logical_types,
        forward_references,
        redefinitions,
    ):
        texts.extend(json.dumps(schema) for schema in group())
    for question in ({"text": text} for text in [*texts, *double_texts(), *raw_texts()]):
        found.setdefault(json.dumps(question), question)
    for question in [*with_references(), *with_options()]:
        found.setdefault(json.dumps(question), question)
    return list(found.values())
