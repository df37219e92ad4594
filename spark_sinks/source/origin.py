"""The seam between a landing and where its records come from: a log directory, or a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PartitionBounds = dict[int, tuple[int, int]]
"""The first offset and the last stable offset of each partition."""


class Origin(Protocol):
    """One topic, read committed."""

    @property
    def topic(self) -> str: ...

    @property
    def directory(self) -> str | None:
        """The log's directory, where tasks can read it themselves; None for a cluster."""
        ...

    def session_conf(self) -> dict[str, str]:
        """Settings that a session of our own needs for this origin, say the package of Spark's Kafka source."""
        ...

    def check_session(self, spark: SparkSession) -> None:
        """Raise `ConfigError`, with what to do, for a session (the user's own) that cannot read this origin."""
        ...

    def topic_id(self) -> str:
        """Return the id of the topic; empty if it is not known."""
        ...

    def bounds(self) -> PartitionBounds:
        """Return where the topic begins and ends now; empty as long as the topic does not exist.

        Raises `ConfigError` when a library is missing.
        """
        ...

    def topics(self) -> list[str]:
        """Return the names of all topics of the log."""
        ...

    def stream(self, spark: SparkSession, offsets: Mapping[int, int], max_offsets: int) -> DataFrame:
        """Return a stream from ``offsets`` (partitions not named: from the beginning), with Kafka's columns.

        Offsets in its checkpoint are Kafka's JSON.
        """
        ...

    def batch(self, spark: SparkSession, start: Mapping[int, int], end: Mapping[int, int]) -> DataFrame:
        """Return the records between offsets, with Kafka's columns."""
        ...
