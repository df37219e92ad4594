"""Open the source of records that a URL names: a log directory (``file://`` or a path) or a cluster (``kafka://``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from eventbus.errors import ConfigError
from spark_sinks.source.options import log_directory
from spark_sinks.source.origin import Origin, PartitionBounds
from spark_sinks.source.places import batch_options, offsets_option
from spark_sinks.source.topic_reader import TopicReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def open_origin(
    url: str, topic: str, *, fail_on_data_loss: bool = True, options: Mapping[str, str] | None = None
) -> Origin:
    """The origin of one topic. ``options`` are further ones of the Spark source that reads it (``minPartitions``).

    Nothing is asked yet: whether the topic is there is found out by `Origin.bounds`. Raises `ConfigError` for a URL of
    another kind, a directory that is not there, or a setting of a cluster that is not known.
    """
    given = {**(options or {}), "failOnDataLoss": str(fail_on_data_loss).lower()}
    if url.startswith("kafka://"):
        from spark_sinks.source.kafka import KafkaOrigin

        return KafkaOrigin(url, topic, given)
    return FileOrigin(log_directory(url), topic, given)


def topics_of(url: str, topics: str | Sequence[str]) -> list[str]:
    """Return the topics that are meant: names, names separated by commas, or ``/regex/`` over the names that are there.

    A pattern leaves out names that begin with an underscore: those are internal (``_schemas``). Raises `ConfigError`
    when it matches none, or when no topic is named.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    found: dict[str, None] = {}
    for text in names:
        if len(text) > 2 and text[0] == text[-1] == "/":
            found |= dict.fromkeys(_matching(url, text[1:-1]))
        else:
            found |= dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise ConfigError(f"topics={topics!r} names no topic: write 'orders', 'orders,payments' or '/orders.*/'")
    return list(found)


def _matching(url: str, pattern: str) -> list[str]:
    try:
        matches = re.compile(pattern).fullmatch
    except re.error as error:
        raise ConfigError(f"topics=/{pattern}/ is not a regular expression: {error}") from error
    if url.startswith("kafka://"):
        from spark_sinks.source.kafka import Cluster

        there = Cluster(url).topics()
    else:
        there = TopicReader(log_directory(url)).topics()
    there = sorted(name for name in there if not name.startswith("_"))
    found = [name for name in there if matches(name)]
    if not found:
        log = url.partition("?")[0]  # after it come settings, and passwords among them
        raise ConfigError(f"topics=/{pattern}/ matches no topic of {log}; there are {', '.join(there) or 'none'}")
    return found


class FileOrigin:
    """A topic in a directory, read by ``format("eventbus")``."""

    def __init__(self, directory: str, topic: str, options: Mapping[str, str]) -> None:
        self._directory = directory
        self._topic = topic
        self._options = dict(options)

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def directory(self) -> str:
        return self._directory

    def session_conf(self) -> dict[str, str]:
        return {}

    def check_session(self, spark: SparkSession) -> None:
        """Teach the session the source: nothing else is needed."""
        from spark_sinks.source.datasource import register

        register(spark)

    def topic_id(self) -> str:
        return TopicReader(self._directory).topic_id(self._topic)

    def bounds(self) -> PartitionBounds:
        return TopicReader(self._directory).offsets(self._topic)

    def topics(self) -> list[str]:
        return TopicReader(self._directory).topics()

    def stream(self, spark: SparkSession, offsets: Mapping[int, int], max_offsets: int) -> DataFrame:
        options = {**self._options, "path": self._directory, "subscribe": self._topic}
        if offsets:
            options["startingOffsets"] = offsets_option(self._topic, offsets)
        reader = spark.readStream.format("eventbus").options(**options)
        return reader.option("maxOffsetsPerTrigger", str(max_offsets)).load()

    def batch(self, spark: SparkSession, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
        options = {**self._options, "path": self._directory, **batch_options(self._topic, start, end)}
        return spark.read.format("eventbus").options(**options).load()
