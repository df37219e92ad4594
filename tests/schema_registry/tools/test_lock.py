"""The lock file: what it looks like, what is refused, when it is out of date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schema_registry.tools.judge import Declared, Known, judge
from schema_registry.tools.lock import Lock, LockedReader, LockedSubject, LockError, lock_text, read_lock, write_lock
from schema_registry.tools.recorded import known_of_lock, recorded, with_outdated
from tests.schema_registry.tools.schemas import CARRIER, NULLABLE_GATE, TAIL, flight, read, written

pytestmark = pytest.mark.system

V1, V2 = flight(CARRIER, TAIL), flight(CARRIER, TAIL, NULLABLE_GATE)

TEXT = """\
{
  "lock": 1,
  "subjects": {
    "flights-value": {
      "compatibility": "BACKWARD",
      "versions": [
        {
          "type": "record",
          "name": "Flight",
          "fields": [
            {"name": "carrier", "type": "string"},
            {"name": "tailnum", "type": ["null", "string"], "default": null}
          ]
        }
      ],
      "readers": [
        {"group": "billing", "handler": "bill", "reads": 1},
        {
          "group": "statistics",
          "handler": "count",
          "reads": {
            "type": "record",
            "name": "Flight",
            "fields": [
              {"name": "carrier", "type": "string"}
            ]
          }
        }
      ]
    }
  }
}
"""


def first() -> Lock:
    return recorded({}, [written(V1), read(flight(CARRIER), "count", "statistics"), read(V1)])


def test_it_is_made_to_be_reviewed() -> None:
    assert lock_text(first()) == TEXT


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "schemas.lock.json"
    assert write_lock(path, first())
    assert not write_lock(path, first()), "it says so already"
    assert lock_text(read_lock(path)) == TEXT
    known = known_of_lock(read_lock(path), "schemas.lock.json")["flights-value"]
    assert [schema.canonical for _, schema in known.versions] == [V1.canonical]
    assert [str(reader) for reader in known.readers] == ["group billing (bill)", "group statistics (count)"]


def test_a_new_version_goes_behind_the_others_and_the_level_stays() -> None:
    known = {"flights-value": Known(level="FULL", versions=[(1, V1)])}
    [subject] = recorded(known, [written(V2), read(V1)]).subjects.values()
    assert subject.compatibility == "FULL"
    assert [len(version["fields"]) for version in subject.versions] == [2, 3]
    assert [reader.reads for reader in subject.readers] == [1]


def test_a_reader_that_is_gone_is_forgotten_and_a_subject_that_is_gone_is_kept() -> None:
    known = known_of_lock(first(), "lock")
    [subject] = recorded(known, []).subjects.values()
    assert (len(subject.versions), subject.readers) == (1, [])


def test_new_subjects_get_the_level_that_was_asked_for() -> None:
    assert recorded({}, [written(V1)], "FULL").subjects["flights-value"].compatibility == "FULL"


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ([written(V1), written(V1, "tickets-value"), read(V1)], "the subject is new"),
        ([written(V2), read(V1)], "version 2 is new"),
        ([written(V1)], "its readers have changed"),
    ],
)
def test_what_the_file_does_not_say_yet(declared: list[Declared], told: str) -> None:
    before = recorded({}, [written(V1), read(V1)])
    known = known_of_lock(before, "lock")
    checked = with_outdated(judge(declared, known), before, recorded(known, declared), "schemas.lock.json", "check")
    [problem] = [problem for each in checked for problem in each.problems]
    assert problem.rule == "NOT_RECORDED" and problem.level == "warning"
    assert told in problem.explanation and problem.fix == "check --update, and commit the file"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "there is no .*schemas.lock.json: a check of module:bus writes it with --update"),
        ("", "is no lock file"),
        ("<<<<<<< ours\n{}", "has the marks of a merge in it: take the file of the branch that is deployed first"),
        ('{"lock": 2, "subjects": {}}', "is of format 2, this program knows 1"),
        ('{"subjects": {"a": {"version": []}}}', "unknown field `version`"),
        ('{"subjects": {"a": {"compatibility": "BACKWARDS"}}}', "compatibility 'BACKWARDS' is not one of NONE"),
        (
            '{"subjects": {"a": {"readers": [{"group": "g", "handler": "h", "reads": 1}]}}}',
            "reads version 1, and there",
        ),
    ],
)
def test_what_is_no_lock_file_says_why(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "schemas.lock.json"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(LockError, match=told):
        read_lock(path)


def test_a_schema_in_it_that_is_none_says_where() -> None:
    lock = Lock(subjects={"a-value": LockedSubject(versions=["string", {"type": "record"}])})
    with pytest.raises(LockError, match=r"schemas\.lock\.json, a-value, version 2: "):
        known_of_lock(lock, "schemas.lock.json")


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="cannot be read"):
        read_lock(tmp_path)
    with pytest.raises(LockError, match="cannot be written"):
        write_lock(tmp_path / "missing" / "x.json", Lock())


def test_a_readers_own_schema_is_kept_as_it_is() -> None:
    reader = LockedReader("g", "h", json.loads(V1.canonical))
    assert LockedSubject(versions=[], readers=[reader]).reads(reader) == json.loads(V1.canonical)
