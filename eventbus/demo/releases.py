"""The versions of the flights' schema: two releases of the exporter wrote it, and a third was refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio.to_thread
import msgspec

from eventbus import EventBus
from eventbus.demo.flights import GateFlight
from eventbus.demo.names import Names
from eventbus.errors import ConfigError
from serdes import Avro
from serdes.registry import SchemaClient


class Releases(msgspec.Struct, frozen=True):
    """The schemas in the registry."""

    texts: dict[int, str] = {}
    """The schemas of the records, by the id with which each record begins."""
    refusal: str = ""
    """Why the third version is refused; empty if it is not."""


async def look_at(registry: SchemaClient, url: str, names: Names) -> Releases:
    """Return the registered schemas, and the registry's refusal of a release that requires a gate of every flight."""
    texts = await anyio.to_thread.run_sync(partial(_texts, registry, names.schemas))
    return Releases(texts, await _refusal(url, names))


def _texts(registry: SchemaClient, subject: str) -> dict[int, str]:
    last = registry.latest(subject).version or 0
    versions = [registry.version(subject, number) for number in range(1, last + 1)]
    return {version.id: version.text.schema for version in versions}


async def _refusal(url: str, names: Names) -> str:
    """Start a service with the third version, which fails before it has written anything; return the error."""
    bus = EventBus(url, service="demo-third-release", serdes={GateFlight: Avro("log")})

    @bus.producer(names.flights)
    def export(flight: GateFlight) -> GateFlight:
        return flight

    del export  # the bus has it
    try:
        async with bus:
            return ""
    except ConfigError as error:
        findings: tuple[Any, ...] = getattr(error.__cause__, "findings", ())
        return "; ".join(finding.explanation for finding in findings) or str(error)
