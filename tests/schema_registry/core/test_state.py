"""The fold: what any topic adds up to, whoever wrote it and however often it is read again."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schema_registry import records
from schema_registry.ledger import Ledger, Stored
from schema_registry.records import Key, SchemaValue
from schema_registry.schemas import Schemas
from tests.schema_registry.core.lab import INT, LONG, STRING, Lab, record, refused

SCHEMA_KEY = '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
SUBJECTS = ["a", "b", ":.c:a"]
TEXTS = [INT, LONG, STRING, record("R", "x"), record("R", "x", {"name": "y", "type": "int", "default": 0})]


@st.composite
def lives(draw: st.DrawFn) -> Lab:
    """A registry after anything its users may do."""
    lab = Lab()
    lab.configure(compatibility="NONE")
    subject, text = st.sampled_from(SUBJECTS), st.sampled_from(TEXTS)
    for step in draw(st.lists(st.integers(0, 9), max_size=25)):
        name = draw(subject)
        try:
            match step:
                case 0 | 1 | 2 | 3:
                    lab.register(name, draw(text))
                case 4:
                    lab.delete_subject(name, permanent=draw(st.booleans()))
                case 5:
                    lab.delete_version(name, draw(st.integers(1, 3)), permanent=draw(st.booleans()))
                case 6:
                    lab.configure(name, compatibility="NONE", normalize=draw(st.booleans()))
                case 7:
                    lab.set_mode(draw(st.sampled_from(["IMPORT", "READWRITE"])), name, force=draw(st.booleans()))
                case 8:
                    lab.delete_config(name)
                case _:
                    lab.register(name, draw(text), id=draw(st.integers(1, 6)))
        except Exception as error:
            assert getattr(error, "status", 500) < 500, error
    return lab


@pytest.mark.system
@given(lives())
def test_the_state_is_that_of_its_records(lab: Lab) -> None:
    """After a life, after reading the topic again, after compaction: the same; and one step ahead as well."""
    hard = repr(lab.state)
    assert repr(lab.ahead) == hard
    assert repr(lab.replayed().state) == hard
    compacted = Lab(lab.compacted()).state
    assert compacted.subjects == lab.state.subjects
    assert compacted.configs == lab.state.configs
    assert compacted.max_ids.get(".", 0) == lab.state.max_ids.get(".", 0)


@pytest.mark.system
@given(lives())
def test_an_id_means_one_schema(lab: Lab) -> None:
    for context in lab.state.places:
        for id in lab.state.places[context]:
            assert len({one.content.guid for one in lab.state.with_id(context, id)}) == 1
            assert id <= lab.state.max_ids[context]


def test_a_record_folded_twice_is_folded_once() -> None:
    lab = Lab()
    lab.register("a", INT)
    lab.delete_subject("a")
    assert repr(Lab([*lab.log, *lab.log]).state) == repr(lab.state)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ('{"keytype":"EXPORTER","name":"x"}', "{}"),
        ("not json", "{}"),
        ('{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', "not json"),
        ('{"keytype":"SCHEMA","subject":"s","version":1,"magic":7}', '{"subject":"s","version":1,"id":1,"schema":""}'),
        ('{"keytype":"DELETE_SUBJECT","subject":"a","magic":0}', '{"subject":"a","version":null}'),
        ('{"keytype":"DELETE_SUBJECT","subject":"a","magic":0}', None),
        ('{"keytype":"MODE","magic":0}', '{"mode":null}'),
    ],
)
def test_what_cannot_be_read_is_passed_over(key: str, value: str | None, caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab()
    lab.register("a", INT)
    before = repr(lab.state)
    with caplog.at_level(logging.WARNING, "schema_registry"):
        lab.put(key, value)
    assert repr(lab.state) == before
    assert ("offset 1" in caplog.text) == (value is not None)
    assert lab.register("b", LONG).id == 2


@pytest.mark.parametrize(
    "value", ['{"subject":"s","version":1,"id": 7,"schema":"x', '{"id":7,"version":"?","schema":1}']
)
def test_the_id_of_a_broken_record_is_not_given(value: str) -> None:
    """Data may carry it, though nobody can read the schema any more."""
    lab = Lab()
    lab.put('{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', value)
    assert lab.subjects() == []
    assert lab.register("a", INT).id == lab.replayed().register("a", INT).id == 8


def test_keys_of_old_versions_are_the_same_schema() -> None:
    lab = Lab()
    lab.put('{"keytype":"SCHEMA","subject":"s","version":1,"magic":0}', {"version": 1, "id": 4, "schema": INT})
    assert lab.version("s", 1).id == 4
    assert lab.register("s", INT).id == 4


def test_every_form_of_a_key_is_deleted() -> None:
    """Compaction goes by bytes: a form that is left would bring the schema back."""
    old = '{"keytype":"SCHEMA","subject":"s","version":1,"magic":0}'
    lab = Lab()
    lab.put(old, {"subject": "s", "version": 1, "id": 1, "schema": INT})
    lab.put('{"keytype":"CONFIG","subject":"s", "magic":0}', {"compatibilityLevel": "NONE"})
    lab.configure("s", compatibility="FULL")
    lab.delete_subject("s")
    lab.delete_subject("s", permanent=True)
    assert (old.encode(), None) in lab.log
    again = Lab(lab.compacted())
    assert not again.state.subjects and not again.state.configs
    assert not again.state.forms


def test_a_record_that_reuses_an_id_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab()
    lab.register("a", INT)
    lab.put('{"keytype":"SCHEMA","subject":"b","version":1,"magic":1}', {"version": 1, "id": 1, "schema": LONG})
    expected = (
        "The record at offset 1 of topic '_schemas' is ignored. It gives another schema to id 1, as 'b' version 1, "
        "and 'a' version 1 has this id."
    )
    assert [expected in text for text in caplog.messages] == [True], "each reading of the topic logs it once"
    for after in (lab, lab.replayed()):
        assert (after.schema_by_id(1).schema, after.subjects()) == (INT, ["a"])
        assert after.register("b", LONG).id == 2
        assert after.register("a2", INT).id == 1


def test_a_record_that_gives_another_schema_to_its_own_id_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab()
    lab.register("a", INT)
    lab.put('{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}', {"version": 1, "id": 1, "schema": LONG})
    assert lab.schema_by_id(1).schema == INT
    assert "Write the first record of this key again before compaction" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ('{"keytype":"NOOP","x":DEEP}', None),
        (SCHEMA_KEY, '{"version":1,"id":7,"schema":"","x":DEEP}'),
        (SCHEMA_KEY, '{"version":1,"id":2147483648,"schema":""}'),
        (SCHEMA_KEY, '{"version":1,"id":-1,"schema":""}'),
        (SCHEMA_KEY, '{"version":1,"id":9,"schema":"","references":[{"name":"n","subject":"s","version":2147483648}]}'),
        (SCHEMA_KEY.replace("1,", "2147483648,"), '{"version":1,"id":9,"schema":""}'),
        ('{"keytype":"NOOP","magic":0,"for":"ids"}', '{"maxIds":{".":2147483648}}'),
        ('{"keytype":"CONFIG","magic":0}', '{"compatibilityLevel":"SIDEWAYS"}'),
        ('{"keytype":"MODE","magic":0}', '{"mode":"SIDEWAYS"}'),
    ],
)
def test_a_record_that_no_registry_writes_stops_no_registration(key: str, value: str | None) -> None:
    """Any client with Write on the topic may write it: it must not end the task that reads, nor later requests."""
    deep = "[" * 5_000 + "]" * 5_000
    lab = Lab()
    lab.register("a", INT)
    lab.put(key.replace("DEEP", deep), None if value is None else value.replace("DEEP", deep))
    for after in (lab, lab.replayed()):
        assert after.subjects() == ["a"]
        assert after.register("a", LONG).version == 2
        assert after.register("b", STRING).id < 20


def test_the_highest_version_is_followed_by_none() -> None:
    lab = Lab()
    lab.put(SCHEMA_KEY.replace("1,", "2147483647,"), {"version": 2147483647, "id": 1, "schema": INT})
    with refused(422, 42205, "Subject s has version 2147483647, the highest one there is."):
        lab.register("s", LONG)


def test_a_conflict_that_was_mended_is_none() -> None:
    lab = Lab()
    lab.register("a", INT)
    key = '{"keytype":"SCHEMA","subject":"b","version":1,"magic":1}'
    lab.put(key, {"version": 1, "id": 1, "schema": LONG})
    lab.put(key, None)
    assert not Lab(lab.log).state.conflicts


def test_an_id_is_not_given_again_after_its_schema_is_gone_for_good() -> None:
    lab = Lab()
    lab.register("a", INT)
    lab.register("a2", LONG)
    lab.delete_subject("a2")
    lab.delete_subject("a2", permanent=True)
    again = Lab(lab.compacted())
    assert again.state.max_ids == {".": 2}
    assert again.register("b", STRING).id == 3
    with refused(404, 40403):
        again.schema_by_id(2)


def test_a_record_that_was_quicker_than_our_marker_is_read() -> None:
    """A Kafka answers a commit before its marker is written; whoever knows no transactions may come in between."""
    ledger = Ledger("_schemas", Schemas())
    ledger.loaded()
    foreign = Key("SCHEMA", "b", 1), SchemaValue(subject="b", version=1, id=2, schema=LONG, deleted=False)
    ours = records.put(Key("SCHEMA", "a", 1), SchemaValue(subject="a", version=1, id=1, schema=INT, deleted=False))
    ledger.propose([ours])
    ledger.settle([ours], 0)
    assert (ledger.next, ledger.expected) == (1, 2)
    ledger.take([Stored(0, *ours), Stored(1, *records.put(*foreign))])
    assert sorted(ledger.settled.subjects) == sorted(ledger.ahead.subjects) == ["a", "b"]
    assert (ledger.next, ledger.expected) == (2, 2)
    ledger.advance(3)
    assert ledger.expected == 3


def test_the_topic_of_an_empty_registry_is_a_registry() -> None:
    lab = Lab()
    lab.put('{"keytype":"NOOP","magic":0}', None)
    assert lab.subjects() == [] and lab.contexts() == ["."]
    assert not lab.state.forms and lab.state.version(("a", 1)) is None
    assert Key("NOOP") != Key("NOOP", "ids")
