"""Read a lock file for a check, and update it afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from schema_registry.formats import InvalidSchema, ParsedSchema, parse
from schema_registry.tools.judge import Declared, Known, Reader
from schema_registry.tools.lock import Lock, LockedReader, LockedSubject, LockError, entries
from schema_registry.tools.problems import ERROR, OUTDATED, WARNING, Checked, Problem
from serdes.registry import Reference, SchemaText


def parse_alone(text: str, *, is_new: bool = True) -> ParsedSchema:
    """An Avro schema that holds all it needs, as those of lock files and of types do. Raises InvalidSchema."""
    return parse(SchemaText(text), _no_references, is_new=is_new)


def _no_references(reference: Reference) -> SchemaText:
    raise InvalidSchema(f"reference {reference.name!r}: there are none here")


def known_of_lock(lock: Lock, name: str) -> dict[str, Known]:
    """Return the subjects as a lock file has them. Raises LockError for a schema in it that is none."""
    return {subject: _known(entry, f"{name}, {subject}") for subject, entry in lock.subjects.items()}


def _known(entry: LockedSubject, where: str) -> Known:
    return Known(
        level=entry.compatibility,
        versions=[
            (number, _parsed(schema, f"{where}, version {number}")) for number, schema in enumerate(entry.versions, 1)
        ],
        readers=[
            Reader(
                reader.group, reader.handler, _parsed(entry.reads(reader), f"{where}, {reader.handler}")
            )
            for reader in entry.readers
        ],
    )  # fmt: skip


def _parsed(schema: Any, where: str) -> ParsedSchema:
    try:
        return parse_alone(json.dumps(schema, ensure_ascii=False), is_new=False)
    except InvalidSchema as error:
        raise LockError(f"{where}: {error}; restore the file from the last commit") from None


def recorded(known: Mapping[str, Known], declared: Iterable[Declared], level: str = "BACKWARD") -> Lock:
    """Append new versions, and replace the readers with those of the code. ``level`` applies to new subjects."""
    uses = list(declared)
    subjects = dict.fromkeys((*known, *(use.subject for use in uses)))
    return Lock(
        subjects={
            subject: _entry(known.get(subject, Known(level=level)), [use for use in uses if use.subject == subject])
            for subject in subjects
        }
    )


def _entry(known: Known, uses: Sequence[Declared]) -> LockedSubject:
    versions = [schema.canonical for _, schema in known.versions]
    for use in uses:
        if not use.handler and use.schema.canonical not in versions:
            versions.append(use.schema.canonical)
    readers = {(use.group, use.handler): use.schema for use in uses if use.handler}
    return LockedSubject(
        compatibility=known.level,
        versions=[json.loads(text) for text in versions],
        readers=[
            LockedReader(group, handler, _reads(schema, versions)) for (group, handler), schema in readers.items()
        ],
    )


def _reads(schema: ParsedSchema, versions: Sequence[str]) -> Any:
    text = schema.canonical
    return versions.index(text) + 1 if text in versions else json.loads(text)


def with_outdated(checked: Sequence[Checked], before: Lock, after: Lock, file: str, command: str) -> list[Checked]:
    """Return the answers, with a warning for each subject of which the file does not say what it should."""
    old, new = entries(before), entries(after)
    stale = {subject for subject, text in new.items() if old.get(subject) != text}
    known = {each.subject for each in checked}
    answers = [
        *checked,
        *(
            Checked(subject=name, level=after.subjects[name].compatibility, versions=len(after.subjects[name].versions))
            for name in sorted(stale - known)
        ),
    ]
    return [
        msgspec.structs.replace(each, problems=(*each.problems, _outdated(each, before, after, file, command)))
        if each.subject in stale and all(problem.level != ERROR for problem in each.problems)
        else each
        for each in answers
    ]


def _outdated(checked: Checked, before: Lock, after: Lock, file: str, command: str) -> Problem:
    old, new = before.subjects.get(checked.subject), after.subjects[checked.subject]
    if old is None:
        what = "the subject is new"
    elif len(old.versions) != len(new.versions):
        what = f"version {len(new.versions)} is new"
    else:
        what = "its readers have changed"
    return Problem(
        rule=OUTDATED,
        level=WARNING,
        subject=checked.subject,
        explanation=f"compatible, but {file} does not say so yet: {what}",
        fix=f"{command} --update, and commit the file",
        place=checked.place,
    )
