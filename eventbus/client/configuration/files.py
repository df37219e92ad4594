"""Read settings from ``eventbus.toml``, ``[tool.eventbus]`` of a pyproject.toml, or Java's ``.properties``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from eventbus.client.configuration.java import java_settings
from eventbus.client.configuration.value import ConfiguredValue, Source, checked, content_of, merge
from eventbus.errors import ConfigError
from eventbus.properties import check_dotted, numbered_properties
from eventbus.settings.setting import as_keyword
from eventbus.settings.table import OF_A_BUS, advice, known
from eventbus.suggest import nearest, nearest_setting

MOST_BYTES = 1 << 20
HANDLERS = "handlers"
_TABLES = ("log_defaults",)
"""Settings whose value is a table."""
_SERVERS = "bootstrap_servers"


class Entry(NamedTuple):
    """A key as spelled in the file, its value, and its line, or 0 if that is not known."""

    key: str
    value: Any
    line: int
    handler: str = ""
    """The handler whose table contains it. The key is then the name of an option."""


class FileSettings(msgspec.Struct, frozen=True):
    """The contents of a settings file."""

    path: str
    settings: dict[str, ConfiguredValue]
    """Settings by canonical name."""
    handlers: dict[str, dict[str, ConfiguredValue]]
    """Options in ``[handlers.NAME]`` by handler, under the names used there."""


def read_file(path: str, named_by: str) -> FileSettings:
    """Read a settings file. Raises ConfigError if it is missing, unreadable, or has an unknown key or a wrong value."""
    file = Path(path).expanduser()
    text = _text(file, named_by)
    try:
        if file.suffix == ".toml":
            entries = list(_toml_entries(text, file.name == "pyproject.toml", str(path)))
        elif file.suffix == ".properties":
            entries = _java_entries(text, path)
        else:
            raise ConfigError(f"{named_by}: the name of a settings file ends in .toml or .properties")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no properties file: {error}") from None
    return _settings_of(path, entries)


def _text(file: Path, named_by: str) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        where = "" if file.is_absolute() else f" in {Path.cwd()}"
        raise ConfigError(f"{named_by}: {reason}{where}") from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{named_by}: the file has more than {MOST_BYTES:,} bytes, so it cannot be a settings file")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{named_by}: the file is not UTF-8 text") from None


def _settings_of(path: str, entries: list[Entry]) -> FileSettings:
    found: list[ConfiguredValue] = []
    handlers: dict[str, dict[str, ConfiguredValue]] = {}
    for entry in entries:
        source = Source("file", f"{path}, line {entry.line}" if entry.line else path)
        if entry.handler:
            option = ConfiguredValue(as_keyword(entry.key), entry.value, source)
            before = handlers.setdefault(entry.handler, {}).setdefault(option.name, option)
            if before.value != option.value:
                raise ConfigError(_twice(before, option))
        elif entry.key.startswith(f"{HANDLERS}.") or entry.key == HANDLERS:
            place = source.of(entry.key, entry.value)
            raise ConfigError(f"{place}: a handler has a table of options, [handlers.NAME]")
        else:
            found.append(_setting(entry, source))
    return FileSettings(path, merge(found, _twice), handlers)


def _setting(entry: Entry, source: Source) -> ConfiguredValue:
    names = known(*OF_A_BUS)
    name = as_keyword(entry.key)
    if name == _SERVERS:
        return ConfiguredValue("url", f"kafka://{str(entry.value).replace(' ', '')}", source)
    if name in names:
        return checked(name, entry.value, source, entry.key)
    if name.endswith("_file") and name.removesuffix("_file") in names:
        name = name.removesuffix("_file")
        return checked(name, content_of(str(entry.value), source, f"{name}_path"), source, entry.key)
    hint = advice(name, names)
    if hint:
        raise ConfigError(f"{source.place}: {entry.key} is not a setting of a bus: {hint}")
    table, dot, _ = entry.key.partition(".")
    near = nearest_setting(entry.key, names)
    near_table = nearest(table, (HANDLERS, *_TABLES))
    if dot and (near_table or not near):
        raise ConfigError(
            f"{source.place}: unknown table [{table}]{near_table}; settings have none; "
            "there are [handlers.NAME] and [log_defaults]"
        )
    raise ConfigError(f"{source.place}: unknown setting {entry.key!r}{near}; see: eventbus config list")


def _twice(one: ConfiguredValue, other: ConfiguredValue) -> str:
    return f"{one.source.place} and {other.source.place} set {one.key} to different values: leave one of them out"


# TOML ----------------------------------------------------------------------------------------------------------------


def _toml_entries(text: str, in_pyproject: bool, path: str) -> Iterator[Entry]:
    document: Any = tomllib.loads(text)
    prefix: tuple[str, ...] = ()
    if in_pyproject:
        prefix = ("tool", "eventbus")
        document = document.get("tool", {}).get("eventbus")
        if not isinstance(document, dict):
            raise ConfigError(f"{path} has no table [tool.eventbus]")
    lines = toml_lines(text)
    for parts, value in _leaves((), cast("Mapping[str, Any]", document)):
        line = lines.get((*prefix, *parts), 0)
        if parts[0] == HANDLERS and len(parts) > 2:
            yield Entry(".".join(parts[2:]), value, line, parts[1])
        else:
            yield Entry(".".join(parts), value, line)


def _leaves(path: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield dotted keys and values: ``linger.ms = 5`` is a nested table in TOML."""
    for key, value in table.items():
        parts = (*path, key)
        if isinstance(value, dict) and (path or as_keyword(key) not in _TABLES):
            yield from _leaves(parts, cast("Mapping[str, Any]", value))
        elif isinstance(value, dict):
            configs = {".".join(names): as_text for names, as_text in _leaves((), cast("Mapping[str, Any]", value))}
            yield parts, configs
        else:
            yield parts, value


_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_KEYS = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEADER = re.compile(rf"[ \t]*\[[ \t]*({_KEYS})[ \t]*\]")
_ASSIGNMENT = re.compile(rf"[ \t]*({_KEYS})[ \t]*=")


def toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """Map keys and tables to their line numbers for messages, without a full parse."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not inside:
            if header := _HEADER.match(line):
                table = _parts(header[1])
                found.setdefault(table, number)
            elif assignment := _ASSIGNMENT.match(line):
                found.setdefault((*table, *_parts(assignment[1])), number)
        for quotes in re.findall(r'"""|' + "'''", line):  # a multi-line string contains no keys
            inside = quotes if not inside else "" if quotes == inside else inside
    return found


def _parts(keys: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_KEY, keys))


# Java's properties ---------------------------------------------------------------------------------------------------


def _java_entries(text: str, path: str) -> list[Entry]:
    entries = [Entry(key, value, line) for line, key, value in numbered_properties(text)]
    for entry in entries:
        check_dotted(f"{path}, line {entry.line}", _of_a_handler(entry).key)
    lines = {entry.key: entry.line for entry in entries}
    written = {entry.key: entry.value for entry in entries}
    if len(written) < len(entries):
        last = {entry.key: entry for entry in entries}
        again = next((one for one in entries if last[one.key].value != one.value), None)
        if again is not None:
            raise ConfigError(
                f"{path}, line {again.line} and line {last[again.key].line} set {again.key} to different values: leave "
                "one of them out"
            )
    try:
        translated = java_settings(written)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    stores = {"ssl.ca.location": "ssl.truststore.location", "sasl.username": "sasl.jaas.config"}
    stores |= {"ssl.certificate.location": "ssl.keystore.location", "ssl.key.location": "ssl.keystore.location"}
    stores |= {"sasl.password": "sasl.jaas.config"}
    return [
        _of_a_handler(Entry(key, value, lines.get(key) or lines.get(stores.get(key, ""), 0)))
        for key, value in translated.items()
    ]


def _of_a_handler(entry: Entry) -> Entry:
    """Split ``handlers.bill.concurrency`` into handler and option. Handler names contain no dots here."""
    table, _, rest = entry.key.partition(".")
    handler, _, option = rest.partition(".")
    return entry._replace(key=option, handler=handler) if table == HANDLERS and option else entry
