"""Configs, modes, aliases: each level, and who inherits what."""

from __future__ import annotations

import pytest

from schema_registry import backup
from schema_registry.entities import Config, ConfigUpdate, Mode, Rule, RuleSet, SchemaRequest
from tests.schema_registry.core.lab import INT, LONG, STRING, Lab, record, refused


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_levels(lab: Lab) -> None:
    assert lab.config() == Config(compatibility_level="BACKWARD")
    assert lab.config("s", default_to_global=True).compatibility_level == "BACKWARD"
    with refused(404, 40408):
        lab.config("s")
    assert lab.configure(compatibility="full") == ConfigUpdate(compatibility="FULL")
    assert lab.config("s", default_to_global=True).compatibility_level == "FULL"
    lab.configure("s", compatibility="NONE", normalize=True)
    assert lab.config("s") == Config(compatibility_level="NONE", normalize=True)
    assert lab.configure("s", alias="t") == ConfigUpdate(compatibility="NONE", normalize=True, alias="t")
    assert lab.configure("s", normalize=None, alias=None) == ConfigUpdate(compatibility="NONE")
    assert lab.delete_config("s") == Config(compatibility_level="NONE")
    with refused(404, 40401):
        lab.delete_config("s")
    assert lab.delete_config() == Config(compatibility_level="FULL")
    assert lab.config() == Config(compatibility_level="BACKWARD")
    assert lab.state.configs == {}


def test_a_context_has_settings_of_its_own(lab: Lab) -> None:
    lab.configure(compatibility="FULL")
    assert lab.config(":.c:s", default_to_global=True).compatibility_level == "BACKWARD", "not the default context's"
    lab.configure(":.__GLOBAL:", compatibility="FORWARD")
    assert lab.config(":.c:s", default_to_global=True).compatibility_level == "FORWARD"
    lab.configure(":.c", compatibility="NONE")
    assert lab.config(":.c:") == lab.config(":.c:s", default_to_global=True) == Config(compatibility_level="NONE")
    assert lab.config(":.:") == lab.config()
    lab.set_mode("READONLY", ":.c:")
    assert lab.mode(":.c:s", default_to_global=True) == Mode("READONLY")
    assert lab.mode("s", default_to_global=True) == Mode("READWRITE")


def test_a_subjects_config_inherits_members_from_the_global_one(lab: Lab) -> None:
    lab.configure(normalize=True, compatibility_group="major", compatibility="FULL")
    lab.configure("s", validate_fields=True)
    found = lab.config("s", default_to_global=True)
    assert (found.normalize, found.compatibility_group, found.validate_fields) == (True, "major", True)
    assert found.compatibility_level == "BACKWARD", "but its level is the server's, as in Confluent's registry"


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"compatibility": "SIDEWAYS"}, 42203),
        ({"compatibility": ""}, 42203),
        ({"compatibility_policy": "RELAXED"}, 42203),
        ({"default_rule_set": RuleSet(domain_rules=[Rule(name="1")])}, 42210),
        ({"override_rule_set": RuleSet(domain_rules=[Rule(name="a"), Rule(name="b", type="CEL")])}, 42210),
        ({"default_rule_set": RuleSet(migration_rules=[Rule(name="a", type="CEL", mode="READ")])}, 42210),
        ({"default_rule_set": RuleSet(domain_rules=[Rule(name="a", type="CEL", mode="UPGRADE")])}, 42210),
        ({"default_rule_set": RuleSet(domain_rules=[Rule(name="a", type="CEL"), Rule(name="a", type="CEL")])}, 42210),
        (
            {"default_rule_set": RuleSet(domain_rules=[Rule(name="a", type="C", mode="READ", on_failure="A,B")])},
            42210,
        ),
    ],
)
def test_settings_that_are_refused(lab: Lab, members: dict[str, object], code: int) -> None:
    with refused(422, code):
        lab.configure("s", **members)
    assert lab.log == []


@pytest.mark.parametrize("subject", ["a\nb", "__GLOBAL", ":.c:__EMPTY"])
def test_subjects_that_have_no_settings(lab: Lab, subject: str) -> None:
    with refused(422, 42208):
        lab.configure(subject, compatibility="NONE")
    with refused(422, 42208):
        lab.set_mode("READONLY", subject)


def test_modes(lab: Lab) -> None:
    assert lab.mode() == Mode("READWRITE")
    with refused(404, 40409):
        lab.mode("s")
    assert lab.set_mode("readonly", "s") == Mode("readonly")
    assert lab.mode("s") == Mode("READONLY")
    with refused(422, 42204):
        lab.set_mode("SLOW")
    with refused(422, 42204, "global level"):
        lab.set_mode("FORWARD", "s")
    assert lab.delete_mode("s") == Mode("READONLY")
    with refused(404, 40401):
        lab.delete_mode("s")
    lab.set_mode("IMPORT", "x")
    lab.set_mode("FORWARD")
    assert lab.delete_mode(recursive=True) == Mode("FORWARD")
    assert lab.state.modes == {}


def test_nothing_is_written_in_readonly(lab: Lab) -> None:
    first = lab.register("s", INT)
    lab.set_mode("READONLY", "s")
    assert lab.register("s", INT) == first, "what is there already is answered"
    for change in (
        lambda: lab.register("s", LONG),
        lambda: lab.delete_subject("s"),
        lambda: lab.delete_version("s", 1),
        lambda: lab.configure("s", compatibility="NONE"),
    ):
        with refused(422, 42205, "is in read-only mode"):
            change()
    assert lab.register("t", LONG).id == 2
    lab.set_mode("READONLY_OVERRIDE")
    with refused(422, 42205):
        lab.register("t", STRING)


def test_an_alias_is_another_subject(lab: Lab) -> None:
    lab.register("real", record("R", "a"))
    lab.configure("nick", alias="real")
    assert lab.version("nick", 1).subject == "real"
    assert lab.versions("nick") == [1]
    assert lab.lookup("nick", SchemaRequest(schema=record("R", "a"))).subject == "real"
    assert lab.schema_by_id(1, subject="nick").subject == "real"
    assert [one.aliases for one in lab.schemas(aliases=True)] == [["nick"]]
    assert [one.subject for one in lab.schemas(subject_prefix="ni", aliases=True)] == ["real"]
    assert not lab.check("nick", "latest", SchemaRequest(schema=record("R", "b"))).is_compatible


def test_pages(lab: Lab) -> None:
    for number in range(5):
        lab.register(f"s{number}", record(f"R{number}"))
    assert lab.subjects(offset=1, limit=2) == ["s1", "s2"]
    assert [one.subject for one in lab.schemas(offset=3)] == ["s3", "s4"]
    assert lab.schemas(limit=0) == [] and len(lab.schemas(limit=100_000)) == 5
    assert [one.subject for one in lab.schemas(subject_prefix="s3", latest_only=True)] == ["s3"]
    assert lab.schema_types() == ["JSON", "PROTOBUF", "AVRO"]
    assert lab.associations(resource_name="orders", resource_namespace="-") == []


def test_associations_of_another_registry(lab: Lab) -> None:
    """They are read and answered, and stay in an export; none are made here."""
    value = {"guid": "g", "tenant": "default", "resourceName": "orders", "resourceNamespace": "lkc", "resourceId": "i"}
    value |= {"resourceType": "topic", "associationType": "value", "subject": "s", "lifecycle": "WEAK"}
    key = '{"keytype":"ASSOC","tenant":"default","resourceName":"orders","subject":"s","magic":0}'
    lab.put(key, value)
    (found,) = lab.associations(resource_name="orders", resource_namespace="-", association_type=["value"])
    assert (found.subject, found.resource_id) == ("s", "i")
    assert lab.associations(subject="s") == lab.associations(resource_id="i") == [found]
    assert lab.associations(association_type=["key"]) == lab.associations(resource_name="other") == []
    (line,) = backup.lines(lab.state, subject_prefix=":*:", deleted=True)
    assert line.startswith(b'{"key":' + key.encode())
    lab.put(key, None)
    assert lab.associations() == []
