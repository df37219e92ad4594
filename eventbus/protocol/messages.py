"""The messages of Kafka's protocol, and the records of its own topics: a class each, made when it is first named.

Their types stand in ``messages.pyi``, which ``tests/protocol/stubs.py`` writes from the tables.
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
