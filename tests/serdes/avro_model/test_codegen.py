"""Generated Python: what it looks like, that it says the same schema again, that linters have nothing to say of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serdes.avro.codegen import generate
from serdes.avro.parse import parse
from serdes.avro.text import to_text
from tests.serdes.avro_model.cases import POINT, enum, field, fixed, record
from tests.serdes.avro_model.generated import module_of, schema_of_source
from tests.serdes.avro_model.make_vectors import recorded

LINE = record(field("string", name="sku"), field("int", 1, name="count"), name="Line")
ORDER = record(
    field("string", name="order_id", doc="Given by the shop."),
    field({"type": "array", "items": LINE}, name="lines"),
    field({"type": "long", "logicalType": "timestamp-millis"}, name="placed_at", aliases=["created"]),
    field(enum("NEW", "DONE", name="Status", default="NEW"), "NEW", name="status"),
    field(["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}], None, name="total"),
    field({"type": "map", "values": "string"}, {}, name="labels"),
    field(fixed(16, name="Digest"), name="digest"),
    field(["null", "Order"], None, name="replaces"),
    field("boolean", False, name="class", order="ignore"),
    name="Order",
    namespace="shop",
    doc="What a customer wants.",
    aliases=["Purchase"],
)  # fmt: skip

SOURCE = '''"""Generated from the Avro schema shop.Order."""

from __future__ import annotations

import enum
from decimal import Decimal
from typing import Annotated

import msgspec
from serdes.avro.marks import AvroField, AvroType, Int32, TimestampMillis

Digest = Annotated[bytes, AvroType(size=16, name="Digest", namespace="shop")]


class Status(enum.StrEnum):
    __avro__ = AvroType(namespace="shop", default="NEW")

    NEW = "NEW"
    DONE = "DONE"


class Line(msgspec.Struct, kw_only=True):
    __avro__ = AvroType(namespace="shop")

    sku: str
    count: Int32 = 1


class Order(msgspec.Struct, kw_only=True, rename={"class_": "class"}):
    """What a customer wants."""

    __avro__ = AvroType(namespace="shop", aliases=("shop.Purchase",))

    order_id: Annotated[str, AvroField(doc="Given by the shop.")]
    lines: list[Line]
    placed_at: Annotated[TimestampMillis, AvroField(aliases=("created",))]
    status: Status = Status.NEW
    total: Annotated[Decimal, AvroType(precision=10, scale=2)] | None = None
    labels: dict[str, str] = {}
    digest: Digest
    replaces: Order | None = None
    class_: Annotated[bool, AvroField(order="ignore")] = False
'''


def test_a_module() -> None:
    assert generate(parse(json.dumps(ORDER))) == SOURCE


def test_its_classes_work() -> None:
    with module_of(SOURCE) as module:
        line = module.Line(sku="a")
        assert line.count == 1
        assert msgspec.json.decode(msgspec.json.encode(line), type=module.Line) == line
        assert module.Status("NEW") is module.Status.NEW


def good_texts() -> list[str]:
    """Every schema that Java accepted, in Java's words."""
    plain = [answer["text"] for question, answer in recorded() if "error" not in answer and len(question) == 1]
    return [text for text in dict.fromkeys(plain) if "[" * 100 not in text]  # Python's own parser has a limit there


@pytest.mark.system
def test_every_recorded_schema_is_said_again() -> None:
    schemas = list(map(parse, good_texts()))
    assert len(schemas) > 500
    changed = [schema for schema in schemas if to_text(schema_of_source(generate(schema))) != to_text(schema)]
    assert changed == []


@pytest.mark.parametrize(
    "schema",
    [
        record(field(record(name="R", namespace="b"), name="x"), field(record(name="R", namespace="c"), name="y")),
        record(field("int", name="int"), field("string", name="str"), field("string", name="msgspec"), name="list"),
        record(field("int", name="None"), field("int", name="self"), field("int", name="__avro__"), name="class"),
        record(field("int", name="R"), field(["null", "R"], None, name="Order")),
        record(field("int", name="ﬁ"), field("int", name="fi"), name="Ṡ"),
        enum("None", "name", "value", "mro", "_x_", "__y", "class", "title"),
        enum("_a", "M_a", "name", "name_"),
        record(doc='says """no""" \\ '),
        record(doc=" indented\n  twice\n"),
        record(doc="two\n\nparagraphs"),
        record(doc="x" * 200),
        record(field(POINT, {"x": 1}), field(["P", "null"], {"x": 1, "y": 2}, name="g")),
        record(field({"type": "array", "items": "int"}, [1, 2])),
        record(field(["null", "string"], "x"), field(["null", "string"], name="g")),
        record(field("double", "NaN"), field("double", 1, name="g"), field(["double", "string"], "NaN", name="h")),
        record(aliases=[".Bare", "o.Other", "Own"], namespace="n"),
        {"type": "array", "items": fixed(12, name="Duration", logicalType="duration"), "x": {"b": 1, "a": [None, 1.0]}},
        ["null", record(), enum("a"), fixed(2), {"type": "map", "values": "R"}],
        ["int"],
        [],
    ],
)
def test_what_python_would_say_otherwise(schema: Any) -> None:
    text = to_text(parse(json.dumps(schema)))
    assert to_text(schema_of_source(generate(parse(text)))) == text


def test_the_title_can_be_given() -> None:
    assert generate(parse('"int"'), title="Numbers.").startswith('"""Numbers."""\n')


@pytest.mark.system
def test_ruff_has_nothing_to_say(tmp_path: Path) -> None:
    """Of ordinary schemas; a default that makes a line of 700 characters is another matter."""
    (tmp_path / "order.py").write_text(SOURCE, "utf-8")
    for number, text in enumerate(good_texts()[::7]):
        if len(text) < 500 and "e30" not in text and "P" not in text:
            (tmp_path / f"schema_{number}.py").write_text(generate(parse(text)), "utf-8")
    ruff = Path(sys.executable).with_name("ruff")
    program = str(ruff) if ruff.exists() else shutil.which("ruff")
    if program is None:
        pytest.skip("ruff is not installed")
    for command in (["format", "--check"], ["check", "--select", "E,F,W,I,B,UP"]):
        done = subprocess.run(
            [program, *command, "--isolated", "--line-length", "120", "--target-version", "py311", str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=tmp_path,  # where serdes is somebody else's package, as it is for a user
        )
        assert done.returncode == 0, done.stdout
