"""Find and check the tables and columns of a SQL source when it starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, ProgrammingError

from eventbus.connect.sql_source import hinted
from eventbus.connect.sql_tables import Order, Reader, Source
from eventbus.connect.sql_values import Column, Shape, column_of, untyped
from eventbus.errors import ConfigError

Places = Callable[[str], str]


def sources(engine: sa.Engine, reader: Reader, settings: Mapping[str, Any], place: Places) -> Iterator[Source]:
    """Yield the sources. Raises ConfigError for a table or a column that does not exist, or that cannot be used so."""
    if settings["query"]:
        yield _query(reader, settings, place)
        return
    inspector = sa.inspect(engine)
    schema: str | None = settings["schema.pattern"]
    for table in _tables(inspector, schema, settings, place):
        yield _table(inspector, reader, table, schema, settings, place)


def _tables(inspector: sa.Inspector, schema: str | None, settings: Mapping[str, Any], place: Places) -> list[str]:
    kinds = {one.upper() for one in settings["table.types"]}
    there = [*inspector.get_table_names(schema)] if "TABLE" in kinds else []
    if "VIEW" in kinds:
        there += inspector.get_view_names(schema)
    for key in ("table.whitelist", "table.include.list"):
        if settings[key]:
            return [name for one in settings[key] for name in _matching(one, there, place(key))]
    out = [*settings["table.blacklist"], *settings["table.exclude.list"]]
    return [name for name in there if not any(_fits(one, name) for one in out)]


def _matching(wanted: str, there: list[str], place: str) -> list[str]:
    found = [name for name in there if _fits(wanted, name)]
    if not found:
        raise ConfigError(f"{place}: there is no table {wanted!r}{hinted(wanted, there)}")
    return found


def _fits(wanted: str, name: str) -> bool:
    """True if the name matches, also with its schema, or as a pattern."""
    if wanted == name or wanted.rpartition(".")[2] == name:
        return True
    try:
        return re.fullmatch(wanted, name) is not None
    except re.error:
        return False


def _query(reader: Reader, settings: Mapping[str, Any], place: Places) -> Source:
    # A colon does not begin a parameter of SQLAlchemy here.
    text = settings["query"].strip().rstrip(";").replace(":", r"\:")
    rows = sa.text(f"({text}) eventbus_query")
    try:
        names = reader.columns_of(rows)
    except (ProgrammingError, OperationalError) as error:
        if getattr(error, "connection_invalidated", False) or "connect" in str(error.orig).lower():
            raise
        raise ConfigError(f"{place('query')}: the database refuses the query: {str(error.orig).strip()}") from None
    double = {name for name in names if names.count(name) > 1}
    if double:
        raise ConfigError(f"{place('query')}: two columns are called {min(double)!r}: name them with AS")
    order = None if settings["mode"] == "bulk" else _order(settings, names, {}, "the query", place)
    return Source(
        "query", settings["topic.prefix"], {"query": "query"}, rows, Shape("query", [*map(untyped, names)]), order
    )


def _table(
    inspector: sa.Inspector, reader: Reader, table: str, schema: str | None, settings: Mapping[str, Any], place: Places
) -> Source:
    found = {one["name"]: one for one in inspector.get_columns(table, schema)}
    keys = inspector.get_pk_constraint(table, schema)["constrained_columns"]
    nullable = {name: bool(one.get("nullable", True)) and name not in keys for name, one in found.items()}
    columns: list[Column] = [
        column_of(
            name, one["type"], optional=nullable[name], mapping=settings["numeric.mapping"], is_sqlite=reader.is_sqlite
        )
        for name, one in found.items()
    ]
    order = None
    if settings["mode"] != "bulk":
        order = _order(settings, [*found], {name: found[name]["type"] for name in keys}, f"table {table!r}", place)
        _check(order, {name: one["type"] for name, one in found.items()}, nullable, table, settings, place)
        aware = any(getattr(found[name]["type"], "timezone", False) for name in order.timestamps)
        order = order._replace(is_aware=aware)
    full = table if schema is None else f"{schema}.{table}"
    rows = sa.table(reader.named(table), schema=None if schema is None else reader.named(schema))
    partition = {"protocol": "1", "table": full}
    return Source(full, settings["topic.prefix"] + table, partition, rows, Shape(table, columns), order)


def _order(settings: Mapping[str, Any], names: list[str], keys: Mapping[str, Any], what: str, place: Places) -> Order:
    mode: str = settings["mode"]
    timestamps: tuple[str, ...] = settings["timestamp.column.name"]
    for name in timestamps:
        if name not in names:
            raise ConfigError(f"{place('timestamp.column.name')}: {what} has no column {name!r}{hinted(name, names)}")
    incrementing: str | None = settings["incrementing.column.name"] or None
    if incrementing is not None and incrementing not in names:
        raise ConfigError(
            f"{place('incrementing.column.name')}: {what} has no column {incrementing!r}{hinted(incrementing, names)}"
        )
    if "incrementing" in mode and incrementing is None:
        whole = [name for name, kind in keys.items() if isinstance(kind, sa.types.Integer)]
        if len(keys) != 1 or not whole:
            raise ConfigError(
                f"{place('mode')}: {what} has no primary key of one whole number: name incrementing.column.name"
            )
        incrementing = whole[0]
    simple = all(isinstance(kind, (sa.types.Integer, sa.types.String, sa.types.Uuid)) for kind in keys.values())
    use_keys = mode == "timestamp" and keys and simple
    return Order(timestamps, incrementing, tuple(keys) if use_keys else ())


def _check(
    order: Order,
    kinds: Mapping[str, Any],
    nullable: Mapping[str, bool],
    table: str,
    settings: Mapping[str, Any],
    place: Places,
) -> None:
    """Raise ConfigError if these columns could cause rows to be skipped."""
    name = order.incrementing
    if name is not None:
        if not isinstance(kinds[name], (sa.types.Integer, sa.types.Numeric, sa.types.NullType)):
            raise ConfigError(
                f"{place('incrementing.column.name')}: column {name!r} of {table!r} is {kinds[name]}, "
                "not a number that grows"
            )
        if nullable[name] and settings["validate.non.null"]:
            raise ConfigError(
                f"{place('incrementing.column.name')}: column {name!r} of {table!r} may be null, and such a row would "
                "never be read: make it NOT NULL, or say validate.non.null=false"
            )
    if order.timestamps and settings["validate.non.null"] and all(nullable[one] for one in order.timestamps):
        raise ConfigError(
            f"{place('timestamp.column.name')}: {', '.join(order.timestamps)} of {table!r} may be null, and such a row "
            "would never be read: make one NOT NULL, name one more that is, or say validate.non.null=false"
        )
    for one in order.timestamps:
        if not isinstance(kinds[one], (sa.types.DateTime, sa.types.Date, sa.types.String, sa.types.NullType)):
            raise ConfigError(
                f"{place('timestamp.column.name')}: column {one!r} of {table!r} is {kinds[one]}, no date and time; "
                "a number that grows is for mode=incrementing"
            )
