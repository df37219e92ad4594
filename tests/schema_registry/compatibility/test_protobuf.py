"""Protobuf: the language, its one spelling, descriptors, and what breaks messages."""

from __future__ import annotations

import pytest

from schema_registry.formats import InvalidSchema, ParsedSchema
from serdes.registry import Reference, SchemaText
from tests.schema_registry.compatibility.schemas import checked, parsed

FLIGHT = """syntax = "proto3";
package air.v1;
import "google/protobuf/timestamp.proto";
option java_package = "org.example.air";

// A flight.
message Flight {
  string number = 1;
  repeated Leg legs = 2;
  map<string, Leg> by_name = 3;
  optional int32 delay = 4;
  oneof payload {
    bytes raw = 5;
    Status status = 6;
  }
  google.protobuf.Timestamp at = 7 [deprecated = true];
  reserved 8, 10 to 12;
  reserved "old";
  message Leg { string origin = 1; repeated sint64 marks = 2 [packed = false]; }
  enum Status { option allow_alias = true; UNKNOWN = 0; LATE = 1; DELAYED = 1; LOST = -1; }
}
service Flights { rpc Follow (Flight) returns (stream Flight); }
"""
SPELLED = """syntax = "proto3";
package air.v1;

import "google/protobuf/timestamp.proto";

option java_package = "org.example.air";

message Flight {
  reserved 8, 10 to 12;
  reserved "old";
  string number = 1;
  repeated Leg legs = 2;
  map<string, Leg> by_name = 3;
  optional int32 delay = 4;
  oneof payload {
    bytes raw = 5;
    Status status = 6;
  }
  google.protobuf.Timestamp at = 7 [deprecated = true];

  message Leg {
    string origin = 1;
    repeated sint64 marks = 2 [packed = false];
  }

  enum Status {
    option allow_alias = true;
    UNKNOWN = 0;
    LATE = 1;
    DELAYED = 1;
    LOST = -1;
  }
}

service Flights {
  rpc Follow (Flight) returns (stream Flight);
}
"""
OLD = """syntax = "proto2";

message Old {
  required string a = 1 [default = "x\\"y"];
  optional int32 b = 2 [default = 5];
  repeated group Item = 3 {
    optional bool on = 1;
  }
  optional E e = 4 [default = B];
  extensions 100 to 199;

  enum E {
    A = 1;
    B = 2;
  }
}
"""
# What protoc 6 makes of the two.
FLIGHT_DESCRIPTOR = (
    "CgxmbGlnaHQucHJvdG8SBmFpci52MRofZ29vZ2xlL3Byb3RvYnVmL3RpbWVzdGFtcC5wcm90byKABAoGRmxpZ2h0EhYKBm51bWJlchgBIAEoCV"
    "IGbnVtYmVyEiYKBGxlZ3MYAiADKAsyEi5haXIudjEuRmxpZ2h0LkxlZ1IEbGVncxIzCgdieV9uYW1lGAMgAygLMhouYWlyLnYxLkZsaWdodC5C"
    "eU5hbWVFbnRyeVIGYnlOYW1lEhkKBWRlbGF5GAQgASgFSAFSBWRlbGF5iAEBEhIKA3JhdxgFIAEoDEgAUgNyYXcSLwoGc3RhdHVzGAYgASgOMh"
    "UuYWlyLnYxLkZsaWdodC5TdGF0dXNIAFIGc3RhdHVzEi4KAmF0GAcgASgLMhouZ29vZ2xlLnByb3RvYnVmLlRpbWVzdGFtcEICGAFSAmF0Gk0K"
    "C0J5TmFtZUVudHJ5EhAKA2tleRgBIAEoCVIDa2V5EigKBXZhbHVlGAIgASgLMhIuYWlyLnYxLkZsaWdodC5MZWdSBXZhbHVlOgI4ARo3CgNMZW"
    "cSFgoGb3JpZ2luGAEgASgJUgZvcmlnaW4SGAoFbWFya3MYAiADKBJCAhAAUgVtYXJrcyJDCgZTdGF0dXMSCwoHVU5LTk9XThAAEggKBExBVEUQ"
    "ARILCgdERUxBWUVEEAESEQoETE9TVBD///////////8BGgIQAUIJCgdwYXlsb2FkQggKBl9kZWxheUoECAgQCUoECAoQDVIDb2xkMjUKB0ZsaW"
    "dodHMSKgoGRm9sbG93Eg4uYWlyLnYxLkZsaWdodBoOLmFpci52MS5GbGlnaHQwAUIRCg9vcmcuZXhhbXBsZS5haXJiBnByb3RvMw=="
)
OLD_DESCRIPTOR = (
    "CglvbGQucHJvdG8ikwEKA09sZBIRCgFhGAEgAigJOgN4InlSAWESDwoBYhgCIAEoBToBNVIBYhIdCgRpdGVtGAMgAygKMgkuT2xkLkl0ZW1SBG"
    "l0ZW0SFwoBZRgEIAEoDjIGLk9sZC5FOgFCUgFlGhYKBEl0ZW0SDgoCb24YASABKAhSAm9uIhEKAUUSBQoBQRABEgUKAUIQAioFCGQQyAE="
)


def proto(body: str, head: str = 'syntax = "proto3";') -> str:
    return f"{head}\n{body}"


def message(fields: str, more: str = "") -> str:
    return proto(f"message M {{ {fields} }} {more}")


def test_a_file_has_one_spelling() -> None:
    schema = parsed(FLIGHT, "PROTOBUF")
    assert schema.canonical == SPELLED
    assert parsed(SPELLED, "PROTOBUF").canonical == SPELLED
    assert parsed(OLD, "PROTOBUF").canonical == OLD
    assert schema.names == ("air.v1.Flight", "air.v1.Flight.Leg", "air.v1.Flight.Status")


@pytest.mark.parametrize(("text", "descriptor"), [(FLIGHT, FLIGHT_DESCRIPTOR), (OLD, OLD_DESCRIPTOR)])
def test_protocs_descriptor_is_the_same_schema(text: str, descriptor: str) -> None:
    written, compiled = parsed(text, "PROTOBUF"), parsed(descriptor, "PROTOBUF")
    assert compiled.unreadable(written) == written.unreadable(compiled) == []
    assert compiled.names == written.names
    plain = compiled.canonical.replace(".air.v1.Flight.", "").replace(".air.v1.", "").replace(".Old.", "")
    assert plain.replace(".google.", "google.") == written.canonical


def test_normalize_sorts_fields_imports_and_options() -> None:
    text = proto('option b = "2"; option a = "1"; message M { string y = 2; string x = 1; }')
    assert parsed(text, "PROTOBUF").normalized().schema == proto(
        '\noption a = "1";\noption b = "2";\n\nmessage M {\n  string x = 1;\n  string y = 2;\n}\n'
    )


@pytest.mark.parametrize(
    "body",
    [
        "message message { string message = 1; message option = 2; }",
        'message M { string a = 1 [(custom).path = { x: 1, y: "}" }, json_name = "b"]; }',
        "message M { .M next = 1; A.B b = 2; } message A { enum B { Z = 0; } }",
        'message M { string a = 0x10; string b = 017; } /* ; */ option (x) = "y" "z";',
        "message M { oneof o { option (x) = true; string a = 1; } ; } ; ",
        'message M {} service S { option a = true; rpc R (stream M) returns (M) { option (h) = { g: "/" }; } }',
        'import "google/protobuf/descriptor.proto"; extend google.protobuf.FieldOptions { string unit = 50000; }',
    ],
)
def test_what_the_language_allows(body: str) -> None:
    schema = parsed(proto(body), "PROTOBUF")
    assert parsed(schema.canonical, "PROTOBUF").canonical == schema.canonical


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("message M { string a = 1 }", "';' is missing before '}'"),
        ("message M { string a = 1;", "missing before 'the end of the text'"),
        ("message M { string a = 1; string b = 1; }", "both have the number 1"),
        ("message M { string a = 1; string a = 2; }", "two fields are called 'a'"),
        ("message M { string a = 0; }", "has the number 0"),
        ("message M { string a = 19500; }", "has the number 19500"),
        ("message M { reserved 1; string a = 1; }", "is reserved"),
        ('message M { reserved "a"; string a = 1; }', "is reserved"),
        ("message M { required string a = 1; }", "no required fields"),
        ("message M { Other a = 1; }", "unknown type 'Other'"),
        ("message M { map<float, string> a = 1; }", "no type for the keys of a map"),
        ("message M { oneof o { repeated string a = 1; } }", "is in a oneof and has a label"),
        ("message M { oneof o { } }", "has no fields"),
        ("message M {} message M {}", "is defined twice"),
        ("enum E { A = 1; }", "must begin with a value of number 0"),
        ("enum E { A = 0; B = 0; }", "set allow_alias"),
        ('import "other.proto"; message M {}', "neither a reference of this name nor a well-known file"),
        ("message M { string a = 1; } §", "is no word of the language"),
        ("wrong", "expected message, enum"),
        ("message M { " * 40 + "}" * 40, "more than 32 levels"),
        (" ".join(f"message M{n} {{}}" for n in range(1_001)), "more than 1,000 messages"),
    ],
)
def test_what_it_does_not_allow(body: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason) as caught:
        parsed(proto(body), "PROTOBUF")
    assert caught.value.schema_type == "PROTOBUF"


@pytest.mark.parametrize("text", ['edition = "2023";', 'syntax = "proto4";', "AAAA", "!!!!", ""])
def test_what_is_no_proto_file(text: str) -> None:
    if text:
        with pytest.raises(InvalidSchema):
            parsed(text, "PROTOBUF")
    else:
        assert parsed(text, "PROTOBUF").names == ()


def rules(new: str, old: str) -> set[str]:
    verdict = checked("BACKWARD", new, old, schema_type="PROTOBUF")
    assert all(finding.explanation and finding.fix for finding in verdict.findings)
    return {f"{finding.rule} {finding.path}" for finding in verdict.findings}


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (message("string a = 1; int32 b = 2;"), message("string a = 1;")),
        (message("string a = 1;"), message("string a = 1; int32 b = 2;")),
        (message("bytes renamed = 1;"), message("string a = 1;")),
        (message("uint64 a = 1;"), message("int32 a = 1;")),
        (message("E a = 1;", "enum E { Z = 0; }"), message("int32 a = 1;")),
        (message("repeated string a = 1;"), message("string a = 1;")),
        (message("oneof o { string a = 1; }"), message("string a = 1;")),
        (message("oneof p { string a = 1; int32 b = 2; }"), message("oneof o { string a = 1; int32 b = 2; }")),
        (message("string a = 1; oneof o { int32 b = 2; }"), message("oneof o { string a = 1; int32 b = 2; }")),
        (proto("message N {} message M {}"), proto("message M {}")),
        (message("", "enum E { Z = 0; ONE = 2; }"), message("", "enum E { Z = 0; TWO = 2; THREE = 3; }")),
        (message("M.I a = 1; message I {}"), message("I a = 1; message I {}")),
    ],
)
def test_what_does_no_harm(new: str, old: str) -> None:
    assert rules(new, old) == set()


@pytest.mark.parametrize(
    ("new", "old", "rule"),
    [
        (message("", "package b;"), message("", "package a;"), "PACKAGE_CHANGED #/"),
        (proto(""), message(""), "MESSAGE_REMOVED #/M"),
        (message(""), message("message I {}"), "MESSAGE_REMOVED #/M/I"),
        (message("string a = 1;"), message("int32 a = 1;"), "FIELD_SCALAR_KIND_CHANGED #/M/1"),
        (message("sint32 a = 1;"), message("int32 a = 1;"), "FIELD_SCALAR_KIND_CHANGED #/M/1"),
        (
            message("map<int32, string> a = 1;"),
            message("map<string, string> a = 1;"),
            "FIELD_SCALAR_KIND_CHANGED #/M/1",
        ),
        (message("I a = 1; message I {}"), message("string a = 1; message I {}"), "FIELD_KIND_CHANGED #/M/1"),
        (
            message("J a = 1; message I {} message J {}"),
            message("I a = 1; message I {} message J {}"),
            "FIELD_NAMED_TYPE_CHANGED #/M/1",
        ),
        (message("repeated int32 a = 1;"), message("int32 a = 1;"), "FIELD_NUMERIC_LABEL_CHANGED #/M/1"),
        (
            message("oneof o { string a = 1; }"),
            message("oneof o { string a = 1; int32 b = 2; }"),
            "ONEOF_FIELD_REMOVED #/M/o/2",
        ),
        (
            message("oneof o { string a = 1; int32 b = 2; }"),
            message("string a = 1; int32 b = 2;"),
            "MULTIPLE_FIELDS_MOVED_TO_ONEOF #/M/o",
        ),
        (
            message("oneof o { string a = 1; int32 b = 2; }"),
            message("oneof o { string a = 1; } int32 b = 2;"),
            "FIELD_MOVED_TO_EXISTING_ONEOF #/M/o",
        ),
        (
            proto("message M { required string a = 1; }", 'syntax = "proto2";'),
            proto("message M { optional string a = 1; }", 'syntax = "proto2";'),
            "REQUIRED_FIELD_ADDED #/M/1",
        ),
        (
            proto("message M { }", 'syntax = "proto2";'),
            proto("message M { required string a = 1; }", 'syntax = "proto2";'),
            "REQUIRED_FIELD_REMOVED #/M/1",
        ),
    ],
)
def test_what_breaks_messages(new: str, old: str, rule: str) -> None:
    assert rule in rules(new, old)


def test_imports_are_references_by_their_path() -> None:
    text = proto('import "leg.proto"; message Flight { air.Leg leg = 1; }')

    def of(kind: str, package: str = "air") -> ParsedSchema:
        leg = SchemaText(proto(f"package {package}; message Leg {{ {kind} a = 1; }}"), "PROTOBUF")
        wanted = text.replace("air.Leg", f"{package}.Leg")
        return parsed(wanted, "PROTOBUF", (Reference("leg.proto", "leg", 1),), {"leg": leg})

    assert {f"{one.rule} {one.path}" for one in of("string").unreadable(of("int32"))} == {
        "FIELD_SCALAR_KIND_CHANGED #/Leg/1",
        "FIELD_NAMED_TYPE_CHANGED #/Flight/1",
    }
    assert of("string", "sea").unreadable(of("string")) == []


@pytest.mark.system
def test_depth_is_bounded_wherever_it_comes_from() -> None:
    groups = "extend M { optional group A = 1 { " * 900 + "} }" * 900
    with pytest.raises(InvalidSchema, match="more than 32 levels"):
        parsed(proto(f"message M {{}} {groups}", 'syntax = "proto2";'), "PROTOBUF")

    def chain(last: str) -> ParsedSchema:
        links = " ".join(f"message M{n} {{ M{n + 1} next = 1; }}" for n in range(900))
        text = SchemaText(proto(f"package l; {links} message M900 {{ {last} x = 1; }}"), "PROTOBUF")
        head = proto('import "l.proto"; message F { l.M0 a = 1; }')
        return parsed(head, "PROTOBUF", (Reference("l.proto", "l", 1),), {"l": text})

    found = chain("int32").unreadable(chain("string"))
    assert {one.rule for one in found} == {"FIELD_NAMED_TYPE_CHANGED"}
    assert found[-1].path == "#/F/1"
