"""Classify errors of databases: whether the transaction runs again, and which of our errors the caller receives."""

from __future__ import annotations

from typing import Literal

from eventbus.errors import ConfigError, SerializationError, StorageError, StorageFull

ErrorKind = Literal["conflict", "taken", "away", "full", "refused", "value", "other"]
"""Run the transaction again (``conflict``; ``taken``: what was to be made is there by now); the server is ``away``, its
disk is ``full``; it ``refused`` the user, the database or the statement; it cannot hold a ``value``."""

_STATES: tuple[tuple[tuple[str, ...], ErrorKind], ...] = (
    (("40001", "40P01", "55P03"), "conflict"),
    (("23505", "42P07", "42701", "42710", "42P06"), "taken"),
    (("53100", "53200"), "full"),
    (("22", "23502", "54000"), "value"),
    (("28", "3D000", "3F000", "42501", "0LP01", "2BP01", "0A000", "54"), "refused"),
    (("08", "57P", "53", "25006"), "away"),
)
"""How PostgreSQL's SQLSTATEs begin; the first that fits."""
_NUMBERS: dict[ErrorKind, frozenset[int]] = {
    "conflict": frozenset({1020, 1205, 1213, 3572}),
    "taken": frozenset({1050, 1060, 1061, 1062}),
    "away": frozenset(
        {0, 1040, 1047, 1053, 1077, 1079, 1080, 1129, 1152, 1184, 1290, 1836, 1927, 2002, 2003, 2006, 2013, 2055, 4031}
    ),
    "full": frozenset({3, 1021, 1114, 1041}),
    "refused": frozenset({1044, 1045, 1049, 1130, 1142, 1143, 1227, 1698, 1118, 1071, 1170, 1425, 1426}),
    "value": frozenset({1048, 1153, 1264, 1292, 1300, 1366, 1406, 1690, 3140, 4025}),
}
"""Error numbers of MySQL and MariaDB."""
_SQLITE: tuple[tuple[str, ErrorKind], ...] = (
    ("is locked", "conflict"),
    ("schema has changed", "conflict"),
    ("unique constraint", "taken"),
    ("already exists", "taken"),
    ("duplicate column", "taken"),
    ("disk is full", "full"),
    ("disk i/o error", "away"),
    ("unable to open", "refused"),
    ("readonly", "refused"),
    ("not a database", "refused"),
)
_NO_CODE: tuple[tuple[str, ErrorKind], ...] = (
    ("authentication failed", "refused"),
    ("does not exist", "refused"),
    ("no password supplied", "refused"),
    ("no pg_hba", "refused"),
    ("could not translate host", "refused"),
    ("resolve host", "refused"),
    ("connect", "away"),
    ("closed", "away"),
    ("lost", "away"),
    ("eof", "away"),
    ("terminat", "away"),
    ("starting up", "away"),
    ("shutting down", "away"),
)
"""Words of drivers that could not ask the server, which therefore has no code to give."""


def kind_of_error(error: BaseException) -> ErrorKind:
    """Classify an error; errors that do not come from the database are ``other``."""
    original = _original(error)
    if isinstance(original, ConnectionError):
        return "away"
    if not _is_drivers(original):
        return "other"
    said = str(original).lower()
    if type(original).__module__.startswith("sqlite3"):
        return _first(_SQLITE, said)
    state = str(getattr(original, "sqlstate", None) or "")
    if state:
        for begins, trouble in _STATES:
            if state.startswith(begins):
                return trouble
        return "other"
    number = next(iter(original.args), None)
    if isinstance(number, int):
        for trouble, numbers in _NUMBERS.items():
            if number in numbers:
                return trouble
        return "other"
    return _first(_NO_CODE, said)


def _first(known: tuple[tuple[str, ErrorKind], ...], said: str) -> ErrorKind:
    for words, trouble in known:
        if words in said:
            return trouble
    return "other"


def _original(error: BaseException) -> BaseException:
    """Return the driver's error inside of SQLAlchemy's."""
    from sqlalchemy.exc import DBAPIError

    return error.orig or error if isinstance(error, DBAPIError) else error


def _is_drivers(error: BaseException) -> bool:
    """Every driver's errors have a base of this name, as PEP 249 asks."""
    return any(base.__name__ == "Error" for base in type(error).__mro__)


def own_error(error: Exception, name: str) -> Exception:
    """Translate an error of a database or of a staged file, and return others unchanged; ``name`` is the table's."""
    original = _original(error)
    if not (_is_drivers(original) or isinstance(original, OSError) or type(original).__module__ == "pyarrow.lib"):
        return error
    parts = [part for part in original.args if isinstance(part, str)] or [str(original)]
    said = parts[-1].strip().partition("\n")[0]
    match kind_of_error(error):
        case "conflict" | "taken":
            return StorageError(f"{name}: others are in the way ({said}): nothing was landed; run it again")
        case "away":
            return StorageError(f"{name}: the database is away ({said}): run it again, the table says where to go on")
        case "full":
            return StorageFull(
                f"{name}: the database has no room ({said}): nothing was landed; free some, run it again"
            )
        case "refused":
            return ConfigError(f"{name}: the database refuses ({said}): fix the URL, or the permissions of its user")
        case "value":
            return SerializationError(
                f"{name}: the database cannot hold a value ({said}): nothing was landed; fix it with transform="
            )
        case "other":
            return StorageError(f"{name}: {type(original).__name__}: {said or 'no reason given'}: nothing was landed")
