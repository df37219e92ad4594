"""What became of the flights' schema: two releases of the exporter wrote it, and a third was refused."""

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
    """The registry's side of the story."""

    texts: dict[int, str] = {}
    """The schemas of the records, by the id that each record begins with."""
    refusal: str = ""
    """Why the third one may not be; empty if it may."""


async def look_at(registry: SchemaClient, url: str, names: Names) -> Releases:
    """What is registered, and what the registry says of a release that demands a gate of every flight."""
    texts = await anyio.to_thread.run_sync(partial(_texts, registry, names.schemas))
    return Releases(texts, await _refusal(url, names))


def _texts(registry: SchemaClient, subject: str) -> dict[int, str]:
    last = registry.latest(subject).version or 0
    versions = [registry.version(subject, number) for number in range(1, last + 1)]
    return {version.id: version.text.schema for version in versions}


async def _refusal(url: str, names: Names) -> str:
    """A service is told at its start, before it has written anything."""
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
