"""The lock file: the schemas of a program's topics so far and their readers, committed with the code.

It replaces a registry when a change is judged before it is merged. Its JSON is made for reviews: an added field is an
added line, and two branches that change different subjects merge.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import msgspec

from eventbus.errors import ConfigError

FORMAT = 1
FILE = "schemas.lock.json"

LEVELS = ("NONE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE")
"""How versions of a subject have to agree; BACKWARD where nothing is said."""


class LockedReader(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A handler that reads the topic, as deployed."""

    group: str
    handler: str
    reads: Any = None
    """Its schema: the number of a version, or a separate schema."""


class LockedSubject(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The history of one subject."""

    compatibility: str = "BACKWARD"
    versions: list[Any] = []
    """Schemas, oldest first, as JSON; the last one is written today."""
    readers: list[LockedReader] = []

    def reads(self, reader: LockedReader) -> Any:
        """Return the schema of a reader, as JSON."""
        return self.versions[reader.reads - 1] if isinstance(reader.reads, int) else reader.reads


class Lock(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file."""

    lock: int = FORMAT
    subjects: dict[str, LockedSubject] = {}


class LockError(ConfigError):
    """The lock file cannot be read: where, and what to do."""


def read_lock(path: Path) -> Lock:
    """Return the lock file of ``path``. Raises LockError, also when there is none."""
    try:
        lock = msgspec.json.decode(path.read_bytes(), type=Lock)
    except FileNotFoundError:
        raise LockError(
            f"there is no {path}: a check of module:bus writes it with --update, to be committed; or name a --registry"
        ) from None
    except OSError as error:
        raise LockError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        if b"<<<<<<<" in path.read_bytes():
            raise LockError(
                f"{path} has the marks of a merge in it: take the file of the branch that is deployed first, as a "
                "whole, and let --update add what is new"
            ) from None
        raise LockError(f"{path} is no lock file: {error}; restore it from the last commit") from None
    if lock.lock != FORMAT:
        raise LockError(f"{path} is of format {lock.lock}, this program knows {FORMAT}: update eventbus-log")
    for name, subject in lock.subjects.items():
        _check(path, name, subject)
    return lock


def _check(path: Path, name: str, subject: LockedSubject) -> None:
    if subject.compatibility not in LEVELS:
        raise LockError(f"{path}, {name}: compatibility {subject.compatibility!r} is not one of {', '.join(LEVELS)}")
    for reader in subject.readers:
        if isinstance(reader.reads, int) and not 0 < reader.reads <= len(subject.versions):
            raise LockError(
                f"{path}, {name}: {reader.handler} of group {reader.group} reads version {reader.reads}, and there "
                f"are {len(subject.versions)}"
            )


def lock_text(lock: Lock) -> str:
    """Return the file's text, with the subjects in order, whatever order they were found in."""
    plain = {"lock": FORMAT, "subjects": {name: _plain(subject) for name, subject in sorted(lock.subjects.items())}}
    return json_lines(plain) + "\n"


def _plain(subject: LockedSubject) -> dict[str, Any]:
    """Write the level even if it is the default, so that it can be seen and changed."""
    readers = sorted(subject.readers, key=lambda reader: (reader.group, reader.handler))
    plain = msgspec.to_builtins(msgspec.structs.replace(subject, readers=readers))
    return {"compatibility": subject.compatibility, **plain}


def entries(lock: Lock) -> dict[str, str]:
    """Return the text of each subject's entry: whether two locks say the same of it."""
    return {name: json_lines(_plain(subject)) for name, subject in lock.subjects.items()}


def write_lock(path: Path, lock: Lock) -> bool:
    """Write the file, unless it says so already; whether it was written. Raises LockError."""
    text = lock_text(lock)
    try:
        if path.exists() and path.read_text("utf-8") == text:
            return False
        path.write_text(text, "utf-8")
    except OSError as error:
        raise LockError(f"{path} cannot be written: {error.strerror}") from None
    return True


_WIDTH = 120


def json_lines(value: Any, depth: int = 0) -> str:
    """JSON with a line for each field, version and reader: what is added in a change is added in its diff."""
    short = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or (2 * depth + len(short) <= _WIDTH and not _is_tall(value)):
        return short
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        lines = [f"{json.dumps(key, ensure_ascii=False)}: {json_lines(each, depth + 1)}" for key, each in members]
    else:
        lines = [json_lines(each, depth + 1) for each in cast("list[Any]", value)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    indent = "  " * depth
    body = ",\n".join(f"{indent}  {line}" for line in lines)
    return f"{opening}\n{body}\n{indent}{closing}"


def _is_tall(value: Any) -> bool:
    """Return True if the value is a list of objects: fields, versions, readers."""
    if isinstance(value, dict):
        return any(map(_is_tall, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return bool(items) and (all(isinstance(item, dict) for item in items) or any(map(_is_tall, items)))
    return False
