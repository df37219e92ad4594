"""Format a topic's offsets as options of a source: `format("eventbus")` and Spark's Kafka source share the form."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from eventbus.types import TopicPartition
from spark_sinks.source.offsets import EARLIEST, to_json


def batch_options(topic: str, start: Mapping[int, int], end: Mapping[int, int]) -> dict[str, str]:
    """Return the options of a batch over the partitions in ``end``, for Spark's Kafka source too."""
    return {
        "assign": msgspec.json.encode({topic: sorted(end)}).decode(),
        "startingOffsets": offsets_option(topic, {each: start.get(each, EARLIEST) for each in end}),
        "endingOffsets": offsets_option(topic, end),
    }


def offsets_option(topic: str, offsets: Mapping[int, int]) -> str:
    """Offsets by partition as the JSON of an option."""
    places = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
    return msgspec.json.encode(to_json(places)).decode()
