"""The judgement: which field breaks which rule, who breaks, and how much it weighs."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from schema_registry.tools.judge import WAREHOUSE, Declared, Known, judge
from schema_registry.tools.problems import ERROR, NOTE, UNREADABLE, Checked, Place
from tests.schema_registry.tools.schemas import CARRIER, GATE, NULLABLE_GATE, TAIL, deployed, flight, read, written

pytestmark = pytest.mark.system

V1 = flight(CARRIER, TAIL)


class Flight(msgspec.Struct):
    carrier: str
    tailnum: str | None
    gate: str


def one(declared: list[Declared], known: Known, **options: str) -> Checked:
    [checked] = judge(declared, {"flights-value": known}, **options)
    return checked


def test_what_nobody_knows_yet_is_new() -> None:
    [checked] = judge([written(V1)], {})
    assert (checked.is_new, checked.versions, checked.problems) == (True, 0, ())


def test_what_is_known_is_unchanged() -> None:
    checked = one([written(V1), read(V1)], Known(versions=[(1, V1)]))
    assert (checked.is_new, checked.problems) == (False, ())


def test_a_nullable_field_with_a_default_is_fine_for_everybody() -> None:
    new = flight(CARRIER, TAIL, NULLABLE_GATE)
    known = Known(level="FULL", versions=[(1, V1)], readers=[deployed(V1)])
    checked = one([written(new), read(new)], known)
    assert checked.is_new and checked.is_compatible and checked.problems == ()


def test_a_required_field_names_field_line_rule_fix_and_consumers() -> None:
    new = flight(CARRIER, TAIL, GATE)
    [problem] = one([written(new, kind=Flight), read(new, kind=Flight)], Known(versions=[(1, V1)])).problems
    assert (problem.rule, problem.level) == ("READER_FIELD_MISSING_DEFAULT_VALUE", ERROR)
    assert (problem.field, problem.path, problem.against) == ("Flight.gate", "/fields/2", "version 1")
    assert "gate" in problem.explanation and "default" in problem.fix
    assert problem.breaks == ("group billing (bill)",)
    assert problem.place == Place("tests/schema_registry/tools/test_judge.py", inspect.getsourcelines(Flight)[1] + 3)


def test_of_the_consumers_only_those_break_that_cannot_read() -> None:
    new = flight(CARRIER, TAIL, GATE)
    uses = [written(new), read(new), read(flight(CARRIER), "count", "statistics")]
    [problem] = one(uses, Known(versions=[(1, V1)])).problems
    assert problem.breaks == ("group billing (bill)",)


def test_a_field_taken_away_is_told_to_those_who_are_deployed() -> None:
    """BACKWARD allows it: consumers go first. So it is a note, which says so."""
    strict = flight(CARRIER, {"name": "tailnum", "type": ["null", "string"]})
    known = Known(versions=[(1, strict)], readers=[deployed(strict), deployed(flight(CARRIER), "count", "statistics")])
    checked = one([written(flight(CARRIER))], known)
    [problem] = checked.problems
    assert checked.is_compatible
    assert (problem.rule, problem.level, problem.against) == (UNREADABLE, NOTE, "group billing (bill)")
    assert problem.fix == "deploy this consumer before the producers"


@pytest.mark.parametrize("level", ["FORWARD", "FULL"])
def test_levels_that_promise_it_make_it_an_error_once(level: str) -> None:
    strict = flight(CARRIER, {"name": "tailnum", "type": ["null", "string"]})
    known = Known(level=level, versions=[(1, strict)], readers=[deployed(strict)])
    checked = one([written(flight(CARRIER))], known)
    [problem] = checked.problems
    assert not checked.is_compatible
    assert (problem.level, problem.against, problem.breaks) == (ERROR, "version 1", ("group billing (bill)",))


def test_a_handler_that_cannot_read_what_the_same_program_writes() -> None:
    uses = [written(V1), read(flight(CARRIER, GATE))]
    [problem] = one(uses, Known(level="NONE", versions=[(1, V1)])).problems
    assert (problem.level, problem.against) == (ERROR, "what this program writes")
    assert problem.breaks == ("group billing (bill)",)


def test_a_program_that_only_reads_is_judged_by_what_others_wrote() -> None:
    known = Known(versions=[(1, flight(CARRIER)), (2, V1)])
    assert one([read(flight(CARRIER))], known).problems == ()
    [problem] = one([read(flight(CARRIER, GATE))], known).problems
    assert (problem.level, problem.against) == (ERROR, "version 2")


def test_a_transitive_level_asks_of_all_versions() -> None:
    known = [(1, flight(CARRIER)), (2, flight(CARRIER, GATE))]
    reader = [read(flight(CARRIER, GATE))]
    assert one(reader, Known(versions=known)).problems == ()
    [problem] = one(reader, Known(level="BACKWARD_TRANSITIVE", versions=known)).problems
    assert problem.against == "version 1"


def test_two_types_under_one_subject_follow_each_other() -> None:
    [checked] = judge([written(flight(CARRIER)), written(flight(CARRIER, GATE))], {})
    [problem] = checked.problems
    assert problem.against == "version 1"


def test_several_handlers_that_meet_the_same_are_one_problem() -> None:
    reader = flight(CARRIER, GATE)
    uses = [written(V1), read(reader, "bill"), read(reader, "check")]
    [problem] = one(uses, Known(versions=[(1, V1)])).problems
    assert problem.breaks == ("group billing (bill)", "group billing (check)")


def test_the_warehouse_is_stricter_than_the_registry() -> None:
    known = Known(versions=[(1, V1)])
    new = [written(flight(CARRIER))]
    assert one(new, known).problems == ()
    checked = one(new, known, policy=WAREHOUSE)
    assert not checked.is_compatible
    [problem] = checked.problems
    assert (problem.rule, problem.field) == ("FIELD_DELETED", "Flight.tailnum")
    assert "tables of iceberg" in problem.breaks


def test_subjects_are_judged_alone() -> None:
    names = [
        each.subject for each in judge([written(V1, "b-value"), written(V1, "a-value"), written(V1, "b-value")], {})
    ]
    assert names == ["b-value", "a-value"]
