"""Rows of docs/internals/reports/checklist.md about schemas."""

from __future__ import annotations

from tests.checklist_rows import Row, Section

R, A, C = "tests/schema_registry/", "tests/serdes/", "tests/client/"

SCHEMA_TOOLS = Section(
    "Schema tools", 149, 150,
    (
        Row(149, "confluent local start", "answered",
            "`eventbus serve --registry-port 8081`: the log and the registry, one process, no JVM",
            (R + "http/test_serve.py::test_beside_the_log_and_alone",), page="schemas.md#http"),
        Row(150, "Avro classes by a Maven plugin", "answered",
            "`eventbus schema codegen` makes msgspec classes of a subject or a file; a class says its own schema, so "
            "back as well",
            (R + "tools/test_commands.py::test_codegen", R + "tools/test_commands.py::test_codegen_and_back",
             A + "avro_model/test_properties.py::test_generated_python_says_the_same_schema"),
            page="schemas.md#the-first-avro-event"),
    ),
)  # fmt: skip

SCHEMAS = Section(
    "Schemas", 158, 162,
    (
        Row(158, "Avro schemas: record, enum, nested, default, doc, logical types", "answered",
            "parsed and printed as Java does, so a string as the default of a number is refused, with its place, and a "
            "logicalType beside the type has no effect; a nested record's default is filled as Java fills it",
            (R + "tools/test_commands.py::test_a_default_of_the_wrong_type_is_refused_with_its_place",
             A + "avro_model/test_parse.py::test_a_number_s_default_written_as_a_string_is_refused",
             A + "avro_model/test_parse.py::test_a_logical_type_beside_the_type_has_no_effect",
             A + "avro_model/test_vectors.py::test_the_recorded_verdicts_and_texts_of_java",
             A + "avro_codec/test_resolution.py::test_a_nested_records_default_is_filled_with_its_own_fields_defaults"),
            page="schemas.md#the-first-avro-event"),
        Row(159, "KafkaAvroSerializer, KafkaAvroDeserializer, schema.registry.url", "answered",
            '`Avro("http://host:8081")`, the same bytes; and back: Confluent\'s clients on this registry',
            (A + "avro_codec/test_confluent.py::test_both_write_the_same_bytes_and_read_each_others",
             R + "clients/test_confluent.py::test_avro_there_and_back",
             R + "clients/test_kafkajs.py::test_avro_there_and_back"),
            page="schemas.md#http"),
        Row(160, "versions of a schema, compatibility levels", "answered",
            "all seven levels, per subject, with the verdicts of Java; kept in the compacted topic `_schemas`, in the "
            "bytes that Confluent's registry writes",
            (R + "compatibility/test_avro_java.py::test_ten_thousand_pairs_as_java_judged_them",
             R + "compatibility/test_levels.py::test_only_transitive_levels_look_at_all_versions",
             R + "core/test_records.py::test_bytes_are_confluents",
             R + "core/test_registry.py::test_what_was_registered_is_there_after_a_restart"),
            ("22_avro_evolution.py",), "schemas.md#a-type-changes"),
        Row(161, "a long as the key, Avro as the value", "answered", "each by its own type",
            (C + "test_avro.py::test_types_and_annotations_say_it_one_by_one",), ("23_mixed_serdes.py",),
            "schemas.md#several-types-in-one-topic"),
        Row(162, "several types of events in one topic", "answered",
            '`Avro(..., subject="topic_record_name")`; a handler takes a union and looks at the type',
            (C + "test_avro.py::test_records_of_several_types_in_one_topic",
             R + "tools/test_check.py::test_several_events_in_one_topic_have_subjects_of_their_own"),
            ("23_mixed_serdes.py",), "schemas.md#several-types-in-one-topic"),
    ),
)  # fmt: skip
