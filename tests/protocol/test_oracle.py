"""Every API and version of the tables against kio, an independent decoder generated from Kafka's own schemas."""

from __future__ import annotations

import io
import random

import pytest
from kio.index import load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from eventbus.protocol import decode, encode
from eventbus.protocol.schema import blocks, message
from tests.protocol.instances import instance
from tests.protocol.schemas import snake

pytestmark = pytest.mark.system

INSTANCES = 6
APIS = [name for name in blocks() if name.endswith(("Request", "Response"))]


def _kio_name(name: str) -> tuple[str, EntityType]:
    for end, kind in (("Request", EntityType.request), ("Response", EntityType.response)):
        if name.endswith(end):
            return snake(name.removesuffix(end)), kind
    return snake(name), EntityType.data


@pytest.mark.parametrize("name", [*APIS, "ConsumerProtocolSubscription", "ConsumerProtocolAssignment", "EndTxnMarker"])
def test_kio_reads_and_writes_the_same_bytes(name: str) -> None:
    low, high = message(name).versions
    kio_name, kind = _kio_name(name)
    for version in range(low, high + 1):
        schema = load_entity_schema(kio_name, version, kind)
        read, write = entity_reader(schema), entity_writer(schema)
        chance = random.Random(f"{name} {version}")
        for _ in range(INSTANCES):
            ours = instance(name, version, chance, tame=True)
            data = encode(ours, version)
            theirs, size = read(data, 0)
            assert size == len(data)
            buffer = io.BytesIO()
            write(buffer, theirs)
            assert buffer.getvalue() == data
            assert decode(type(ours), version, data) == ours
