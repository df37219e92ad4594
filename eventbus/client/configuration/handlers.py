"""Apply ``[handlers.bill]`` of a configuration file, which overrides settings of the decorator."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from eventbus.client.config import consumer_settings
from eventbus.client.configuration.resolution import about_handlers
from eventbus.client.configuration.value import ConfiguredValue
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.options import tuned
from eventbus.errors import ConfigError

logger = logging.getLogger("eventbus.config")


def tuned_handlers(
    handlers: Sequence[Handler[Any, Any]], tables: Mapping[str, Mapping[str, ConfiguredValue]]
) -> list[Handler[Any, Any]]:
    """Return the handlers to run; those with a table in the file are copies. Raises ConfigError with the source."""
    if not tables:
        return list(handlers)
    for problem in about_handlers(tables, [handler.__name__ for handler in handlers]):
        # Several services or buses may share a file, so only a likely typo is worth a warning.
        logger.log(logging.WARNING if "did you mean" in problem else logging.DEBUG, "%s", problem)
    return [_tuned(handler, tables.get(handler.__name__, {})) for handler in handlers]


def _tuned(handler: Handler[Any, Any], table: Mapping[str, ConfiguredValue]) -> Handler[Any, Any]:
    if not table:
        return handler
    options = {name: said.value for name, said in table.items()}
    places = ", ".join(sorted({said.source.place for said in table.values()}))
    where = f"{places}: [handlers.{handler.__name__}]"
    spec = tuned(handler.spec, options, where)
    try:
        consumer_settings({"session_timeout_ms": 1_800_000, **spec.consumer_options(), "group": "g"})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    one = copy.copy(handler)
    one.spec = spec
    return one
