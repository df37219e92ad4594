"""Records of ``__transaction_state`` against another implementation: kafka-python's codec, given Kafka's schema.

The schema is TransactionLogValue.json of Apache Kafka 4.1, retold: kafka-python brings the codec, but not this record.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.coordinator.transaction_codec import (
    TransactionMetadata,
    decode_transaction_value,
    encode_transaction_value,
)
from eventbus.coordinator.transaction_states import STORED_STATES
from eventbus.types import TopicPartition

pytestmark = pytest.mark.system

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.data_container import DataContainer
    from kafka.protocol.schemas import StructField


def field(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "versions": "0+", **more}


def tagged(name: str, kind: str, tag: int, default: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "versions": "1+", "taggedVersions": "1+", "tag": tag, "default": default}


def schema() -> Any:
    partitions = [field("Topic", "string"), field("PartitionIds", "[]int32")]
    fields = [
        field("ProducerId", "int64"),
        tagged("PreviousProducerId", "int64", 0, "-1"),
        tagged("NextProducerId", "int64", 1, "-1"),
        field("ProducerEpoch", "int16"),
        field("TransactionTimeoutMs", "int32"),
        field("TransactionStatus", "int8"),
        field("TransactionPartitions", "[]PartitionsSchema", nullableVersions="0+", fields=partitions),
        field("TransactionLastUpdateTimestampMs", "int64"),
        field("TransactionStartTimestampMs", "int64"),
        tagged("ClientTransactionVersion", "int16", 2, "0"),
    ]
    value = StructField(
        {
            "type": "data",
            "name": "TransactionLogValue",
            "validVersions": "0-1",
            "flexibleVersions": "1+",
            "fields": fields,
        }
    )
    value.set_data_class(type("TransactionLogValue", (DataContainer,), {"_struct": value}))
    return value


VALUE = schema()

ids = st.one_of(st.just(-1), st.integers(0, 2**63 - 1))
values = st.builds(
    TransactionMetadata,
    st.integers(0, 2**63 - 1),
    st.integers(0, 32_767),
    st.integers(1, 2**31 - 1),
    st.sampled_from(STORED_STATES),
    st.frozensets(st.builds(TopicPartition, st.sampled_from(["a", "b", "ü" * 100]), st.integers(0, 2**31 - 1))),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    ids,
    ids,
    st.booleans(),
)


@settings(deadline=None)
@given(values)
def test_another_decoder_reads_what_is_written(value: TransactionMetadata) -> None:
    data = encode_transaction_value(value)
    version = int.from_bytes(data[:2], "big")
    told = VALUE.decode(io.BytesIO(data[2:]), version=version, compact=version >= 1, tagged=version >= 1)
    partitions = {
        TopicPartition(topic.topic, number)
        for topic in told.transaction_partitions or ()
        for number in topic.partition_ids
    }
    assert partitions == value.partitions
    assert (told.transaction_partitions is None) == (value.state is STORED_STATES[0] and not value.partitions)
    assert told.producer_id == value.producer_id
    assert told.producer_epoch == value.producer_epoch
    assert told.transaction_timeout_ms == value.timeout_ms
    assert told.transaction_status == value.state
    assert told.transaction_last_update_timestamp_ms == value.last_update_ms
    assert told.transaction_start_timestamp_ms == value.start_ms
    assert told.previous_producer_id == value.previous_producer_id
    assert told.next_producer_id == value.next_producer_id
    assert told.client_transaction_version == (2 if value.is_bumped else 0)


@settings(deadline=None)
@given(values, st.sampled_from([0, 1]))
def test_what_another_encoder_writes_is_read(value: TransactionMetadata, version: int) -> None:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(value.partitions):
        topics.setdefault(topic, []).append(number)
    partition = VALUE.fields["transaction_partitions"].data_class
    told = VALUE.data_class(
        version=version,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        transaction_timeout_ms=value.timeout_ms,
        transaction_status=int(value.state),
        transaction_partitions=[
            partition(version=version, topic=topic, partition_ids=numbers) for topic, numbers in topics.items()
        ]
        or None,
        transaction_last_update_timestamp_ms=value.last_update_ms,
        transaction_start_timestamp_ms=value.start_ms,
        **(
            {
                "previous_producer_id": value.previous_producer_id,
                "next_producer_id": value.next_producer_id,
                "client_transaction_version": 2 if value.is_bumped else 0,
            }
            if version
            else {}
        ),
    )
    data = VALUE.encode(told, version=version, compact=version >= 1, tagged=version >= 1)
    found = decode_transaction_value(version.to_bytes(2, "big") + data)
    if not version:
        plain = TransactionMetadata(
            value.producer_id,
            value.producer_epoch,
            value.timeout_ms,
            value.state,
            value.partitions,
            value.last_update_ms,
            value.start_ms,
        )
        assert found == plain
    else:
        assert found == value
