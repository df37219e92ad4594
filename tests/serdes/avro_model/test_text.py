"""Texts and identities."""

from __future__ import annotations

import hashlib
import json
import math
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serdes.avro.java_numbers import double_text, float_text
from serdes.avro.normal import normalized
from serdes.avro.parse import parse
from serdes.avro.text import canonical_form, fingerprint, fingerprint64, guid, to_text
from serdes.registry import Reference
from tests.serdes.avro_model.cases import POINT, enum, field, fixed, record


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (0.001, "0.001"), (0.0009999, "9.999E-4"), (9999999.0, "9999999.0"),
        (1e7, "1.0E7"), (123456789.125, "1.23456789125E8"), (5e-324, "4.9E-324"), (2e-323, "2.0E-323"),
        (2e23, "2.0E23"),
        (1.7976931348623157e308, "1.7976931348623157E308"), (-1.5e-10, "-1.5E-10"), (100.0, "100.0"), (0.01, "0.01"),
        (math.inf, '"Infinity"'), (-math.inf, '"-Infinity"'), (math.nan, '"NaN"'),
    ],
)  # fmt: skip
def test_doubles_as_java_prints_them(value: float, text: str) -> None:
    assert double_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1"), (1e-45, "1.4E-45"), (3.4028234663852886e38, "3.4028235E38"), (16777216.0, "1.6777216E7"),
     (1 / 3, "0.33333334"), (-0.0, "-0.0"), (1e39, '"Infinity"'), (33554432.0, "3.3554432E7"), (1e10, "1.0E10")],
)  # fmt: skip
def test_floats_as_java_prints_them(value: float, text: str) -> None:
    assert float_text(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_double_reads_as_itself(value: float) -> None:
    assert float(double_text(value)) == value


def test_the_fingerprints_of_avro_s_specification() -> None:
    assert fingerprint64(parse('"null"')) == 0x63DD24E7CC258F8A
    assert fingerprint(parse('"int"')).hex() == "ef524ea1b91e73173d938ade36c1db32"
    assert fingerprint(parse('"int"'), "sha256") == hashlib.sha256(b'"int"').digest()


def test_the_canonical_form_forgets_what_does_not_matter_for_reading() -> None:
    schema = parse(
        json.dumps(
            record(
                field({"type": "long", "logicalType": "date", "x": 1}, 3, doc="d", order="ignore", aliases=["z"]),
                field([enum("a", doc="d"), fixed(3)], name="g"),
                field({"type": "map", "values": {"type": "array", "items": "E"}}, name="h"),
                doc="d",
                namespace="n",
                aliases=["O"],
                type="error",
            )
        )
    )
    assert canonical_form(schema) == (
        '{"name":"n.R","type":"record","fields":[{"name":"f","type":"long"},{"name":"g","type":['
        '{"name":"n.E","type":"enum","symbols":["a"]},{"name":"n.F","type":"fixed","size":3}]},'
        '{"name":"h","type":{"type":"map","values":{"type":"array","items":"n.E"}}}]}'
    )


def test_references_are_named_and_not_written_out() -> None:
    point = json.dumps(POINT | {"namespace": "n"})
    schema = parse(json.dumps(record(field("n.P"))), references=[point])
    assert to_text(schema, [parse(point)]) == '{"type":"record","name":"R","fields":[{"name":"f","type":"n.P"}]}'
    assert '"name":"P"' in to_text(schema)


class TestGuid:
    """MD5 of the text, the references, the metadata and the rules, each part as bytes one after the other."""

    def test_of_a_text(self) -> None:
        assert guid('"int"') == str(uuid.UUID(bytes=hashlib.md5(b'"int"').digest()))
        assert guid("é\ud800") == str(uuid.UUID(bytes=hashlib.md5("é?".encode()).digest()))

    def test_of_everything(self) -> None:
        rule = {"name": "r", "doc": "d", "kind": "CONDITION", "mode": "WRITE", "type": "CEL",
                "tags": ["y", "x", "x"], "params": {"b": "2", "a": "1"}, "expr": "e", "onSuccess": "s",
                "onFailure": "f", "disabled": True}  # fmt: skip
        found = guid(
            "{}",
            [Reference("n.A", "subject-a", 1), Reference("n.B", "b", 258)],
            {"tags": {"t": ["2", "1"], "s": []}, "properties": {"o": "p"}, "sensitive": ["z", "a"]},
            {"domainRules": [{"name": "last", "type": "CEL"}], "migrationRules": [rule], "enableAt": "SERVER"},
        )
        parts = b"{}" + b"n.Asubject-a\x00\x00\x00\x01" + b"n.Bb\x00\x00\x01\x02"
        parts += b"\x01" + b"s" + b"t12" + b"op" + b"az"
        parts += b"\x01" + b"rdCONDITIONWRITECELxya1b2esf\x01" + b"lastTRANSFORMWRITEREADCEL" + b"SERVER"
        assert found == str(uuid.UUID(bytes=hashlib.md5(parts).digest()))

    def test_nothing_is_not_the_same_as_empty(self) -> None:
        assert len({guid("x"), guid("x", (), {}), guid("x", (), None, {"domainRules": []}), guid("x", (), {}, {})}) == 3


def of_field(**members: object) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "f"} | members]}, separators=(",", ":"))


class TestNormalized:
    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            ({"type": "int", "z": 1, "a": {"y": 1, "b": [{"d": 1, "c": 2}]}},
             '{"type":"int","a":{"b":[{"c":2,"d":1}],"y":1},"z":1}'),
            ({"type": "bytes", "scale": 2, "a": 1, "precision": 9, "logicalType": "decimal"},
             '{"type":"bytes","logicalType":"decimal","precision":9,"scale":2,"a":1}'),
            ({"type": "bytes", "scale": 0, "a": 1, "precision": 9, "logicalType": "decimal"},
             '{"type":"bytes","logicalType":"decimal","precision":9,"a":1,"scale":0}'),
            (record(type="error", doc="", aliases=["b.Z", "A"]),
             '{"type":"record","name":"R","fields":[],"aliases":["A","b.Z"]}'),
            (record(field("float", 0.123456789)), of_field(type="float", default=0.12345679)),
            (record(field("double", 1)), of_field(type="double", default=1.0)),
            (record(field("long", 1)), of_field(type="long", default=1)),
            (record(field(["null", "string"], "x")), of_field(type=["null", "string"])),
            (record(field(["string"], "x", doc="")), of_field(type=["string"], doc="", default="x")),
            (record(field("int", order="ascending", aliases=["b", "a"])), of_field(type="int", aliases=["a", "b"])),
            (record(field(POINT, {"y": 2, "x": 1})), of_field(type=POINT, default={"x": 1, "y": 2})),
            (record(field("double", "NaN")), of_field(type="double", default="NaN")),
            (record(field("float", -1e300)), of_field(type="float", default="-Infinity")),
            (record(field("bytes", "aĀ")), of_field(type="bytes", default="a?")),
            (record(field({"type": "array", "items": ["null", "string"]}, ["x", None])),
             of_field(type={"type": "array", "items": ["null", "string"]}, default=["x", None])),
            (record(field(enum("a", namespace="")), field("E", name="g"), namespace="n", aliases=[".O", "m.O", "P"]),
             '{"type":"record","name":"R","namespace":"n","fields":[{"name":"f","type":{"type":"enum","name":"E",'
             '"symbols":["a"]}},{"name":"g","type":"E"}],"aliases":["O","m.O","P"]}'),
            (enum("a", default="a", z=1, b=2), '{"type":"enum","name":"E","symbols":["a"],"default":"a","b":2,"z":1}'),
        ],
    )  # fmt: skip
    def test_forms(self, schema: object, text: str) -> None:
        assert normalized(parse(json.dumps(schema))) == text

    def test_with_references(self) -> None:
        """The types inside a reference are written out, the reference itself is not: as in the plain text."""
        line = parse(json.dumps(record(field(POINT), name="Line", namespace="n")))
        schema = parse(json.dumps(record(field("n.Line"), field("n.P", name="p"))), references=[to_text(line)])
        point = json.dumps(POINT | {"namespace": "n"}, separators=(",", ":"))
        assert json.loads(normalized(schema, [line]))["fields"][1]["type"] == json.loads(point)
        assert normalized(schema, [line]) == to_text(schema, [line])

    def test_a_recursive_record(self) -> None:
        text = '{"type":"record","name":"R","namespace":"n","fields":[{"name":"f","type":["null","R"],"default":null}]}'
        assert normalized(parse(text)) == text
