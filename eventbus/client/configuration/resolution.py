"""Combine settings from several sources, in this order: keyword, query of the URL, environment, file, default."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from eventbus.backends.masking import shown_url
from eventbus.client.config import BusSettings, bus_settings
from eventbus.client.configuration.environment import file_named, read_environment
from eventbus.client.configuration.value import ConfiguredValue
from eventbus.errors import ConfigError
from eventbus.settings.table import canonical, read_value, rows
from eventbus.suggest import nearest

if TYPE_CHECKING:
    from eventbus.client.configuration.files import FileSettings

logger = logging.getLogger("eventbus.config")

SERVICE_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
"""Services with different names must not share a topic, so invalid characters are refused, not replaced."""
_warned: set[str] = set()
"""Variables that were already warned of in this process, which may create many buses."""


class Outside(msgspec.Struct, frozen=True):
    """The settings from outside of the program."""

    said: dict[str, ConfiguredValue]
    """Settings by canonical name; the environment takes precedence over the file."""
    file: str | None
    handlers: dict[str, dict[str, ConfiguredValue]]
    unknown: dict[str, str]
    """Unknown variables, each with a message."""


def outside(config_file: str | None = None, environ: Mapping[str, str] | None = None) -> Outside:
    """Read the environment, and the file named by it or by ``config_file``. Raises ConfigError for errors in either."""
    environ = os.environ if environ is None else environ
    named = file_named(environ, config_file)
    from_file: FileSettings | None = None
    if named is not None:
        from eventbus.client.configuration.files import read_file  # rarely used

        from_file = read_file(*named)
    said, unknown = read_environment(environ)
    if from_file is None:
        return Outside(said, None, {}, unknown)
    return Outside({**from_file.settings, **said}, from_file.path, from_file.handlers, unknown)


class Configuration(msgspec.Struct, frozen=True):
    """The settings of a bus, and their sources."""

    url: str
    service: str | None
    client_id: str
    drain_timeout_ms: int
    wedged_after_ms: int
    slow_loop_ms: int | None
    settings: BusSettings
    keywords: dict[str, Any]
    """Settings from keyword arguments, by canonical name."""
    outside: Outside

    def __repr__(self) -> str:
        return f"Configuration({shown_url(self.url)!r}, {self.settings!r})"

    def in_force(self) -> dict[str, ConfiguredValue]:
        """Return the settings from outside that apply, because neither the program nor the URL overrides them."""
        return _not_said(self.outside.said, self.keywords, self.url)

    def tuned(self, handler: str) -> dict[str, ConfiguredValue]:
        """Return the file's options for a handler."""
        return self.outside.handlers.get(handler, {})


def configure(keywords: Mapping[str, Any], config_file: str | None = None) -> Configuration:
    """Combine a bus's keyword arguments, its URL, the environment and the file.

    Raises ConfigError for a wrong key or value, with its source.
    """
    found = outside(config_file)
    for variable, problem in found.unknown.items():
        if variable not in _warned:
            _warned.add(variable)
            logger.warning("%s", problem)
    of_the_bus = rows("bus")
    own = {key: value for key, value in keywords.items() if key in of_the_bus}
    config = {key: value for key, value in keywords.items() if key not in of_the_bus}
    said = {**own, **{canonical(key): value for key, value in config.items()}}
    if not found.said:
        given: dict[str, ConfiguredValue] = {}
    else:
        url = (
            said["url"]
            if "url" in said
            else found.said["url"].value
            if "url" in found.said
            else rows("bus")["url"].default
        )
        given = _not_said(found.said, said, url)
    chosen = {
        name: own[name] if name in own else given[name].value if name in given else row.default
        for name, row in of_the_bus.items()
    }
    for name, row in of_the_bus.items():
        if name in own and name not in ("url", "service"):  # wrong values of these are reported elsewhere
            chosen[name] = read_value(row, name, chosen[name], "bus setting")
    _check_service(chosen["service"], given)
    if "client_id" not in own and "client_id" not in given:
        chosen["client_id"] = query_of(chosen["url"]).get("client_id") or chosen["service"] or chosen["client_id"]
    rest = {entry.name: entry.value for key, entry in given.items() if key not in of_the_bus}
    try:
        settings = bus_settings({**rest, **config}, chosen["client_id"])
    except ConfigError as error:
        raise _with_places(error, given) from None
    return Configuration(**chosen, settings=settings, keywords=said, outside=found)


def query_of(url: Any) -> dict[str, str]:
    """Return the settings in the query of a URL, by canonical name."""
    query = url.partition("?")[2] if isinstance(url, str) else ""
    return {canonical(key): value for key, value in parse_qsl(query, keep_blank_values=True)} if query else {}


def _not_said(said: Mapping[str, ConfiguredValue], keywords: Mapping[str, Any], url: str) -> dict[str, ConfiguredValue]:
    closer = {*keywords, *query_of(url)}
    return {key: entry for key, entry in said.items() if key not in closer}


def _check_service(service: Any, given: Mapping[str, ConfiguredValue]) -> None:
    if service is not None and (not isinstance(service, str) or not SERVICE_NAME.fullmatch(service)):
        place = f"{given['service'].source.place}: " if "service" in given else ""
        raise ConfigError(
            f"{place}service={service!r:.300} is not a service's name. It becomes part of the names of groups and "
            "topics. Choose 1 to 100 of a-z A-Z 0-9 . _ -"
        )


def _with_places(error: ConfigError, given: Mapping[str, ConfiguredValue]) -> ConfigError:
    """Append the sources of settings that the message mentions, if they are outside of the program."""
    text = str(error)
    there = [setting for setting in given.values() if re.search(rf"\b{setting.name}\b", text)]
    if not there:
        return error
    places = "; ".join(f"{setting.name} is set in {setting.source.place}" for setting in there)
    return type(error)(f"{text} ({places})")


def url_outside() -> str | None:
    """Return the log's URL from the environment or the file."""
    entry = outside().said.get("url")
    return None if entry is None else entry.value


def about_handlers(tables: Mapping[str, object], handlers: list[str]) -> list[str]:
    """Return a message for each table of the file that names an unknown handler."""
    return [
        f"[handlers.{name}]: the bus has no handler {name!r}{nearest(name, handlers)}"
        for name in tables
        if name not in handlers
    ]
