"""Which of several sources a bus goes by: keyword, the URL's own query, environment, file, default, in this order."""

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
from eventbus.client.configuration.said import Said
from eventbus.errors import ConfigError
from eventbus.settings.table import canonical, read_value, rows
from eventbus.suggest import nearest

if TYPE_CHECKING:
    from eventbus.client.configuration.files import FileSettings

logger = logging.getLogger("eventbus.config")

SERVICE_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
"""Two services whose names differ must not get one topic, so no character is replaced."""
_warned: set[str] = set()
"""Variables that were warned of in this process: it may make many buses."""


class Outside(msgspec.Struct, frozen=True):
    """What stands outside of the program."""

    said: dict[str, Said]
    """By canonical name; the environment before the file."""
    file: str | None
    handlers: dict[str, dict[str, Said]]
    unknown: dict[str, str]
    """Variables that mean nothing, with what to say about each."""


def outside(config_file: str | None = None, environ: Mapping[str, str] | None = None) -> Outside:
    """Read the environment, and the file that it or ``config_file`` names. Raises ConfigError for what is wrong."""
    environ = os.environ if environ is None else environ
    named = file_named(environ, config_file)
    from_file: FileSettings | None = None
    if named is not None:
        from eventbus.client.configuration.files import read_file  # few programs have one

        from_file = read_file(*named)
    said, unknown = read_environment(environ)
    if from_file is None:
        return Outside(said, None, {}, unknown)
    return Outside({**from_file.settings, **said}, from_file.path, from_file.handlers, unknown)


class Configuration(msgspec.Struct, frozen=True):
    """What a bus goes by, and where each part of it stands."""

    url: str
    service: str | None
    client_id: str
    drain_timeout_ms: int
    wedged_after_ms: int
    slow_loop_ms: int | None
    settings: BusSettings
    keywords: dict[str, Any]
    """What the program said, by canonical name."""
    outside: Outside

    def __repr__(self) -> str:
        return f"Configuration({shown_url(self.url)!r}, {self.settings!r})"

    def in_force(self) -> dict[str, Said]:
        """What was said outside of the program and is gone by: neither the program nor the URL say otherwise."""
        return _not_said(self.outside.said, self.keywords, self.url)

    def tuned(self, handler: str) -> dict[str, Said]:
        """What the file says of one handler, by its options."""
        return self.outside.handlers.get(handler, {})


def configure(keywords: Mapping[str, Any], config_file: str | None = None) -> Configuration:
    """Return what the keyword arguments of a bus, its URL, the environment and the file amount to.

    Raises ConfigError for a wrong key or value, naming where it stands.
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
        given: dict[str, Said] = {}
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
        if name in own and name not in ("url", "service"):  # wrong ones are explained elsewhere
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
    """What a URL says of its own log, by canonical name."""
    query = url.partition("?")[2] if isinstance(url, str) else ""
    return {canonical(key): value for key, value in parse_qsl(query, keep_blank_values=True)} if query else {}


def _not_said(said: Mapping[str, Said], keywords: Mapping[str, Any], url: str) -> dict[str, Said]:
    closer = {*keywords, *query_of(url)}
    return {key: entry for key, entry in said.items() if key not in closer}


def _check_service(service: Any, given: Mapping[str, Said]) -> None:
    if service is not None and (not isinstance(service, str) or not SERVICE_NAME.fullmatch(service)):
        place = f"{given['service'].source.place}: " if "service" in given else ""
        raise ConfigError(
            f"{place}service={service!r:.300} is not a service's name. It becomes part of the names of groups and "
            "topics. Choose 1 to 100 of a-z A-Z 0-9 . _ -"
        )


def _with_places(error: ConfigError, given: Mapping[str, Said]) -> ConfigError:
    """The same with the places of those settings it names that stand outside of the program."""
    text = str(error)
    there = [one for one in given.values() if re.search(rf"\b{one.name}\b", text)]
    if not there:
        return error
    places = "; ".join(f"{one.name} stands in {one.source.place}" for one in there)
    return type(error)(f"{text} ({places})")


def url_outside() -> str | None:
    """The log's URL as the environment or the file has it."""
    entry = outside().said.get("url")
    return None if entry is None else entry.value


def about_handlers(tables: Mapping[str, object], handlers: list[str]) -> list[str]:
    """What is to be said of tables of handlers that a bus does not have."""
    return [
        f"[handlers.{name}]: the bus has no handler {name!r}{nearest(name, handlers)}"
        for name in tables
        if name not in handlers
    ]
