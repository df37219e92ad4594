"""Serialize keys, values and headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from eventbus.client.sending import HeadersLike
from eventbus.errors import ConfigError
from eventbus.types import Header, Headers
from serdes import Serde
from serdes.base import Encode, SchemaSerde, bind_encoder, for_keys
from serdes.choose import serde_of_topic, serde_of_values
from serdes.framing import header_name, prefix_size


def pack_headers(headers: HeadersLike) -> Headers:
    """Return headers as stored: pairs in order, with text as UTF-8. Raises ConfigError for anything else."""
    pairs = cast("Iterable[Any]", headers.items() if isinstance(headers, Mapping) else headers)
    packed: list[Header] = []
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(cast("tuple[Any, ...]", pair)) != 2:
            raise ConfigError(f"headers: {pair!r} is not a pair: {{'trace': b'1'}}, or [('trace', b'1'), ...]")
        name, value = cast("tuple[Any, Any]", pair)
        if not isinstance(name, str):
            raise ConfigError(f"header names are text: {name!r} is {type(name).__name__}")
        if isinstance(value, str):
            value = value.encode()
        elif value is not None and not isinstance(value, bytes):
            raise ConfigError(f"header {name!r}: bytes, text or None, not {type(value).__name__}")
        packed.append((name, value))
    return tuple(packed)


class Named(bytes):
    """A message that begins with the name of its schema, which must move to a header."""


def packer_of(kind: type, topic: str, serdes: Mapping[type, Serde], *, is_key: bool) -> tuple[Encode, bool]:
    """Return the encoder of a type for a topic, and whether it returns `Named` bytes."""
    serde = for_keys(serde_of_values(kind, serdes)) if is_key else serde_of_topic(kind, topic, serdes)
    encode = bind_encoder(serde, topic, kind)
    if not (isinstance(serde, SchemaSerde) and serde.writes_header):
        return encode, False

    def named(value: Any) -> bytes | None:
        data = encode(value)
        return None if data is None else Named(data)

    return named, True


def unnamed(key: bytes | None, data: bytes | None, headers: Headers) -> tuple[bytes | None, bytes | None, Headers]:
    """Move the schema names of `Named` bytes to headers."""
    if type(key) is Named:
        at = prefix_size(key)
        key, headers = key[at:], (*headers, (header_name(True), key[:at]))
    if type(data) is Named:
        at = prefix_size(data)
        data, headers = data[at:], (*headers, (header_name(False), data[:at]))
    return key, data, headers
