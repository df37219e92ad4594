"""What cannot be: each with the status and error code that Confluent's registry answers, and a text that helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from schema_registry import names
from schema_registry.entities import SchemaRequest
from tests.schema_registry.core.lab import INT, LONG, Lab, record, refused

BAD_SCHEMAS = {
    "empty": "",
    "blank": "  ",
    "no JSON": "{",
    "no Avro": '{"type":"nothing"}',
    "a number": "1",
    "field twice": record("R", "a", "a"),
    "symbol twice": '{"type":"enum","name":"E","symbols":["A","A"]}',
    "name twice": record("R", {"name": "a", "type": {"type": "fixed", "name": "F", "size": 1}},
                         {"name": "b", "type": {"type": "fixed", "name": "F", "size": 2}}),
    "default of another type": record("R", {"name": "a", "type": "int", "default": "x"}),
    "default of no branch": record("R", {"name": "a", "type": ["null", "int"], "default": "x"}),
    "negative size": '{"type":"fixed","name":"F","size":-1}',
    "undefined name": record("R", {"name": "a", "type": "Nowhere"}),
}  # fmt: skip


@pytest.fixture
def lab() -> Lab:
    lab = Lab()
    lab.register("there", INT)
    return lab


@pytest.mark.parametrize("text", BAD_SCHEMAS.values(), ids=BAD_SCHEMAS)
def test_schemas_that_are_none(lab: Lab, text: str) -> None:
    with refused(422, 42201):
        lab.register("a", text)
    assert lab.versions("there") == [1] and lab.subjects() == ["there"]


def test_unknown_types(lab: Lab) -> None:
    with refused(422, 42201, "Invalid schema type XML"):
        lab.register("a", "<a/>", schema_type="XML")


def test_schemas_that_are_too_large(lab: Lab) -> None:
    with refused(422, 42209, "too large"):
        lab.register("a", record("R", doc="x" * 1_000_001))


Act = Callable[[Lab], Any]
REFUSED: dict[str, tuple[int, int, Act]] = {
    "version 0": (422, 42202, lambda lab: lab.version("there", 0)),
    "version -2": (422, 42202, lambda lab: lab.version("there", "-2")),
    "version abc": (422, 42202, lambda lab: lab.version("there", "abc")),
    "version 2^31": (422, 42202, lambda lab: lab.version("there", str(2**31))),
    "version 99999999999999": (422, 42202, lambda lab: lab.version("there", "99999999999999")),
    "delete version 0": (422, 42202, lambda lab: lab.delete_version("there", 0)),
    "unknown version": (404, 40402, lambda lab: lab.version("there", 2)),
    "unknown subject": (404, 40401, lambda lab: lab.version("nowhere", 1)),
    "unknown subject's versions": (404, 40401, lambda lab: lab.versions("nowhere")),
    "unknown id": (404, 40403, lambda lab: lab.schema_by_id(2)),
    "unknown id's subjects": (404, 40403, lambda lab: lab.subjects_of_id(2)),
    "unknown id's versions": (404, 40403, lambda lab: lab.versions_of_id(2)),
    "an id in a context": (404, 40403, lambda lab: lab.schema_by_id(1, subject=":.c:")),
    "lookup without subject": (404, 40401, lambda lab: lab.lookup("nowhere", SchemaRequest(schema=INT))),
    "lookup of another schema": (404, 40403, lambda lab: lab.lookup("there", SchemaRequest(schema=LONG))),
    "lookup of no schema": (422, 42201, lambda lab: lab.lookup("there", SchemaRequest(schema="{"))),
    "unknown subject deleted": (404, 40401, lambda lab: lab.delete_subject("nowhere")),
    "unknown version deleted": (404, 40402, lambda lab: lab.delete_version("there", 7)),
    "unknown subject's version deleted": (404, 40401, lambda lab: lab.delete_version("nowhere", 1)),
    "deleted twice": (404, 40404, lambda lab: [lab.delete_subject("there") for _ in range(2)]),
    "version deleted twice": (404, 40406, lambda lab: [lab.delete_version("there", 1) for _ in range(2)]),
    "hard before soft": (404, 40405, lambda lab: lab.delete_subject("there", permanent=True)),
    "version hard before soft": (404, 40407, lambda lab: lab.delete_version("there", 1, permanent=True)),
    "referenced by of nothing": (404, 40402, lambda lab: lab.referenced_by("there", 9)),
    "import of 2^31": (422, 42202, lambda lab: [
        lab.set_mode("IMPORT", "i"), lab.register("i", LONG, id=3, version=2**31)]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_requests_that_are_refused(lab: Lab, name: str) -> None:
    status, code, act = REFUSED[name]
    with refused(status, code):
        act(lab)


@pytest.mark.parametrize(
    ("subject", "is_valid"),
    [("orders-value", True), ("a/b", True), ("a%2Fb", True), (":.c:a", True), ("ä", True), ("", False),
     ("a\x00", False), ("a\n", False), ("a\x9f", False), ("__GLOBAL", False), ("__EMPTY", False),
     (":.c:__GLOBAL", False), (":.c:", False), (":.c", False), (":*:a", False), (":.__GLOBAL:a", False)],
)  # fmt: skip
def test_subjects(subject: str, is_valid: bool) -> None:
    assert names.is_valid(subject) == is_valid


def test_an_unknown_id_does_not_break_the_next_answer(lab: Lab) -> None:
    for _ in range(2):
        with refused(404, 40403, "Schema 99 not found"):
            lab.schema_by_id(99)
    assert lab.schema_by_id(1) is lab.schema_by_id(1)
