"""Levels, directions, and the lines that registries answer with."""

from __future__ import annotations

import pytest

from schema_registry.formats import check
from tests.schema_registry.compatibility.schemas import checked, column, parsed, record

ONE = record(column("a", "int"))
TWO = record(column("a", "int"), column("b", "string", default=""))
THREE = record(column("a", "int"), column("c", "string"))

MISSING = (
    "{{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field '{0}' at path '/fields/1' in the {1} "
    "schema has no default value and is missing in the {2} schema', additionalInfo:'{0}'}}"
)
TEXT_OF_ONE = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
TEXT_OF_THREE = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"c","type":"string"}]}'


def test_backward_names_the_version_and_the_old_schema() -> None:
    verdict = checked("BACKWARD", THREE, ONE)
    assert verdict.messages == (
        MISSING.format("c", "new", "old"),
        "{oldSchemaVersion: 1}",
        f"{{oldSchema: '{TEXT_OF_ONE}'}}",
        "{validateFields: 'false', compatibility: 'BACKWARD'}",
    )
    assert not verdict


def test_forward_reads_the_new_data_with_the_old_schema() -> None:
    assert checked("FORWARD", THREE, ONE)
    assert checked("FORWARD", ONE, THREE).messages == (
        MISSING.format("c", "old", "new"),
        "{oldSchemaVersion: 1}",
        f"{{oldSchema: '{TEXT_OF_THREE}'}}",
        "{validateFields: 'false', compatibility: 'FORWARD'}",
    )


def test_full_names_the_old_schema_only_where_the_new_one_cannot_read_it() -> None:
    assert checked("FULL", ONE, THREE).messages == (
        MISSING.format("c", "old", "new"),
        "{validateFields: 'false', compatibility: 'FULL'}",
    )
    both = checked("FULL", record(column("a", "int"), column("d", "int")), THREE)
    assert [line.partition(":")[0] for line in both.messages] == [
        "{errorType",
        "{errorType",
        "{oldSchemaVersion",
        "{oldSchema",
        "{validateFields",
    ]
    assert [finding.reader for finding in both.findings] == ["old", "new"]


@pytest.mark.parametrize("level", ["BACKWARD", "FORWARD", "FULL"])
def test_only_transitive_levels_look_at_all_versions(level: str) -> None:
    far = record(column("a", "string"))
    assert checked(level, TWO, far, ONE)
    verdict = checked(f"{level}_TRANSITIVE", TWO, far, ONE)
    assert not verdict
    assert {finding.version for finding in verdict.findings} == {1}


def test_the_newest_version_that_refuses_is_reported_alone() -> None:
    verdict = checked("BACKWARD_TRANSITIVE", THREE, ONE, TWO)
    assert {finding.version for finding in verdict.findings} == {2}


def test_none_accepts_anything_and_the_first_version_fits_every_level() -> None:
    assert checked("NONE", "int", ONE)
    assert checked("FULL_TRANSITIVE", ONE)


def test_a_long_old_schema_is_cut() -> None:
    long = record(column("a", "int"), doc="x" * 20_000)
    line = checked("BACKWARD", THREE, long).messages[2]
    assert line.startswith('{oldSchema: <truncated> \'{"type":"record"')
    assert line.endswith("x...'}")
    assert len(line) == len("{oldSchema: <truncated> '...'}") + 10 * 1024


@pytest.mark.system
def test_another_type_of_schema_never_fits() -> None:
    verdict = check("BACKWARD", parsed({"type": "object"}, "JSON"), [(3, parsed(ONE))])
    assert verdict.messages == (
        "Incompatible because of different schema type",
        "{validateFields: 'false', compatibility: 'BACKWARD'}",
    )
    assert "version 3 is AVRO" in verdict.findings[0].explanation


def test_the_last_line_says_whether_fields_are_validated() -> None:
    verdict = check("BACKWARD", parsed(THREE), [(1, parsed(ONE))], validate_fields=True)
    assert verdict.messages[-1] == "{validateFields: 'true', compatibility: 'BACKWARD'}"


def test_an_unknown_level_is_named() -> None:
    with pytest.raises(ValueError, match="unknown compatibility level 'SIDEWAYS': use one of BACKWARD"):
        checked("SIDEWAYS", ONE)


def test_the_logical_policy_adds_what_breaks_tables() -> None:
    scaled = [
        record(column("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}))
        for scale in (2, 4)
    ]
    assert checked("BACKWARD", scaled[1], scaled[0])
    verdict = checked("BACKWARD", scaled[1], scaled[0], policy="LOGICAL")
    assert [finding.rule for finding in verdict.findings] == ["DECIMAL_CHANGED"]
    assert verdict.messages[0].startswith("{errorType:'DECIMAL_CHANGED'")
