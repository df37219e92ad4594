"""One report, three spellings: for people, as JUnit XML, as SARIF."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from schema_registry.tools.junit import junit_text
from schema_registry.tools.problems import NOTE, WARNING, Checked, Place, Problem, Report, lines_of
from schema_registry.tools.sarif import sarif_text

pytestmark = pytest.mark.system

BROKEN = Problem(
    rule="READER_FIELD_MISSING_DEFAULT_VALUE",
    subject="flights-value",
    against="version 2",
    field="Flight.gate",
    path="/fields/2",
    new="gate: string",
    explanation='old records have no "gate" <& no default',
    fix="give it a default",
    breaks=("group billing (bill)",),
    place=Place("shop/types.py", 12),
)
LATE = Problem(rule="NOT_RECORDED", level=WARNING, subject="a-value", explanation="not recorded", fix="--update")
HINT = Problem(rule="READER_CANNOT_READ", level=NOTE, subject="b-value", explanation="deploy it first\x00")


def report(*problems: Problem) -> Report:
    names = ["c-value", *(problem.subject for problem in problems)]
    checked = [
        Checked(
            subject=name, level="BACKWARD", versions=2, is_new=name != "c-value",
            problems=tuple(problem for problem in problems if problem.subject == name),
        )
        for name in names
    ]  # fmt: skip
    return Report(target="shop:bus", source="schemas.lock.json", checked=tuple(checked), passed_over=1)


def test_for_people() -> None:
    assert lines_of(report(BROKEN, LATE, HINT)) == [
        "c-value  BACKWARD  unchanged",
        "flights-value  BACKWARD  NOT COMPATIBLE",
        "  shop/types.py:12  Flight.gate  READER_FIELD_MISSING_DEFAULT_VALUE  (against version 2)",
        '    old records have no "gate" <& no default',
        "    fix: give it a default",
        "    breaks: group billing (bill)",
        "a-value  BACKWARD  changed, compatible",
        "  warning: NOT_RECORDED",
        "    not recorded",
        "    fix: --update",
        "b-value  BACKWARD  changed, compatible",
        "  note: READER_CANNOT_READ",
        "    deploy it first\x00",
        "4 subjects checked against schemas.lock.json: 1 not compatible",
        "1 declared use(s) not checked: another format than Avro, or a topic that only the run decides",
    ]


@pytest.mark.parametrize(("problem", "content", "compatible"), [(BROKEN, 0, 0), (LATE, 0, 1), (HINT, 1, 1)])
def test_what_the_exit_code_goes_by(problem: Problem, content: bool, compatible: bool) -> None:
    assert (report(problem).is_content, report(problem).is_compatible) == (content, compatible)


def test_as_junit() -> None:
    root = ElementTree.fromstring(junit_text(report(BROKEN, LATE, HINT)))
    assert root.tag == "testsuites" and root.attrib == {"tests": "4", "failures": "2", "errors": "0", "skipped": "0"}
    [suite] = root
    assert suite.attrib["name"] == "eventbus schema check shop:bus"
    cases = {case.attrib["name"]: case for case in suite}
    assert list(cases) == ["c-value BACKWARD", "flights-value BACKWARD", "a-value BACKWARD", "b-value BACKWARD"]
    assert all(case.attrib["classname"] == "shop:bus" for case in suite)
    failure = cases["flights-value BACKWARD"].find("failure")
    assert failure is not None and failure.attrib["type"] == BROKEN.rule
    assert failure.text == (
        'shop/types.py:12 Flight.gate READER_FIELD_MISSING_DEFAULT_VALUE: old records have no "gate" <& no default. '
        "Fix: give it a default. Breaks: group billing (bill)."
    )
    assert cases["a-value BACKWARD"].find("failure") is not None
    note = cases["b-value BACKWARD"].find("system-out")
    assert note is not None and note.text == "b-value READER_CANNOT_READ: deploy it first?."


def test_as_sarif() -> None:
    document: dict[str, Any] = json.loads(sarif_text(report(BROKEN, LATE, HINT)))
    assert document["version"] == "2.1.0"
    [run] = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == [BROKEN.rule, LATE.rule, HINT.rule]
    broken, late, hint = run["results"]
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
        (BROKEN.rule, "error"), (LATE.rule, "warning"), (HINT.rule, "note"),
    ]  # fmt: skip
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    [place] = broken["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "shop/types.py"},
        "region": {"startLine": 12},
    }
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "flights-value/Flight.gate"
    assert late["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "schemas.lock.json"
    prints = {result["partialFingerprints"]["schemaProblem/v1"] for result in (broken, late, hint)}
    assert len(prints) == 3


def test_a_problem_keeps_its_fingerprint_when_its_line_moves() -> None:
    import msgspec

    moved = msgspec.structs.replace(BROKEN, place=Place("shop/types.py", 99))
    assert fingerprint(moved) == fingerprint(BROKEN)


def fingerprint(problem: Problem) -> str:
    return json.loads(sarif_text(report(problem)))["runs"][0]["results"][0]["partialFingerprints"]["schemaProblem/v1"]


def test_nothing_to_tell() -> None:
    assert lines_of(report())[-2] == "1 subject checked against schemas.lock.json: compatible"
    assert ElementTree.fromstring(junit_text(report())).attrib["failures"] == "0"
    assert json.loads(sarif_text(report()))["runs"][0]["results"] == []
