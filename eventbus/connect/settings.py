"""Settings of workers and connectors: read from properties files, checked, with file and line in errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from eventbus.errors import ConfigError
from eventbus.properties import parse_properties
from eventbus.suggest import nearest

Kind = Literal["text", "list", "int", "bool"]

_VARIABLE = re.compile(r"\$\{env:([^}]*)\}")


class _Required:
    """Marks a key without a default."""

    def __repr__(self) -> str:
        return "(required)"


REQUIRED = _Required()


class Key(msgspec.Struct, frozen=True):
    """A setting: its name and its values."""

    name: str
    """The name; with a dot at its end, it covers every key with that prefix."""
    kind: Kind = "text"
    default: Any = None
    doc: str = ""
    choices: tuple[str, ...] = ()
    """The allowed values; case does not matter."""
    minimum: int | None = None
    ignored: str = ""
    """Why the key has no effect here: it is accepted, with a note."""
    refused: str = ""
    """Why the key is not supported, and what to use instead."""


class Given(NamedTuple):
    """A value, with its position."""

    value: str
    place: str


class Properties:
    """The settings of a file or a dict."""

    def __init__(self, origin: str, values: Mapping[str, Given], notes: Sequence[str] = ()) -> None:
        self.origin = origin
        """The name in errors: a path, or "the settings of a connector"."""
        self.values = dict(values)
        self.notes = list(notes)

    @classmethod
    def of(cls, given: str | os.PathLike[str] | Mapping[str, Any] | Properties) -> Properties:
        """Return the properties of a file, or of a dict with the same keys. Raises ConfigError."""
        if isinstance(given, Properties):
            return given
        if isinstance(given, Mapping):
            origin = f"connector {given['name']!r}" if "name" in given else "the settings given"
            return cls(origin, {key: Given(_text(value), f"{origin}, {key}") for key, value in given.items()})
        path = Path(given)
        try:
            return cls._of_text(str(path), path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(f"properties file {path}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"properties file {path}: not UTF-8 text ({error.reason} at byte {error.start})"
            ) from None

    @classmethod
    def _of_text(cls, origin: str, text: str) -> Properties:
        values: dict[str, Given] = {}
        notes: list[str] = []
        for number, line in _lines(text):
            place = f"{origin}, line {number}"
            try:
                found = parse_properties(line)
            except ValueError as error:
                raise ConfigError(f"{place}: {error}") from None
            for key, value in found.items():
                if key in values:
                    notes.append(f"{place}: {key} is in the file twice; the last one counts")
                values[key] = Given(_with_variables(value, place), place)
        return cls(origin, values, notes)

    def get(self, name: str) -> str | None:
        found = self.values.get(name)
        return None if found is None else found.value

    def place(self, name: str) -> str:
        """Return the position of a key; of the file, if it is not set."""
        found = self.values.get(name)
        return self.origin if found is None else found.place

    def below(self, prefix: str) -> Properties:
        """Return the keys that begin with ``prefix``, without it."""
        found = {key.removeprefix(prefix): one for key, one in self.values.items() if key.startswith(prefix)}
        return Properties(self.origin, found)

    def without(self, *prefixes: str) -> Properties:
        """Return all keys except those with these prefixes."""
        return Properties(self.origin, {key: one for key, one in self.values.items() if not key.startswith(prefixes)})


def read(properties: Properties, keys: Iterable[Key], what: str, notes: list[str]) -> dict[str, Any]:
    """Return the checked value of each key, or its default. ``notes`` gets ignored settings.

    Raises ConfigError for a key that is missing, refused, or a misspelling of a known key, and for a wrong value.
    """
    notes.extend(properties.notes)
    known = {key.name: key for key in keys}
    families = [key for key in known.values() if key.name.endswith(".")]
    for name, given in properties.values.items():
        key = known.get(name) or next((one for one in families if name.startswith(one.name)), None)
        if key is None:
            hint = nearest(name, [one for one in known if not one.endswith(".")])
            if hint:
                raise ConfigError(f"{given.place}: {what} has no setting {name!r}{hint}")
            notes.append(f"{given.place}: {what} has no setting {name!r}; it is ignored")
        elif key.refused:
            raise ConfigError(f"{given.place}: {name}: {key.refused}")
        elif key.ignored:
            notes.append(f"{given.place}: {name} is ignored: {key.ignored}")
    values: dict[str, Any] = {}
    for key in known.values():
        if key.ignored or key.refused or key.name.endswith("."):
            continue
        given = properties.values.get(key.name)
        if given is None:
            if key.default is REQUIRED:
                raise ConfigError(f"{properties.origin}: {what} needs {key.name}{f' ({key.doc})' if key.doc else ''}")
            values[key.name] = key.default
        else:
            values[key.name] = _value(key, given)
    return values


def names_in(text: str) -> tuple[str, ...]:
    """Split a list in properties at commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _value(key: Key, given: Given) -> Any:
    text = given.value.strip()
    match key.kind:
        case "list":
            return names_in(text)
        case "bool":
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"{given.place}: {key.name}={text}: true or false")
            return text.lower() == "true"
        case "int":
            return _number(key, text, given.place)
        case "text":
            pass
    if key.choices:
        for choice in key.choices:
            if choice.lower() == text.lower():
                return choice
        hint = nearest(text.lower(), key.choices)
        raise ConfigError(f"{given.place}: {key.name}={text}: one of {', '.join(key.choices)}{hint}")
    if not text and key.default is REQUIRED:
        raise ConfigError(f"{given.place}: {key.name} is empty")
    return given.value


def _number(key: Key, text: str, place: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
        raise ConfigError(f"{place}: {key.name}={text}: a whole number")
    number = int(text)
    if key.minimum is not None and number < key.minimum:
        raise ConfigError(f"{place}: {key.name}={text}: at least {key.minimum}")
    return number


def _lines(text: str) -> Iterable[tuple[int, str]]:
    """Yield each setting's line, joined with the lines after a backslash, and the number of the first."""
    joined: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.lstrip(" \t\f")
        if not joined:
            if not stripped or stripped[0] in "#!":
                continue
            first = number
        joined.append(line)
        if (len(line) - len(line.rstrip("\\"))) % 2 == 0:
            yield first, "\n".join(joined)
            joined = []
    if joined:
        yield first, "\n".join(joined)


def _with_variables(value: str, place: str) -> str:
    """Replace ``${env:NAME}`` by the variable's value, so that passwords need not be in files."""

    def replaced(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise ConfigError(f"{place}: the environment has no variable {found[1]!r}")
        return os.environ[found[1]]

    return _VARIABLE.sub(replaced, value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(str(one) for one in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return str(value)
