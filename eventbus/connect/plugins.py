"""Find the class of a ``connector.class``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from eventbus.connect.connector import SinkConnector, SourceConnector
from eventbus.errors import ConfigError
from eventbus.suggest import nearest

ENTRY_POINTS = "eventbus.connectors"
"""Each entry is a class, or a function that returns one; its name is the value of ``connector.class``."""

AnyConnector = type[SourceConnector] | type[SinkConnector]


class Plugin(NamedTuple):
    """A connector that can be named in properties."""

    name: str
    """The short name of the connector."""
    java: str
    """The name in Kafka Connect; for others, their origin."""
    path: str
    """The path of the class: ``module:Class``."""

    @property
    def names(self) -> frozenset[str]:
        """Return all names of the connector, in lower case."""
        short = self.java.rpartition(".")[2]
        found = {self.name, self.java, short, short.removesuffix("Connector"), self.path, self.path.rpartition(":")[2]}
        return frozenset(name.lower() for name in found)

    def load(self) -> AnyConnector:
        """Import the class. Raises ConfigError."""
        return _load(self.path)


BUILT_IN = (
    Plugin("FileStreamSource", "org.apache.kafka.connect.file.FileStreamSourceConnector",
           "eventbus.connect.file_source:FileStreamSource"),
    Plugin("FileStreamSink", "org.apache.kafka.connect.file.FileStreamSinkConnector",
           "eventbus.connect.file_sink:FileStreamSink"),
    Plugin("JdbcSource", "io.confluent.connect.jdbc.JdbcSourceConnector", "eventbus.connect.sql_source:SqlSource"),
)  # fmt: skip


def plugins() -> Iterator[Plugin]:
    """Yield our connectors, and those of other distributions."""
    yield from BUILT_IN
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda one: one.name):
        yield Plugin(entry.name, entry.dist.name if entry.dist else entry.value, entry.value)


def find(name: str, place: str) -> AnyConnector:
    """Find by short name, Java name, or ``module:Class`` (``module.Class``). Raises ConfigError with a hint."""
    known = list(plugins())
    for one in known:
        if name.lower() in one.names:
            return one.load()
    if ":" in name:
        return _load(name, place)
    module, _, attribute = name.rpartition(".")
    if module and not name.startswith(("org.", "io.", "com.")):
        return _load(f"{module}:{attribute}", place)
    spelt = {alias for one in known for alias in (one.name, one.java, one.java.rpartition(".")[2])}
    hint = nearest(name, spelt) or nearest(name.rpartition(".")[2], spelt)
    raise ConfigError(
        f"{place}: there is no connector {name!r}{hint}; there are {', '.join(one.name for one in known)}, and classes "
        "of yours: module:Class. A Java connector runs in Kafka Connect, against `eventbus serve`"
    )


def _load(path: str, place: str = "") -> AnyConnector:
    where = f"{place}: " if place else ""
    module, _, attribute = path.partition(":")
    try:
        found: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{where}connector {path!r} cannot be loaded: {error}") from None
    if not isinstance(found, type) and callable(found):
        make: Callable[[], Any] = found
        found = make()
    if not isinstance(found, type) or not issubclass(found, (SourceConnector, SinkConnector)):
        raise ConfigError(f"{where}{path!r} is not a connector: derive it from SourceConnector or SinkConnector")
    return found
