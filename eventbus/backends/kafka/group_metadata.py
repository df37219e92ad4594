"""The serialised form (version 2) of a consumer's group metadata, which librdkafka's API treats as opaque.

``CGMDv2:``, the generation (int32, little endian), the group, the member id, each ending in a zero byte; a byte that is
1 without a group instance id, else 0 and the id, ending in a zero byte.
"""

from __future__ import annotations

import struct

from eventbus.errors import ConfigError
from eventbus.types import GroupMetadata

_MAGIC = b"CGMDv2:"
_GENERATION = struct.Struct("<i")


def pack_group_metadata(group: GroupMetadata) -> bytes:
    """Encode for `send_offsets_to_transaction`. Raises ConfigError for names that cannot be encoded."""
    names = (group.group, group.member_id, group.group_instance_id or "")
    if any("\0" in name for name in names):
        raise ConfigError(f"{group}: a group, a member id or a group instance id holds no zero byte")
    head = _MAGIC + _GENERATION.pack(group.generation_id) + names[0].encode() + b"\0" + names[1].encode() + b"\0"
    return head + (b"\1" if group.group_instance_id is None else b"\0" + names[2].encode() + b"\0")


def read_group_metadata(data: bytes) -> GroupMetadata:
    """Decode. Raises ValueError for other bytes."""
    if not data.startswith(_MAGIC):
        raise ValueError(f"{data[:8]!r} is not group metadata of a version known here")
    (generation_id,) = _GENERATION.unpack_from(data, len(_MAGIC))
    group, member_id, rest = data[len(_MAGIC) + _GENERATION.size :].split(b"\0", 2)
    instance_id = None if rest[:1] == b"\1" else rest[1:].rstrip(b"\0").decode()
    return GroupMetadata(group.decode(), generation_id, member_id.decode(), instance_id)
