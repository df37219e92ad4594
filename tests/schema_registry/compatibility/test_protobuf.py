"""Protobuf: the language, its one spelling, descriptors, and what breaks messages."""

from __future__ import annotations

import base64

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from schema_registry.formats import InvalidSchema, ParsedSchema, protoc
from schema_registry.formats.protoc import compiled
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


pytestmark = pytest.mark.system  # protoc is a process


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


def test_normalize_sorts_fields_imports_ranges_and_values() -> None:
    text = proto(
        'import "google/protobuf/timestamp.proto"; import "google/protobuf/any.proto"; option php_namespace = "p"; '
        'option java_package = "j"; message M { string y = 2; string x = 1; reserved 9, 5; '
        "enum E { A = 0; C = 2; B = -1; } }"
    )
    assert parsed(text, "PROTOBUF").normalized().schema == proto(
        """
import "google/protobuf/any.proto";
import "google/protobuf/timestamp.proto";

option java_package = "j";
option php_namespace = "p";

message M {
  reserved 5, 9;
  string x = 1;
  string y = 2;

  enum E {
    A = 0;
    B = -1;
    C = 2;
  }
}
"""
    )


def test_normalize_leaves_the_positions_of_nested_messages() -> None:
    """A client writes the position of a message, in which entries of maps count, next to the schema's id."""
    text = message("map<string, int32> b = 2; message Inner { } map<string, Inner> a = 1;")
    schema = parsed(text, "PROTOBUF")
    assert nested(schema.normalized().schema) == nested(text) == ["BEntry", "Inner", "AEntry"]


def nested(text: str) -> list[str]:
    return [one.name for one in compiled(text, {}).file[-1].message_type[0].nested_type]


OPTIONS = """
import "google/protobuf/descriptor.proto"; import public "google/protobuf/any.proto";
import weak "google/type/money.proto";
import "confluent/meta.proto"; import "confluent/type/decimal.proto"; import "confluent/type/variant.proto";
option java_package = "quote \\" return \\r nul \\0"; option optimize_for = CODE_SIZE; option (unit_of_file) = "é";
extend google.protobuf.FileOptions { optional string unit_of_file = 50000; }
extend google.protobuf.MessageOptions { repeated Note note = 50000; }
extend google.protobuf.FieldOptions { optional bool pii = 50000; optional Color paint = 50001;
  optional bytes raw = 50002;
  optional double factor = 50003; repeated float weights = 50004; optional sint64 offset = 50005; }
extend google.protobuf.EnumOptions { optional string of_enum = 50000; }
extend google.protobuf.EnumValueOptions { optional string of_value = 50000; }
extend google.protobuf.OneofOptions { optional string of_oneof = 50000; }
extend google.protobuf.ServiceOptions { optional string of_service = 50000; }
extend google.protobuf.MethodOptions { optional Note of_method = 50000; }
extend google.protobuf.ExtensionRangeOptions { optional string of_range = 50000; }
enum Color { option (of_enum) = "e"; RED = 1 [(of_value) = "v", deprecated = true]; BLUE = -2;
  reserved 5 to max; reserved "GREEN"; }
message Note { optional string text = 1; map<string, int32> counts = 2; repeated Note more = 3; extensions 100 to 200;
  optional group Part = 4 { optional int32 number = 1; } }
extend Note { optional int32 level = 100; }
message M {
  option (note) = { text: "a" counts { key: "k" value: 1 } more { text: "b'\\n" } Part { number: 3 } [a.b.level]: 4 };
  option (note) = { text: "2" }; option deprecated = true;
  message First { }
  optional string x = 1 [(pii) = true, (paint) = BLUE, (raw) = "\\x00\\xff", (factor) = -1.5e300, (weights) = 1.1,
    (weights) = inf, (offset) = -9, default = "a\\tb\\0\\377", json_name = "XX", ctype = CORD,
    (confluent.field_meta) = {tags: "PII"}];
  optional bytes y = 2 [default = "\\x00\\xfe\\"'"]; optional double z = 3 [default = -inf];
  optional double n = 4 [default = nan];
  optional Color c = 5 [default = BLUE]; repeated int64 p = 6 [packed = true, jstype = JS_STRING];
  optional bool t = 7 [default = true];
  map<int32, First> firsts = 8; message Second { } message Third { }
  oneof choice { option (of_oneof) = "q"; string one = 9; group Two = 10 { optional int32 q = 1; } Third three = 11; }
  required int32 needed = 12; optional string with_2_parts_ = 13; optional Note late = 14 [lazy = true];
  optional google.type.Money m = 15;
  extensions 40 to 49 [(of_range) = "z", verification = UNVERIFIED]; extensions 20 to 29, 31; extensions 1000 to max;
  reserved 50, 60 to 70; reserved "old", "older"; enum E { option allow_alias = true; A = 0; B = 0; }
  extend M { optional group Inside = 20 { optional int32 n = 1; } optional string text = 21; } message Fourth { }
}
extend M { optional group Outside = 23 { optional int32 n = 1; } } message After { }
service S { option (of_service) = "s"; rpc R (M) returns (stream .a.b.Note) { option (of_method) = { text: "x" };
  option idempotency_level = NO_SIDE_EFFECTS; } rpc Q (stream M.First) returns (M); }
"""
SHAPES = {
    "everything of proto2": proto(OPTIONS, 'syntax = "proto2"; package a.b;'),
    "message sets": proto(
        "message B { option message_set_wire_format = true; extensions 4 to max; } "
        "message C { extend B { optional C c = 5; } }",
        'syntax = "proto2";',
    ),
    "edition 2023": proto(
        "option features.field_presence = IMPLICIT; message M { "
        "string a = 1 [features.field_presence = LEGACY_REQUIRED]; M g = 2 [features.message_encoding = DELIMITED]; "
        "reserved foo, bar; enum E { option features.enum_type = CLOSED; Z = 1; } oneof o { M x = 4; } "
        'string d = 3 [features.field_presence = EXPLICIT, default = "x"]; repeated int32 r = 5; }',
        'edition = "2023";',
    ),
    "edition 2024": proto(
        'import option "google/protobuf/cpp_features.proto"; option features.(pb.cpp).string_type = VIEW; '
        "export message M { local enum E { E_UNKNOWN = 0; } }",
        'edition = "2024";',
    ),
    "names that hide others": proto(
        "package a.b; message a { message b { } } "
        "message X { .a.b.X x = 1; a.b ab = 2; message X { } X inner = 3; .a.b.a.b w = 4; }"
    ),
    "optional, and a message of a map before it": message(
        "optional int32 o = 1; string M = 2; message Leg { } map<string, Leg> legs = 3; map<string, M> more = 4;"
    ),
    "options for sources alone": proto(
        'import "google/protobuf/descriptor.proto"; extend google.protobuf.FieldOptions { optional bool src = 50001 '
        "[retention = RETENTION_SOURCE, targets = TARGET_TYPE_FIELD]; } message M { int32 a = 1 [(src) = true]; }",
    ),
    "extensions alone": proto(
        'import "google/protobuf/descriptor.proto"; extend google.protobuf.FieldOptions { optional bool pii = 50001; }'
    ),
    "services alone": proto(
        'import "google/protobuf/empty.proto"; '
        "service S { rpc R(google.protobuf.Empty) returns (google.protobuf.Empty); }"
    ),
    "imports alone": proto('import public "google/protobuf/empty.proto";'),
    "nothing": "",
}


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_text_and_descriptor_are_one_schema_and_nothing_is_lost(text: str) -> None:
    schema = parsed(text, "PROTOBUF")
    assert compiled(schema.canonical, {}).file[-1] == compiled(text, {}).file[-1]
    assert parsed(schema.canonical, "PROTOBUF").canonical == schema.canonical
    descriptor = schema.formatted("serialized")
    assert parsed(descriptor, "PROTOBUF").canonical == schema.canonical
    normal = schema.normalized().schema
    assert parsed(normal, "PROTOBUF").normalized().schema == normal
    without = parsed(schema.formatted("ignore_extensions"), "PROTOBUF")
    assert without.canonical == schema.formatted("ignore_extensions")
    assert "extend" not in without.canonical and "option (" not in without.canonical
    assert schema.formatted("resolved") == schema.canonical


def test_parts_of_an_option_that_are_assigned_one_by_one_are_one_option() -> None:
    """They are two unknown fields of the compiler's descriptor, and one option of the stored text."""
    options = '(confluent.field_meta).tags = "PII", (confluent.field_meta).tags = "PRIVATE"'
    text = f'syntax = "proto3"; import "confluent/meta.proto"; message M {{ string a = 1 [{options}]; }}'
    schema = parsed(text, "PROTOBUF")
    assert '(confluent.field_meta) = { tags: "PII" tags: "PRIVATE" }' in schema.canonical
    for sent in (compiled(text, {}).file[-1].SerializeToString(), base64.b64decode(schema.formatted("serialized"))):
        assert parsed(base64.b64encode(sent).decode(), "PROTOBUF").canonical == schema.canonical


def test_a_descriptor_with_options_that_nothing_defines_is_refused() -> None:
    file = FileDescriptorProto(name="a.proto", message_type=[{"name": "M"}])
    file.message_type[0].options.MergeFromString(b"\x82\xb5\x18\x01x")  # 50000: "x"
    with pytest.raises(InvalidSchema, match=r"options without a definition.*Register the \.proto file"):
        parsed(base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")


@pytest.mark.parametrize(
    ("body", "place", "reason"),
    [
        ("message M { string a = 1 }", "line 2, column 26", 'Expected ";"'),
        ("message M {\n  Other a = 1;\n  string b = 1;\n}", "line 3, column 3", '"Other" is not defined; .*number 1'),
        ('import "other.proto"; message M {}', "line 2, column 1", r"give the imported file as a ref.*\(other.proto\)"),
        ('import "/etc/passwd"; message M {}', "line 2, column 1", r"not found or had errors"),
        ('import "../../../etc/passwd"; message M {}', "line 2, column 1", r"not found or had errors"),
        ('import "google/protobuf/timestamp.proto"; message M { google.protobuf.Tomestamp a = 1; }', "line 2", "Tom"),
        ('import "google/protobuf/nope.proto"; message M { }', "line 2, column 1", "File not found|not found"),
        ("message M { reserved 2, 2; }", "line 2", "overlap"),
        ("message M { oneof o { } }", "line 2", "Expected type name"),
        ("message M { string ab_c = 1; string abC = 2; }", "line 2", "JSON name"),
        ("service S { rpc R (M) returns (N); }", "line 2", '"M" is not defined'),
        ("message M { " * 40 + "}" * 40, "line 2", "recursion limit"),
        (" ".join(f"message M{n} {{}}" for n in range(1_001)), "", "more than 1,000 messages"),
    ],
)  # fmt: skip
def test_the_compiler_refuses_with_its_words_and_the_line(body: str, place: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason) as caught:
        parsed(proto(body), "PROTOBUF")
    assert caught.value.schema_type == "PROTOBUF"
    assert caught.value.path.startswith(place)


@pytest.mark.parametrize("text", ["AAAA", "AAAAA", "!!!!", "\udc80"])
def test_what_is_no_proto_file(text: str) -> None:
    with pytest.raises(InvalidSchema):
        parsed(text, "PROTOBUF")


@pytest.mark.parametrize(
    "name", ["../x.proto", "/tmp/x.proto", "a//b.proto", "a\\b.proto", "x" * 300, "nul\0", "<schema>"]
)
def test_a_reference_is_written_below_the_compilers_directory_or_refused(name: str) -> None:
    with pytest.raises(InvalidSchema) as caught:
        parsed(proto(""), "PROTOBUF", (Reference(name, "s", 1),), {"s": SchemaText("", "PROTOBUF")})
    assert caught.value.path == "references"


def test_a_schema_that_takes_the_compiler_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protoc, "CPU_SECONDS", 1)
    ranges = f"reserved {', '.join(str(2 * n + 1) for n in range(100_000))};"  # it compares each with every other
    with pytest.raises(InvalidSchema, match="the compiler needs more than 1 s or 1024 MiB for it"):
        parsed(message(ranges), "PROTOBUF")


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


def test_messages_within_messages_are_compared_to_a_depth() -> None:
    def chain(last: str) -> ParsedSchema:
        links = " ".join(f"message M{n} {{ M{n + 1} next = 1; }}" for n in range(900))
        text = SchemaText(proto(f"package l; {links} message M900 {{ {last} x = 1; }}"), "PROTOBUF")
        head = proto('import "l.proto"; message F { l.M0 a = 1; }')
        return parsed(head, "PROTOBUF", (Reference("l.proto", "l", 1),), {"l": text})

    found = chain("int32").unreadable(chain("string"))
    assert {one.rule for one in found} == {"FIELD_NAMED_TYPE_CHANGED"}
    assert found[-1].path == "#/F/1"
