"""Payloads in Avro: read with the schema that they name, from a registry."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio.to_thread import run_sync

from dlq.cli.payloads import schema_of
from eventbus.backends.masking import shown_url
from eventbus.cli.parser import UsageError
from eventbus.cli.schema_values import avro_of, parts_of
from eventbus.errors import SerializationError
from serdes import SchemaRegistryError
from serdes.framing import VALUE_HEADER, with_prefix

if TYPE_CHECKING:
    from dlq.letters import DeadLetter
    from eventbus import EventBus
    from serdes import Avro

_VARIABLE = "EVENTBUS_REGISTRY"
_TOPIC = "_schemas"
"""The topic in which a registry in a log stores its schemas."""


def add_registry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--schema", metavar="REGISTRY",
        help=f"where schemas of payloads are: http://HOST:PORT, or log (default: ${_VARIABLE}, else the log)",
    )  # fmt: skip


class Registry:
    """Reads payloads that name a schema. Without a registry it reads none."""

    def __init__(self, avro: Avro | None, advice: str = "") -> None:
        self._avro = avro
        self.advice = advice
        """How to have a payload read that was not."""

    async def as_json(self, letter: DeadLetter, payload: bytes | None) -> bytes | None:
        """Return the payload as JSON; None where it names no schema, or cannot be read with it: `advice` says why."""
        avro = self._avro
        if avro is None or payload is None or schema_of(with_prefix(payload, letter.headers, VALUE_HEADER)) is None:
            return None
        topic = letter.topic if letter.source is None else letter.source.topic
        try:
            value = await run_sync(avro.deserialize, topic, payload, letter.headers)
            return msgspec.json.encode(value, enc_hook=str)
        except (ValueError, TypeError, SchemaRegistryError) as error:
            self.advice = f"by the schema that it names it cannot be read: {error}"
            return None

    async def from_json(self, topic: str, data: bytes) -> bytes | None:
        """JSON in the latest schema of a topic's values. Raises SerializationError for what does not fit it."""
        assert self._avro is not None
        try:
            return await run_sync(self._avro.serialize, topic, msgspec.json.decode(data))
        except (ValueError, TypeError, SchemaRegistryError) as error:
            raise SerializationError(
                f"the new payload does not fit the latest schema of {topic!r}, so nothing is sent: {error}"
            ) from None


@asynccontextmanager
async def registry_of(bus: EventBus, args: argparse.Namespace) -> AsyncGenerator[Registry]:
    """Open the schema registry that an option or the environment names, or else the registry in the log."""
    name: str | None = args.schema or os.environ.get(_VARIABLE) or None
    in_log = _TOPIC in await bus.admin.list_topics(internal=True)
    if name == "log" and not in_log:
        raise UsageError(f"--schema log: {shown_url(bus.url)} has no schemas (no topic {_TOPIC})")
    if name is None and not in_log:
        yield Registry(None, "a registry reads it: --schema http://HOST:PORT")
        return
    avro = avro_of(name or "log", "--schema", use_latest=True)
    started = parts_of(avro)
    for part in started:
        await part.start(bus)
    try:
        yield Registry(avro)
    finally:
        with anyio.CancelScope(shield=True):
            for part in started:
                await part.aclose()
