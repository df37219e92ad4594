"""A report as JUnit XML: what every CI shows as tests."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from schema_registry.tools.problems import NOTE, Checked, Problem, Report, summary

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_text(report: Report) -> str:
    """Return a suite, with a test case for each subject; one that has errors or warnings has failed."""
    failed = sum(any(problem.level != NOTE for problem in each.problems) for each in report.checked)
    counts = f'tests="{len(report.checked)}" failures="{failed}" errors="0" skipped="0"'
    cases = "".join(_case(report, each) for each in report.checked)
    name = _attribute(f"eventbus schema check {report.target}")
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f"<testsuites {counts}>\n  <testsuite name={name} {counts}>\n{cases}  </testsuite>\n</testsuites>\n"
    )


def _case(report: Report, checked: Checked) -> str:
    name = _attribute(f"{checked.subject} {checked.level}")
    place = f' file={_attribute(checked.place.file)} line="{checked.place.line}"' if checked.place else ""
    opening = f"    <testcase classname={_attribute(report.target)} name={name}{place}"
    if not checked.problems:
        return f"{opening}/>\n"
    errors = [problem for problem in checked.problems if problem.level != NOTE]
    notes = [problem for problem in checked.problems if problem.level == NOTE]
    body = ""
    if errors:
        rules = ", ".join(dict.fromkeys(problem.rule for problem in errors))
        body += (
            f"      <failure type={_attribute(rules)} message={_attribute(_line(errors[0]))}>"
            f"{_content(errors)}</failure>\n"
        )
    if notes:
        body += f"      <system-out>{_content(notes)}</system-out>\n"
    return f"{opening}>\n{body}    </testcase>\n"


def _content(problems: list[Problem]) -> str:
    return escape(_clean("\n".join(map(_line, problems))))


def _line(problem: Problem) -> str:
    where = f"{problem.place} " if problem.place else ""
    return f"{where}{problem.field or problem.subject} {problem.rule}: {summary(problem)}"


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))


def _clean(text: str) -> str:
    """Without the characters that XML cannot hold in any spelling."""
    return _NO_XML.sub("?", text)
