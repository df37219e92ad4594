"""The judgement: what a program declares against what its subjects have had, and who breaks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from schema_registry.formats import Finding, ParsedSchema, check
from schema_registry.tools.places import place_in_file, place_of_class, place_of_field
from schema_registry.tools.problems import ERROR, NOTE, UNREADABLE, Checked, Place, Problem

WAREHOUSE = "warehouse"
"""The policy of those who land their topics in tables."""


class Reader(msgspec.Struct, frozen=True):
    """A consumer of a subject, and the schema it reads with."""

    group: str
    handler: str
    schema: ParsedSchema

    def __str__(self) -> str:
        return f"group {self.group} ({self.handler})"


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A use of a subject in the code: something writes it, or a handler reads it."""

    subject: str
    schema: ParsedSchema
    type: Any = None
    """The Python type; None for a schema that is a file."""
    place: Place | None = None
    """The place in the source if no type has one: a function, or the first line of a schema's file."""
    group: str = ""
    handler: str = ""
    """The group of a reader; empty for a writer."""

    @property
    def reader(self) -> Reader | None:
        return Reader(self.group, self.handler, self.schema) if self.handler else None


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The known history of one subject, from a lock file or a registry."""

    level: str = "BACKWARD"
    versions: Sequence[tuple[int, ParsedSchema]] = ()
    """The versions, oldest first."""
    readers: Sequence[Reader] = ()
    """Consumers as they are deployed."""


def judge(declared: Iterable[Declared], known: Mapping[str, Known], *, policy: str = "") -> list[Checked]:
    """One answer for each subject that is declared, in their order."""
    by_subject: dict[str, list[Declared]] = {}
    for each in declared:
        by_subject.setdefault(each.subject, []).append(each)
    return [_Subject(name, uses, known.get(name, Known()), policy).checked() for name, uses in by_subject.items()]


class _Subject:
    def __init__(self, name: str, uses: Sequence[Declared], known: Known, policy: str) -> None:
        self.name, self.uses, self.known, self.policy = name, uses, known, policy
        self.written = _distinct(use for use in uses if not use.handler)
        self.readers = [use for use in uses if use.handler]
        self.problems: dict[tuple[str, ...], Problem] = {}

    def checked(self) -> Checked:
        known = [*self.known.versions]
        texts = {schema.canonical for _, schema in known}
        new = [use for use in self.written if use.schema.canonical not in texts]
        for use in new:
            self._check_version(use, known)
            if self.policy == WAREHOUSE:
                self._check_tables(use, known)
            known.append((known[-1][0] + 1 if known else 1, use.schema))
        for use in self.readers:
            self._check_reader(use)
        self._check_deployed(new)
        first = self.uses[0]
        return Checked(
            subject=self.name,
            level=self.known.level,
            versions=len(self.known.versions),
            is_new=bool(new),
            problems=tuple(self.problems.values()),
            place=place_of_class(first.type) or first.place,
        )

    def _check_version(self, use: Declared, known: Sequence[tuple[int, ParsedSchema]]) -> None:
        """The rules between versions, as a registry would apply them."""
        for finding in check(self.known.level, use.schema, known).findings:
            old = next((schema for number, schema in known if number == finding.version), None)
            self._add(use, finding, f"version {finding.version}", ERROR, self._broken_by(finding, use.schema, old))

    def _broken_by(self, finding: Finding, new: ParsedSchema, old: ParsedSchema | None) -> list[str]:
        """Return the consumers that a finding affects: consumers of the new version that cannot read old records, or
        deployed consumers that cannot read new records."""
        if finding.reader == "new":
            readers = [reader for use in self.readers if (reader := use.reader)]
            written = old
        else:
            readers = [*self.known.readers]
            written = new
        if written is None:
            return []
        return [str(reader) for reader in readers if _unreadable(reader.schema, written)]

    def _check_tables(self, use: Declared, known: Sequence[tuple[int, ParsedSchema]]) -> None:
        """Return changes that the registry's rules allow and a table does not."""
        if not known or known[-1][1].schema_type != use.schema.schema_type:
            return
        version, old = known[-1]
        for finding in use.schema.breaks_tables(old):
            self._put(
                Problem(
                    rule=finding.rule,
                    subject=self.name,
                    against=f"version {version}",
                    field=finding.where,
                    old=finding.old,
                    new=finding.new,
                    explanation=finding.explanation,
                    fix=finding.fix,
                    breaks=tuple(f"tables of {target}" for target in finding.breaks),
                    place=_place(use, finding.where),
                )
            )

    def _check_reader(self, use: Declared) -> None:
        """A handler reads what this program writes, and what is in the log already."""
        for writer in self.written:
            if writer.schema.canonical != use.schema.canonical:
                for finding in _unreadable(use.schema, writer.schema):
                    self._add(use, finding, "what this program writes", ERROR, [str(use.reader)])
        texts = {writer.schema.canonical for writer in self.written}
        if use.schema.canonical in texts:
            return  # its own versions are judged above
        versions = self.known.versions if self.known.level.endswith("_TRANSITIVE") else self.known.versions[-1:]
        for number, schema in versions:
            if schema.canonical in texts:
                continue
            for finding in _unreadable(use.schema, schema):
                self._add(use, finding, f"version {number}", self._weight(backward=True), [str(use.reader)])

    def _check_deployed(self, new: Sequence[Declared]) -> None:
        """Consumers as they run today, which will meet records of the new version."""
        for reader in self.known.readers:
            for use in new:
                findings = _unreadable(reader.schema, use.schema, reader_is="old")
                told = any(str(reader) in problem.breaks for problem in self.problems.values())
                if not findings or told:
                    continue
                what = "; ".join(dict.fromkeys(finding.explanation for finding in findings))
                level = self._weight(backward=False)
                self._put(
                    Problem(
                        rule=UNREADABLE,
                        level=level,
                        subject=self.name,
                        against=str(reader),
                        field=findings[0].where,
                        path=findings[0].path,
                        old=findings[0].old,
                        new=findings[0].new,
                        explanation=f"the deployed {reader} cannot read the new version: {what}",
                        fix="deploy this consumer before the producers" if level == NOTE else findings[0].fix,
                        breaks=(str(reader),),
                        place=_place(use, findings[0].where),
                    )
                )

    def _weight(self, *, backward: bool) -> str:
        """Return True if the level covers this direction."""
        direction = self.known.level.removesuffix("_TRANSITIVE")
        promised = ("BACKWARD", "FULL") if backward else ("FORWARD", "FULL")
        return ERROR if direction in promised else NOTE

    def _add(self, use: Declared, finding: Finding, against: str, level: str, breaks: Sequence[str]) -> None:
        self._put(
            Problem(
                rule=finding.rule,
                level=level,
                subject=self.name,
                against=against,
                field=finding.where,
                path=finding.path,
                old=finding.old,
                new=finding.new,
                explanation=finding.explanation,
                fix=finding.fix,
                breaks=tuple(breaks),
                place=_place(use, finding.where),
            )
        )

    def _put(self, problem: Problem) -> None:
        """Once: what several handlers meet is one problem that breaks several."""
        key = problem.rule, problem.against, problem.path, problem.explanation
        before = self.problems.get(key)
        if before is not None:
            breaks = tuple(dict.fromkeys((*before.breaks, *problem.breaks)))
            problem = msgspec.structs.replace(before, breaks=breaks)
        self.problems[key] = problem


def _unreadable(reader: ParsedSchema, writer: ParsedSchema, *, reader_is: str = "new") -> list[Finding]:
    if reader.schema_type != writer.schema_type:
        return []
    return reader.unreadable(writer, reader=reader_is)


def _place(use: Declared, where: str) -> Place | None:
    if use.type is None and use.place is not None:
        return place_in_file(use.place.file, where) or use.place
    return place_of_field(use.type, where) or use.place


def _distinct(uses: Iterable[Declared]) -> list[Declared]:
    """Those with a schema that none before them had."""
    found: dict[str, Declared] = {}
    for use in uses:
        found.setdefault(use.schema.canonical, use)
    return list(found.values())
