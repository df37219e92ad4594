"""Open a backend by its URL: ``memory://``, ``file://./data``, ``kafka://host:9092``."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote

from eventbus.backends.base import Backend
from eventbus.backends.clock import Clock, system_clock, timers_of
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.masking import has_login, shown_url
from eventbus.broker import BrokerConfig
from eventbus.errors import ConfigError
from eventbus.settings.setting import as_keyword
from eventbus.settings.table import CALLBACK, OF_A_CONSUMER, OF_A_PRODUCER, PASSED, find, known, read, rows
from eventbus.suggest import nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from eventbus.backends.engine import Engine

logger = logging.getLogger("eventbus")

SCHEMES = ("memory", "file", "kafka")
_ENCODED = "In a URL a value's ? # / @ & + and % are percent-encoded: a password a&b is sasl_password=a%26b"
_NOT_OF_A_LOG = "it is one of clients, and a keyword: EventBus(url, linger_ms=5), bus.new_consumer(...)"


def new_id() -> bytes:
    """Return sixteen random bytes, for topic ids and cluster ids."""
    return os.urandom(16)


def split_url(url: str) -> tuple[str, str, dict[str, str]]:
    """Split into ``(scheme, rest, query)``. Raises ConfigError for anything that is not a URL of a known scheme."""
    if not isinstance(cast(Any, url), str):
        raise ConfigError(_no_text(url))
    scheme, separator, rest = url.partition("://")
    if not separator:
        shown = url if "@" not in url else f"***@{url.rpartition('@')[2]}"  # there may be a password in it
        raise ConfigError(f"{shown!r} is no URL: {_meant(shown)}")
    if url != url.strip():
        raise ConfigError(
            f"{shown_url(url)!r} is a URL with white space around it: leave that out, it would be part of the name"
        )
    if scheme not in SCHEMES and scheme not in (plugins := _entry_points()):
        known = {*SCHEMES, *plugins}
        raise ConfigError(
            f"unknown scheme {scheme!r} in {shown_url(url)!r}{nearest(scheme, known)}: known are "
            f"{', '.join(f'{name}://' for name in sorted(known))}"
        )
    if scheme == "kafka" and has_login(url):
        raise ConfigError(
            f"{shown_url(url)}: no user and password before the host; they are settings: sasl.username, and "
            f"sasl.password or EVENTBUS_SASL_PASSWORD_FILE. {_ENCODED}"
        )
    rest, _, query = rest.partition("?")
    if not all("=" in piece for piece in query.split("&") if piece):
        raise ConfigError(f"{shown_url(url)}: settings are written ?name=value&name=value. {_ENCODED}")
    return scheme, rest, dict(parse_qsl(query, keep_blank_values=True))


def _no_text(given: object) -> str:
    if isinstance(given, os.PathLike):
        return f"{given!r} is a path; a log's URL is a text: f'file://{{path}}'"
    unset = "; an environment variable that is not set gives None, log_url() has a default" if given is None else ""
    return f"{given!r} is not a URL: write text such as file://./data, memory:// or kafka://host:9092{unset}"


def _meant(text: str) -> str:
    """Return what the user probably meant by text without ``://``."""
    scheme, colon, rest = text.partition(":")
    if scheme in SCHEMES:
        return f"write {scheme}://{rest.lstrip('/') if scheme == 'memory' else rest}"
    if colon and rest.isdecimal():
        return f"write kafka://{text} for a broker"
    directory = f"file://{text}" if text.strip() else "file://./data"
    return f"write {directory} for a directory, or memory:// or kafka://host:9092"


def is_durable(url: str) -> bool:
    """True if other processes and later runs can open the log again: every log except those in memory."""
    return url.partition(":")[0] != "memory"


def open_backend(url: str, config: Mapping[str, Any], clock: Clock = system_clock) -> Backend:
    """Return the backend of ``url``, not started. ``config``: settings of logs, to which the URL's query adds.

    Unknown settings in the URL are errors, because it names its log. ``config`` belongs to a program, which may move to
    another type of log: settings that only the other type uses are skipped.

    Raises ConfigError: unknown scheme, missing extra (with the exact install command), wrong key or value.
    """
    scheme, rest, query = split_url(url)
    merged = {**query, **_meant_for(scheme, config)}
    if scheme == "memory":
        return _memory(url, rest, merged, clock)
    if scheme == "file":
        return _file(url, rest, merged, clock)
    if scheme != "kafka":
        return _entry_points()[scheme].load()(url, merged, clock)
    if importlib.util.find_spec("confluent_kafka") is None:
        raise ConfigError('kafka:// needs the client library: pip install "eventbus-log[kafka]"')
    from eventbus.backends.kafka.backend import open_kafka  # 70 ms, for programs that use a cluster

    return open_kafka(url, rest, merged, clock)


def _meant_for(scheme: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without those that only the other type of log uses."""
    foreign: Collection[str] = ()
    if scheme in ("memory", "file"):
        foreign = {*known(*PASSED), CALLBACK}
    elif scheme == "kafka":
        foreign = rows("log").keys() - {"auto_create_topics"}
    passed_over = [key for key in config if as_keyword(key) in foreign]
    if passed_over:
        logger.debug("%s:// has no use for %s: skipped", scheme, ", ".join(passed_over))
    return {key: value for key, value in config.items() if key not in passed_over}


def broker_config(config: Mapping[str, Any]) -> BrokerConfig:
    """Return the log's settings from keywords or a URL's query (whose values are text). Raises ConfigError."""
    clients = known(*OF_A_PRODUCER, *OF_A_CONSUMER, librdkafka_too=True)
    for key in config:
        if find(key, known("log")) is None and find(key, clients) is not None:
            raise ConfigError(f"unknown log setting {key!r}: {_NOT_OF_A_LOG}")
    values, _ = read(config, known("log"), "log")
    return BrokerConfig(**values)


def _memory(url: str, name: str, config: Mapping[str, Any], clock: Clock) -> Backend:
    settings = broker_config(config)

    def engine_of() -> Engine:
        from eventbus.backends.engine import Engine
        from eventbus.log.storage import MemoryStorage

        def make() -> Engine:
            return Engine(url, MemoryStorage(), settings, clock, new_id)

        # Without a name, a log is private to its bus; with a name, buses of the process share it.
        return Engine.shared(url, settings, make) if name else make()

    return EmbeddedBackend(url, engine_of, timers_of(clock), is_private=not name)


def _file(url: str, rest: str, config: Mapping[str, Any], clock: Clock) -> Backend:
    if not rest:
        raise ConfigError("file:// needs a directory: file://./data or file:///var/lib/bus")
    if rest.startswith("$"):
        raise ConfigError(
            f"{shown_url(url)}: nobody puts in what {rest.split('/')[0]} stands for: write the path, or file://~/data"
        )
    directory = Path(unquote(rest)).expanduser()
    if directory.is_file():
        raise ConfigError(f"{shown_url(url)}: {directory} is a file; name a directory, it is created if missing")
    settings = broker_config(config)
    directory = directory.absolute()  # a daemon changes its working directory between the import and the start

    def engine_of() -> Engine:
        from eventbus.backends.engine import Engine
        from eventbus.log.storage import FileStorage

        def make() -> Engine:
            return Engine(name, FileStorage(str(directory)), settings, clock, new_id)

        name = f"file://{os.path.realpath(directory)}"  # resolved now: a link may have been switched

        return Engine.shared(name, settings, make)

    return EmbeddedBackend(url, engine_of, timers_of(clock))


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # 20 ms, for programs that use another scheme

    return {point.name: point for point in entry_points(group="eventbus.backends")}
