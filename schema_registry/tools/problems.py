"""The findings of a check, in one form for the terminal, JUnit and SARIF."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

ERROR, WARNING, NOTE = "error", "warning", "note"
"""Levels: a break, a required step, a note."""

OUTDATED = "NOT_RECORDED"
"""A compatible change that the lock file does not hold yet."""
UNREADABLE = "READER_CANNOT_READ"
"""A handler that cannot read what is, or has been, written."""


class Place(msgspec.Struct, frozen=True):
    """A line of the program's source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One finding: a field that breaks a rule, or a note."""

    rule: str
    level: str = ERROR
    subject: str
    against: str = ""
    """The other side of the comparison: ``version 2``, ``group billing``."""
    field: str = ""
    """The place in the code: ``Flight.gate``."""
    path: str = ""
    """The place in the schema: ``/fields/2/type``."""
    old: str = ""
    new: str = ""
    explanation: str
    fix: str = ""
    breaks: tuple[str, ...] = ()
    """The consumers that stop working: ``group billing (bill)``."""
    place: Place | None = None


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The problems that were found in one subject."""

    subject: str
    level: str
    """The compatibility level it was judged by."""
    versions: int
    """How many were known before."""
    is_new: bool = False
    """True if the code's schema is not among the known versions."""
    problems: tuple[Problem, ...] = ()
    place: Place | None = None

    @property
    def is_compatible(self) -> bool:
        return all(problem.level != ERROR for problem in self.problems)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Return the whole text."""

    target: str
    source: str
    """The source of the comparison: a file's name, a registry's URL."""
    checked: tuple[Checked, ...] = ()
    passed_over: int = 0
    """Declared uses with no schema to compare, or of a topic that is not known: a pattern, `send` of a type."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(problem for each in self.checked for problem in each.problems)

    @property
    def is_compatible(self) -> bool:
        return all(each.is_compatible for each in self.checked)

    @property
    def is_content(self) -> bool:
        """Compatible, and nothing left to do: exit code 0."""
        return all(problem.level == NOTE for problem in self.problems)


def lines_of(report: Report) -> list[str]:
    """Return the report for people."""
    lines: list[str] = []
    for each in report.checked:
        lines += _lines_of_subject(each)
    bad = sum(not each.is_compatible for each in report.checked)
    total = len(report.checked)
    subjects = f"{total} subject{'' if total == 1 else 's'}"
    lines.append(f"{subjects} checked against {report.source}: {f'{bad} not compatible' if bad else 'compatible'}")
    if report.passed_over:
        why = "another format than Avro, or a topic that only the run decides"
        lines.append(f"{report.passed_over} declared use(s) not checked: {why}")
    return lines


def _lines_of_subject(checked: Checked) -> list[str]:
    if checked.is_compatible:
        state = "new" if not checked.versions else "changed, compatible" if checked.is_new else "unchanged"
    else:
        state = "NOT COMPATIBLE"
    return [
        f"{checked.subject}  {checked.level}  {state}",
        *(f"  {line}" for line in lines_of_problems(checked.problems)),
    ]


def lines_of_problems(problems: Iterable[Problem]) -> list[str]:
    return [line for problem in problems for line in _lines_of_problem(problem)]


def _lines_of_problem(problem: Problem) -> list[str]:
    where = str(problem.place) if problem.place else ""
    head = "  ".join(part for part in (where, problem.field, problem.rule) if part)
    if problem.against:
        head += f"  (against {problem.against})"
    if problem.level != ERROR:
        head = f"{problem.level}: {head}"
    lines = [head, f"  {problem.explanation}"]
    if problem.fix:
        lines.append(f"  fix: {problem.fix}")
    if problem.breaks:
        lines.append(f"  breaks: {', '.join(problem.breaks)}")
    return lines


def summary(problem: Problem) -> str:
    """Return the finding as one paragraph, for report formats with a single text."""
    parts = [problem.explanation]
    if problem.fix:
        parts.append(f"Fix: {problem.fix}")
    if problem.breaks:
        parts.append(f"Breaks: {', '.join(problem.breaks)}")
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts)
