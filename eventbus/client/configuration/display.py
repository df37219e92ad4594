"""Show a configuration as rows: each setting with its value and source, without secrets."""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.backends.masking import shown_value
from eventbus.client.configuration.resolution import Configuration, Outside, query_of
from eventbus.client.configuration.value import ConfiguredValue
from eventbus.settings.setting import Setting
from eventbus.settings.table import OF_A_BUS, rows


class Row(msgspec.Struct, frozen=True):
    """A setting, or an option of a handler."""

    setting: str
    value: Any
    source: str
    """"keyword", "url", ``EVENTBUS_...``, a file and its line, or "default"."""
    importance: str


def rows_of(configuration: Configuration) -> list[Row]:
    """Return the settings of a bus (librdkafka's only if they are set), and the options of handlers."""
    query, given = query_of(configuration.url), configuration.in_force()
    found: list[Row] = []
    for name, setting in rows(*OF_A_BUS).items():
        if name == "client_id":
            setting = setting._replace(default=configuration.client_id)
        row = _row(setting, configuration.keywords, query, given)
        if row.value is not None or not setting.is_passed:
            found.append(row)
    return found + _of_handlers(configuration.outside)


def rows_outside(outside: Outside) -> list[Row]:
    """Return the settings in the environment and the file, whether or not they apply."""
    found = [_said(one.key, one) for one in outside.said.values()]
    order = list(rows(*OF_A_BUS))
    return sorted(found, key=lambda row: order.index(row.setting)) + _of_handlers(outside)


def _row(setting: Setting, keywords: dict[str, Any], query: dict[str, str], given: dict[str, ConfiguredValue]) -> Row:
    name = setting.name
    if name in keywords:
        return Row(name, plain(name, keywords[name]), "keyword", setting.importance)
    if name in query:
        return Row(name, plain(name, query[name]), "url", setting.importance)
    if name in given:
        return _said(name, given[name])
    return Row(name, plain(name, setting.default), "default", setting.importance)


def _said(name: str, one: ConfiguredValue) -> Row:
    known = rows(*OF_A_BUS).get(name)
    return Row(name, plain(name, one.value), one.source.place, known.importance if known else "low")


def _of_handlers(outside: Outside) -> list[Row]:
    return [
        Row(f"handlers.{handler}.{name}", plain(name, one.value), one.source.place, "medium")
        for handler, table in outside.handlers.items()
        for name, one in table.items()
    ]


def plain(name: str, value: Any) -> Any:
    """Return a value as a user would type it, without secrets."""
    if isinstance(value, dict) or value is None or isinstance(value, (bool, int, float)):
        return shown_value(name, value)
    if isinstance(value, (tuple, list)):
        return ",".join(str(getattr(one, "__name__", one)) for one in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return shown_value(name, str(value))
