"""Registration and lookup: ids, versions, what counts as the same schema, contexts, references, metadata, imports."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus.errors import IncompatibleSchema
from schema_registry.entities import Metadata, Rule, RuleSet, SchemaRequest
from serdes.registry import Reference
from tests.schema_registry.core.lab import INT, LONG, STRING, Lab, record, refused

TWO = record("R", "a", {"name": "b", "type": "int", "default": 0})


@pytest.fixture
def lab() -> Lab:
    return Lab()


# ids and versions ----------------------------------------------------------------------------------------------------


def test_a_schema_has_one_id_wherever_it_is(lab: Lab) -> None:
    assert [lab.register(subject, text).id for subject, text in (("a", INT), ("b", LONG), ("c", INT))] == [1, 2, 1]
    assert lab.register("a", INT).version == 1, "again is the same version"
    assert lab.subjects_of_id(1) == ["a", "c"]
    assert [(one.subject, one.version) for one in lab.versions_of_id(1)] == [("a", 1), ("c", 1)]


def test_versions_count_up(lab: Lab) -> None:
    first, second = lab.register("a", record("R", "a")), lab.register("a", TWO)
    assert (first.version, second.version) == (1, 2)
    assert lab.versions("a") == [1, 2]
    assert lab.version("a", "latest") == lab.version("a", -1) == lab.version("a", 2) == second
    assert lab.schema_by_id(second.id, subject="a").version == 2
    assert lab.schema_by_id(first.id, fetch_max_id=True).max_id == 2


def test_other_spellings_are_the_same_schema(lab: Lab) -> None:
    first = lab.register("a", '{"type": "string"}')
    assert first.schema == STRING
    assert lab.register("a", STRING) == first == lab.lookup("a", SchemaRequest(schema=' {"type":"string"}'))


def test_normalize_forgives_order(lab: Lab) -> None:
    plain = '{"type":"record","name":"R","fields":[],"b":1,"a":2}'
    other = '{"type":"record","name":"R","fields":[],"a":2,"b":1}'
    first = lab.register("a", plain, normalize=True)
    assert lab.register("a", other, normalize=True) == first
    assert lab.register("a", other).version == (1 if first.schema == lab.register("z", other).schema else 2)
    lab.configure("n", normalize=True)
    assert lab.register("n", plain).id == lab.register("n", other).id == first.id


def test_guids_do_not_depend_on_the_context(lab: Lab) -> None:
    here, there = lab.register("a", INT), lab.register(":.c:a", INT)
    assert here.guid == there.guid == "ef524ea1-b91e-7317-3d93-8ade36c1db32"
    assert [(one.context, one.id) for one in lab.ids_of_guid(here.guid or "")] == [(".", 1), (".c", 1)]
    assert lab.schema_by_guid(here.guid or "").schema == INT
    with refused(404, 40403):
        lab.schema_by_guid("0" * 32)
    assert lab.ids_of_guid("no guid") == []


# deletion ------------------------------------------------------------------------------------------------------------


def test_what_is_softly_deleted_is_found_by_id_only(lab: Lab) -> None:
    lab.register("a", INT)
    assert lab.delete_subject("a") == [1]
    assert lab.schema_by_id(1).schema == INT
    assert lab.subjects() == [] and lab.subjects(deleted=True) == lab.subjects(deleted_only=True) == ["a"]
    with refused(404, 40401):
        lab.version("a", "latest")
    with refused(404, 40401):
        lab.lookup("a", SchemaRequest(schema=INT))
    assert lab.lookup("a", SchemaRequest(schema=INT), deleted=True).deleted
    assert lab.version("a", 1, deleted=True).deleted
    assert lab.versions("a", deleted=True) == [1] and lab.versions("a", deleted_only=True) == [1]
    with refused(404, 40401):
        lab.versions("a")


def test_a_deleted_schema_comes_back_with_its_id(lab: Lab) -> None:
    lab.register("a", INT)
    lab.delete_subject("a")
    back = lab.register("a", INT)
    assert (back.id, back.version) == (1, 2)
    assert lab.versions("a", deleted=True) == [2], "the deleted version of the same id has gone"


def test_what_is_gone_for_good_gets_a_new_id(lab: Lab) -> None:
    lab.register("a", INT)
    lab.configure("a", compatibility="FULL")
    lab.set_mode("READWRITE", "a")
    lab.delete_subject("a")
    assert lab.delete_subject("a", permanent=True) == [1]
    with refused(404, 40403):
        lab.schema_by_id(1)
    with refused(404, 40408):
        lab.config("a")
    with refused(404, 40409):
        lab.mode("a")
    assert (lab.register("a", INT).id, lab.register("a", INT).version) == (2, 1)


def test_one_version(lab: Lab) -> None:
    lab.register("a", record("R", "a"))
    lab.register("a", TWO)
    assert lab.delete_version("a", "latest") == 2
    assert lab.versions("a") == [1] and lab.versions("a", deleted=True, deleted_as_negative=True) == [1, -2]
    assert lab.delete_version("a", 2, permanent=True) == 2
    assert lab.delete_version("a", 1) == 1 and lab.delete_version("a", 1, permanent=True) == 1
    assert lab.subjects(deleted=True) == []


# what may follow what ------------------------------------------------------------------------------------------------


def test_an_incompatible_schema_is_kept_out(lab: Lab) -> None:
    lab.register("a", record("R", "a"))
    with pytest.raises(IncompatibleSchema, match='incompatible with an earlier schema for subject "a"') as caught:
        lab.register("a", record("R", "b"))
    assert (caught.value.status, caught.value.error_code) == (409, 40901)
    assert caught.value.findings[0].rule == "READER_FIELD_MISSING_DEFAULT_VALUE"
    assert caught.value.messages[-1] == "{validateFields: 'false', compatibility: 'BACKWARD'}"
    assert lab.register("a", record("R", "b"), force=True).version == 2


def test_only_the_newest_undeleted_version_counts(lab: Lab) -> None:
    lab.register("a", record("R", "a"))
    lab.register("a", record("R", {"name": "b", "type": "int", "default": 0}))
    lab.delete_version("a", 2)
    with pytest.raises(IncompatibleSchema):
        lab.register("a", record("R", "b"))
    lab.configure("a", compatibility="none")
    assert lab.register("a", record("R", "b")).version == 3


def test_transitive_levels_look_at_all(lab: Lab) -> None:
    lab.configure("a", compatibility="FORWARD")
    one, two = record("R", "a", "b"), record("R", "a", "c", {"name": "b", "type": "int", "default": 0})
    lab.register("a", one)
    lab.register("a", two)
    request = SchemaRequest(schema=record("R", "a", "c"))
    assert lab.check("a", "latest", request).is_compatible
    assert not lab.check("a", 1, request).is_compatible
    assert lab.check("a", None, request).is_compatible, "not transitive: the newest counts"
    lab.configure("a", compatibility="FORWARD_TRANSITIVE")
    answer = lab.check("a", None, request, verbose=True)
    assert not answer.is_compatible and answer.messages and "READER_FIELD_MISSING" in answer.messages[0]


def test_checks_of_what_is_not_there(lab: Lab) -> None:
    request = SchemaRequest(schema=INT)
    assert lab.check("a", "latest", request).is_compatible
    assert lab.check("a", None, request).is_compatible
    with refused(404, 40402):
        lab.check("a", 1, request)
    with refused(422, 42202):
        lab.check("a", "first", request)
    with refused(422, 42201):
        lab.check("a", "latest", SchemaRequest(schema="{"))
    answer = lab.check("a", "latest", SchemaRequest(schema="{"), verbose=True)
    assert not answer.is_compatible and answer.messages


def test_compatibility_groups(lab: Lab) -> None:
    lab.configure("a", compatibility_group="major")
    one, two = Metadata(properties={"major": "1"}), Metadata(properties={"major": "2"})
    lab.register("a", record("R", "a"), metadata=one)
    with pytest.raises(IncompatibleSchema):
        lab.register("a", record("R", "b"), metadata=one)
    assert lab.register("a", record("R", "b"), metadata=two).version == 2


# contexts ------------------------------------------------------------------------------------------------------------


def test_a_context_is_a_registry_of_its_own(lab: Lab) -> None:
    lab.register("a", INT)
    there = lab.register(":.c:a", LONG)
    assert (there.id, there.subject) == (1, ":.c:a")
    assert lab.contexts() == [".", ".c"] and lab.contexts(context_prefix=".c") == [".c"]
    assert lab.subjects() == [":.c:a", "a"] and lab.subjects(subject_prefix="") == ["a"]
    assert lab.subjects(subject_prefix=":.c:") == [":.c:a"] and lab.subjects(subject_prefix=":*:b") == []
    assert lab.schema_by_id(1, subject=":.c:").schema == LONG
    assert lab.schema_by_id(1, subject=":.c:a").schema == LONG
    assert lab.register(":.:b", STRING).subject == "b"


def test_a_plain_name_is_looked_for_in_every_context(lab: Lab) -> None:
    lab.register(":.c:x", INT)
    lab.register(":.c:y", LONG)
    assert lab.version("x", 1).subject == ":.c:x"
    assert lab.lookup("y", SchemaRequest(schema=LONG)).subject == ":.c:y"
    assert lab.schema_by_id(2, subject="y").subject == ":.c:y"


def test_contexts_are_deleted_when_empty(lab: Lab) -> None:
    lab.register(":.c:a", INT)
    with refused(422, 42211):
        lab.delete_context(":.c:")
    lab.delete_subject(":.c:a")
    with refused(422, 42211):
        lab.delete_context(".c")
    lab.delete_subject(":.c:a", permanent=True)
    lab.delete_context(".c")
    assert lab.contexts() == ["."]
    with refused(404, 40401):
        lab.delete_context(".c")
    assert lab.register(":.c:a", INT).id == 2, "not even a context's ids begin anew"


# references ----------------------------------------------------------------------------------------------------------

REF = Reference("Inner", "inner", 1)
OUTER = record("Outer", {"name": "i", "type": "Inner"})


def test_references(lab: Lab) -> None:
    inner = lab.register("inner", record("Inner", "a"))
    outer = lab.register("outer", OUTER, references=[REF])
    assert outer.references == (REF,)
    assert lab.referenced_by("inner", 1) == [outer.id]
    assert lab.version("outer", 1, format="resolved").schema == record(
        "Outer", {"name": "i", "type": {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "int"}]}}
    )
    with refused(422, 42206):
        lab.delete_version("inner", 1)
    with refused(422, 42206):
        lab.delete_subject("inner")
    lab.delete_subject("outer")
    assert lab.referenced_by("inner", 1) == [] and lab.referenced_by("inner", 1, deleted=True) == [outer.id]
    lab.delete_subject("inner")
    with refused(422, 42206):
        lab.delete_subject("inner", permanent=True)
    with refused(422, 42201, "No schema reference found"):
        lab.register("other", OUTER, references=[REF])
    lab.delete_subject("outer", permanent=True)
    lab.delete_subject("inner", permanent=True)
    assert lab.state.referrers == {} and inner.id == 1


def test_references_stay_in_their_context(lab: Lab) -> None:
    lab.register(":.c:inner", record("Inner", "a"))
    outer = lab.register(":.c:outer", OUTER, references=[REF])
    assert lab.version(":.c:outer", 1).references == (REF,)
    qualified = lab.version(":.c:outer", 1, reference_format="qualified").references
    assert qualified == (Reference("Inner", ":.c:inner", 1),)
    assert lab.referenced_by(":.c:inner", 1) == [outer.id]
    with refused(422, 42201):
        lab.register("outer", OUTER, references=[REF])


@pytest.mark.parametrize(
    "references",
    [[Reference("Inner", "nowhere", 1)], [Reference("Inner", "inner", 2)], [REF, REF], [Reference("I", "outer", 1)]],
)
def test_references_that_lead_nowhere(lab: Lab, references: list[Reference]) -> None:
    lab.register("inner", record("Inner", "a"))
    with refused(422, 42201):
        lab.register("outer", OUTER, references=references)


def test_a_reference_to_the_latest_version_is_pinned(lab: Lab) -> None:
    lab.register("inner", record("Inner", "a"))
    outer = lab.register("outer", OUTER, references=[Reference("Inner", "inner", -1)])
    assert outer.references == (REF,)
    with refused(422, 42206):
        lab.delete_version("inner", 1)
    with refused(422, 42201):
        lab.register("other", OUTER, references=[Reference("Inner", "nowhere", -1)])


def test_what_is_written_out_is_the_same_schema(lab: Lab) -> None:
    lab.register("inner", record("Inner", "a"))
    first = lab.register("outer", OUTER, references=[REF])
    written_out = lab.version("outer", 1, format="resolved").schema
    assert lab.lookup("outer", SchemaRequest(schema=written_out)).id == first.id
    assert lab.register("outer", written_out).version == 1


# metadata and rules --------------------------------------------------------------------------------------------------

RULES = RuleSet(domain_rules=[Rule(name="r", kind="CONDITION", mode="WRITE", type="CEL", expr="true")])


def test_metadata_makes_another_schema(lab: Lab) -> None:
    plain = lab.register("a", INT)
    tagged = lab.register("a", INT, metadata=Metadata(properties={"b": "2", "a": "1"}), rule_set=RULES)
    assert (tagged.version, tagged.id) == (2, 2) and plain.guid != tagged.guid
    assert tagged.metadata is not None and list(tagged.metadata.properties) == ["a", "b"]
    assert lab.subject_metadata("a", key=["a"], value=["1"]).version == 2
    with refused(404, 40403):
        lab.subject_metadata("a", key=["a"], value=["2"])
    with refused(404, 40401):
        lab.subject_metadata("b", key=["a"], value=["2"])
    assert len(lab.schemas(rule_type="CEL")) == 1


def test_metadata_is_inherited_by_the_next_version(lab: Lab) -> None:
    lab.register("a", record("R", "a"), metadata=Metadata(properties={"owner": "Ada"}), rule_set=RULES)
    second = lab.register("a", TWO)
    assert second.metadata == Metadata(properties={"owner": "Ada"}) and second.rule_set is not None
    assert lab.lookup("a", SchemaRequest(schema=TWO)).version == 2
    assert lab.register("a", "", metadata=Metadata(properties={"owner": "Bob"})).version == 3
    assert lab.version("a", 3).schema == TWO


def test_config_lays_metadata_over_and_under(lab: Lab) -> None:
    lab.configure(
        "a",
        default_metadata=Metadata(properties={"team": "x", "owner": "nobody"}),
        override_metadata=Metadata(properties={"tier": "1"}),
        default_rule_set=RULES,
    )
    found = lab.register("a", INT, metadata=Metadata(properties={"owner": "Ada", "tier": "9"})).metadata
    assert found is not None and found.properties == {"owner": "Ada", "team": "x", "tier": "1"}
    assert lab.version("a", 1).rule_set is not None


def test_the_version_in_the_metadata(lab: Lab) -> None:
    first = lab.register("a", record("R", "a"), version=1)
    assert first.metadata == Metadata(properties={"confluent:version": "1"})
    assert lab.register("a", record("R", "a")).version == 1, "the version in the metadata makes no difference"
    assert lab.register("a", TWO, version=-1).metadata == Metadata(properties={"confluent:version": "2"})
    with refused(422, 42201, "Version is not one more"):
        lab.register("a", record("R", "a", {"name": "c", "type": "int", "default": 0}), version=7)


def test_reserved_fields(lab: Lab) -> None:
    def reserved(names: str) -> Metadata:
        return Metadata(properties={"confluent:reserved": names})

    lab.configure("a", validate_fields=True)
    lab.register("a", record("R", "a"), metadata=reserved("x, y"))
    with pytest.raises(IncompatibleSchema, match="reserved field y removed from its metadata"):
        lab.register("a", TWO, metadata=reserved("x"))
    with pytest.raises(IncompatibleSchema, match="conflicts with the reserved field b") as caught:
        lab.register("a", TWO, metadata=reserved("x, y, b"))
    assert caught.value.messages[-1] == "{validateFields: 'true', compatibility: 'BACKWARD'}"
    assert lab.register("a", TWO, metadata=reserved("x, y, z")).version == 2


@pytest.mark.parametrize("wish", [{"schema_tags_to_add": [{}]}, {"propagate_schema_tags": True}])
def test_inline_tags_are_part_of_the_text(lab: Lab, wish: dict[str, Any]) -> None:
    text = '{"type":"record","name":"R","fields":[{"name":"a","type":"int","confluent:tags":["PII"]}]}'
    with refused(422, 42201, "confluent:tags"):
        lab.register("a", text, **wish)
    assert lab.register("a", text, propagate_schema_tags=False, schema_tags_to_add=[]).schema == text


# import --------------------------------------------------------------------------------------------------------------


def test_import_keeps_ids(lab: Lab) -> None:
    lab.set_mode("IMPORT")
    first = lab.register("a", record("R", "a"), id=100, version=3)
    assert (first.id, first.version) == (100, 3)
    assert lab.register("a", record("R", "z"), id=7, version=1).version == 1, "nothing is compared"
    assert lab.register("b", record("R", "a"), id=100).version == 1
    assert lab.register("a", record("R", "a"), id=100, version=3) == first, "twice is as once"
    with refused(422, 42205, "Overwrite new schema with id 100"):
        lab.register("c", INT, id=100)
    with refused(422, 42205, "Version 3 of subject a"):
        lab.register("a", INT, id=8, version=3)
    with refused(422, 42205, "not in read-write mode"):
        lab.register("a", INT)
    lab.set_mode("READWRITE")
    assert lab.register("z", STRING).id == 101


def test_import_needs_an_empty_registry(lab: Lab) -> None:
    lab.register("a", INT)
    with refused(422, 42205, "Cannot import since found existing subjects"):
        lab.set_mode("IMPORT")
    lab.set_mode("IMPORT", "b")
    assert lab.register("b", LONG, id=50).id == 50
    lab.delete_subject("a")
    lab.set_mode("READWRITE", "b")
    lab.delete_subject("b")
    lab.set_mode("IMPORT")
    assert lab.subjects(deleted=True) == [], "what was softly deleted has gone for good"
    assert lab.set_mode("IMPORT", force=True).mode == "IMPORT"


def test_an_id_outside_of_import(lab: Lab) -> None:
    with refused(422, 42205, "not in import mode"):
        lab.register("a", INT, id=5)
    first = lab.register("a", INT)
    assert lab.register("a", INT, id=first.id) == first, "what is there already is answered"
    with refused(422, 42205, "not in import mode"):
        lab.register("a", INT, id=first.id + 1)
