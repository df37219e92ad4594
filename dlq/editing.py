"""Validate edited values against their schema before they are sent."""

from __future__ import annotations

from typing import Any

import anyio

from eventbus import EventBus
from eventbus.errors import SchemaUnavailable, SerializationError
from eventbus.types import Headers
from serdes import SchemaRegistryError, serde_for
from serdes.base import SchemaNeeded, SchemaSerde, bind_decoder
from serdes.framing import with_prefix

_FRAMES = (b"\0", b"\1")


async def check_edit(bus: EventBus, topic: str, before: bytes | None, value: bytes | None, headers: Headers) -> None:
    """Raise SerializationError for an edited value that consumers of the topic could not decode.

    Only values that name their schema can be checked, and only if the bus's own serde reads them. Raises
    SchemaUnavailable if the registry does not answer.
    """
    serde = serde_for(Any, bus.context.serdes)
    if value is None or not isinstance(serde, SchemaSerde):
        return
    name = serde.header
    framed = value if name is None else with_prefix(value, headers, name)
    was_framed = before is not None and (before if name is None else with_prefix(before, headers, name))[:1] in _FRAMES
    if framed[:1] not in _FRAMES and not was_framed:
        return
    decode = bind_decoder(serde, topic)
    try:
        try:
            decode(framed)
        except SchemaNeeded as needed:
            await anyio.to_thread.run_sync(needed.fetch)
            decode(framed)
    except SchemaRegistryError as error:
        if error.is_retriable:
            raise SchemaUnavailable(f"the edited value for {topic!r} cannot be checked: {error}") from error
        raise _unreadable(topic, error) from error
    except Exception as error:  # a serde is the user's code
        raise _unreadable(topic, error) from error


def _unreadable(topic: str, error: Exception) -> SerializationError:
    return SerializationError(
        f"the edited value cannot be read by those who read {topic!r}: {error}. Nothing was sent; write it in the "
        "schema that it names"
    )
