"""A topic of a cluster: read by Spark's own Kafka source, and asked about through librdkafka."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eventbus.errors import ConfigError, CoordinatorNotAvailable
from spark_sinks.java.connector import connector, connector_coordinate
from spark_sinks.source.kafka_url import ClusterUrl, parse_cluster_url
from spark_sinks.source.offsets import EARLIEST
from spark_sinks.source.origin import PartitionBounds
from spark_sinks.source.places import batch_options, offsets_option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ANSWER_S = 15.0
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_FIXED = ("subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "maxOffsetsPerTrigger")


class Cluster:
    """Questions to a cluster, through ``confluent-kafka``; any broker that speaks Kafka's protocol answers them."""

    def __init__(self, url: str | ClusterUrl) -> None:
        self.url = parse_cluster_url(url) if isinstance(url, str) else url
        self._opened: Any = None
        self._complaints: list[str] = []

    def topics(self) -> list[str]:
        """Return all topics, internal ones too. Raises `CoordinatorNotAvailable` when no broker answers within 15 s."""
        return sorted(self._metadata().topics)

    def bounds(self, topic: str) -> PartitionBounds:
        """Return the first and the last stable offset of every partition; empty if the topic does not exist."""
        metadata = self._metadata()
        found = metadata.topics.get(topic)
        if found is None or not found.partitions:
            return {}
        # librdkafka 2.16 may crash the process if it has to wait for a leader in list_offsets: its main thread frees
        # the request while the calling thread still uses it.
        waiting = [each for each, partition in found.partitions.items() if partition.leader not in metadata.brokers]
        if waiting:
            raise CoordinatorNotAvailable(
                f"the offsets of {topic}-{waiting[0]} of {self.url.shown()} are not known: it has no leader now. "
                "Start the brokers of its replicas"
            )
        from confluent_kafka.admin._listoffsets import OffsetSpec

        partitions = sorted(found.partitions)
        first = self._offsets(topic, partitions, OffsetSpec.earliest())
        last = self._offsets(topic, partitions, OffsetSpec.latest())
        return {each: (first[each], max(first[each], last[each])) for each in partitions}

    def topic_id(self, topic: str) -> str:
        """Return the id as Kafka's tools print it; empty if the topic does not exist or the broker has no ids."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        try:
            answers: Any = self._client().describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_S)
            id = str(answers[topic].result().topic_id)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return ""
            raise self._silent(error) from error
        return "" if id == _NO_ID else id

    def _offsets(self, topic: str, partitions: list[int], spec: Any) -> dict[int, int]:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        asked = {TopicPartition(topic, each): spec for each in partitions}
        try:
            answers: Any = self._client().list_offsets(
                asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ANSWER_S
            )
            return {where.partition: answer.result().offset for where, answer in answers.items()}
        except KafkaException as error:
            raise self._silent(error) from error

    def _metadata(self) -> Any:
        client = self._client()
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + _ANSWER_S
        while True:
            try:
                return client.list_topics(timeout=1)
            except KafkaException as error:
                client.poll(0)
                if time.monotonic() > deadline or self._refused():
                    raise self._silent(error) from error

    def _client(self) -> Any:
        if self._opened is None:
            if importlib.util.find_spec("confluent_kafka") is None:
                raise ConfigError('kafka:// needs confluent-kafka: pip install "eventbus-log[kafka]"')
            import logging

            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient

            quiet = logging.getLogger("eventbus.spark.librdkafka")
            quiet.propagate = False
            quiet.addHandler(logging.NullHandler())
            settings: dict[str, Any] = {
                **self.url.settings,
                "bootstrap.servers": self.url.bootstrap,
                "error_cb": self._complain,
                "logger": quiet,
            }
            try:
                self._opened = AdminClient(settings)
            except KafkaException as error:
                raise ConfigError(f"a setting of {self.url.shown()} was refused: {error.args[0].str()}") from error
        return self._opened

    def _complain(self, error: Any) -> None:
        self._complaints.append(error.str())

    def _refused(self) -> bool:
        return any(word in text for text in self._complaints for word in ("SASL", "SSL", "ssl", "authentication"))

    def _silent(self, error: Any) -> ConfigError | CoordinatorNotAvailable:
        texts = next(iter(self._complaints), error.args[0].str())
        if self._refused():
            return ConfigError(f"{self.url.shown()} lets nobody in like that: {texts}")
        return CoordinatorNotAvailable(
            f"no broker of {self.url.shown()} has answered within {_ANSWER_S:.0f} s ({texts}): is it running, and is "
            f"the address right?"
        )


class KafkaOrigin:
    """A topic of a cluster, read committed by Spark's Kafka source."""

    def __init__(self, url: str, topic: str, options: Mapping[str, str]) -> None:
        self._cluster = Cluster(url)
        self._topic = topic
        if fixed := [name for name in _FIXED if name.lower() in {given.lower() for given in options}]:
            raise ConfigError(f"{fixed[0]} is set by the landing and cannot be an option of its source")
        isolation = options.get("kafka.isolation.level", "read_committed")
        if isolation != "read_committed":
            raise ConfigError(f"kafka.isolation.level={isolation!r}: what is landed must be committed")
        self._options = {name: value for name, value in options.items() if not name.startswith("kafka.")}
        self._options |= self._cluster.url.for_spark(options) | {"kafka.isolation.level": "read_committed"}

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def directory(self) -> None:
        return None

    def session_conf(self) -> dict[str, str]:
        jars = connector()
        return {"spark.jars": ",".join(map(str, jars))} if jars else {}

    def check_session(self, spark: SparkSession) -> None:
        from pyspark.errors import AnalysisException, PySparkException

        try:
            spark.read.format("kafka").load()
        except AnalysisException as error:
            if "kafka" in str(error) and "Failed to find" in str(error):
                raise ConfigError(
                    f"this session has no Kafka source: start it with --packages {connector_coordinate()} (or "
                    f"spark.jars.packages), or leave the session out, and one with all it needs is started"
                ) from error
        except PySparkException:
            pass  # it is there, and asks for its options

    def topic_id(self) -> str:
        return self._cluster.topic_id(self._topic)

    def bounds(self) -> PartitionBounds:
        return self._cluster.bounds(self._topic)

    def topics(self) -> list[str]:
        return self._cluster.topics()

    def stream(self, spark: SparkSession, offsets: Mapping[int, int], max_offsets: int) -> DataFrame:
        # Spark's Kafka source wants every partition there is named, or none.
        start = {**dict.fromkeys(self.bounds(), EARLIEST), **offsets} if offsets else {}
        options = {
            "minPartitions": str(spark.sparkContext.defaultParallelism),
            **self._options,
            "subscribe": self._topic,
            "startingOffsets": offsets_option(self._topic, start) if start else "earliest",
            "maxOffsetsPerTrigger": str(max_offsets),
        }
        return spark.readStream.format("kafka").options(**options).load()

    def batch(self, spark: SparkSession, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
        options = {**self._options, **batch_options(self._topic, start, end)}
        return spark.read.format("kafka").options(**options).load()
