"""The messages of Kafka's protocol and the records of its internal topics: a class for each, made on first use.

Their types are in ``messages.pyi``, which ``tests/protocol/stubs.py`` generates from the tables.
"""

from __future__ import annotations

import msgspec

from eventbus.protocol.structs import struct_class


def __getattr__(name: str) -> type[msgspec.Struct]:
    try:
        made = struct_class(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no message {name!r}: the tables do not have it") from None
    globals()[name] = made
    return made
