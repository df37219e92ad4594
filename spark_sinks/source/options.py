"""The options of ``format("eventbus")``: those of Spark's Kafka source, checked before anything starts."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from eventbus.durations import read_duration
from eventbus.errors import ConfigError, UnknownTopicOrPartition
from eventbus.log.reader import LogReader
from eventbus.types import TopicPartition
from spark_sinks.source.offsets import LATEST, Bounds, Offsets
from spark_sinks.source.positions import END_OPTIONS, Position, end_position, refuse, start_position, whole_number

KNOWN = {
    "path": "directory or file:// URL of the log",
    "subscribe": "topics, separated by commas",
    "subscribePattern": "regular expression over topic names",
    "assign": 'partitions, {"topic": [0, 1]}',
    "startingOffsets": "earliest (the default), latest, or JSON",
    "startingTimestamp": "the first records at or after a time, ms since 1970-01-01 UTC",
    "startingOffsetsByTimestamp": 'the same by partition, {"topic": {"0": 1700000000000}}',
    "startingOffsetsByTimestampStrategy": "no record so late: error (the default), or latest",
    "endingOffsets": "latest (the default) or JSON; batch only",
    "endingTimestamp": "before the first records at or after a time; batch only",
    "endingOffsetsByTimestamp": "the same by partition; batch only",
    "maxOffsetsPerTrigger": "records per micro-batch; streams only",
    "minOffsetsPerTrigger": "wait for so many records before a micro-batch; streams only",
    "maxTriggerDelay": "but no longer than this, 15m by default; streams only",
    "minPartitions": "tasks to aim at; the number of cores by default",
    "maxRecordsPerPartition": "records per task",
    "failOnDataLoss": "true (the default): missing offsets stop the query; false: they are skipped",
    "includeHeaders": "true adds the column headers; false by default",
    "claims": "the directory of a claim check: values that are in it in place of their names",
    "isolation.level": "read_committed: there is no other",
}
_SPELLING = {name.lower(): name for name in KNOWN} | {"kafka.isolation.level": "isolation.level"}
_STREAM_ONLY = frozenset({"maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"})
_BATCH_ONLY = frozenset(END_OPTIONS)
_OF_CLUSTERS = ("kafka.", "kafkaconsumer.", "fetchoffset.", "groupidprefix")
"""Options of Spark's Kafka source that say how to talk to a cluster: of no use here, and no harm."""


class SourceOptions(msgspec.Struct, frozen=True):
    """The options of ``format("eventbus")``, parsed and checked."""

    directory: str
    subscribe: tuple[str, ...] = ()
    pattern: str | None = None
    assign: tuple[TopicPartition, ...] = ()
    starting: Position = Position("startingOffsets")
    ending: Position = Position("endingOffsets", LATEST)
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    claims: str = ""

    def bounds(self, reader: LogReader) -> Bounds:
        """Return the first offset and the end offset of each selected partition.

        Raises `UnknownTopicOrPartition`, with the nearest name, for a topic or partition that is named but not there.
        """
        topics = reader.topics()
        if self.assign:
            wanted = {each.topic for each in self.assign}
        elif self.pattern is not None:
            wanted = {each for each in topics if re.fullmatch(self.pattern, each) and not each.startswith("__")}
        else:
            wanted = set(self.subscribe)
        if missing := sorted(wanted - set(topics)):
            raise unknown_topic(missing[0], topics, self.directory)
        found = {
            TopicPartition(topic, partition): bounds
            for topic in sorted(wanted)
            for partition, bounds in reader.offsets(topic).items()
        }
        if not self.assign:
            return found
        if absent := [each for each in self.assign if each not in found]:
            raise UnknownTopicOrPartition(f"assign: there is no partition {absent[0]} in {self.directory}")
        return {each: found[each] for each in self.assign}

    def start(self, bounds: Bounds, reader: LogReader) -> Offsets:
        """Return the start of each partition: the first offset, unless ``startingOffsets`` names the partition."""
        return self.starting.place(bounds, reader, unnamed=0)

    def end(self, bounds: Bounds, reader: LogReader) -> Offsets:
        """Return the end of each partition for a batch: the log's end, unless ``endingOffsets`` names the partition."""
        return self.ending.place(bounds, reader, unnamed=1)


def parse_options(options: Mapping[str, str], *, stream: bool | None = None) -> SourceOptions:
    """Check and parse. ``stream`` says which kind of reader asks; None when that is not known yet.

    Raises `ConfigError` naming the option, the right spelling and the form of its value.
    """
    given = _spelled(options, stream)
    if "path" not in given:
        raise ConfigError('path is missing: .option("path", "./data") or .load("./data") names the log\'s directory')
    selected = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(selected) != 1:
        told = "none was given" if not selected else f"{' and '.join(selected)} were given"
        raise ConfigError(f"exactly one of subscribe, subscribePattern and assign selects the topics; {told}")
    most, least = _positive(given, "maxOffsetsPerTrigger"), _positive(given, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}")
    return SourceOptions(
        directory=log_directory(given["path"]),
        subscribe=_topics(given["subscribe"]) if "subscribe" in given else (),
        pattern=_pattern(given.get("subscribePattern")),
        assign=_assigned(given["assign"]) if "assign" in given else (),
        starting=start_position(given),
        ending=end_position(given),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_ms(given.get("maxTriggerDelay", "15m"), "maxTriggerDelay"),
        min_partitions=_positive(given, "minPartitions") or os.cpu_count() or 1,
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        include_headers=_flag(given, "includeHeaders", False),
        claims=_directory(given.get("claims")),
    )


def _directory(path: str | None) -> str:
    if path is None:
        return ""
    directory = Path(path).expanduser().absolute()
    if not directory.is_dir():
        raise ConfigError(
            f"claims={path!r} is not a directory. Give the one that the application's Directory(...) has."
        )
    return str(directory)


_INSTEAD = {
    "kafka": "for a Kafka cluster there is Spark's format('kafka')",
    "memory": "this one is in its own process alone, where `land` makes a copy of it; use file:// for other jobs",
}


def unknown_topic(topic: str, there: Sequence[str], where: str) -> UnknownTopicOrPartition:
    """Return the error for a topic that is not there, with the nearest name."""
    there = [name for name in there if not name.startswith("__")]
    near = difflib.get_close_matches(topic, there, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"topics there: {', '.join(there) or 'none'}"
    return UnknownTopicOrPartition(f"there is no topic {topic!r} in {where}; {hint}")


def log_directory(path: str) -> str:
    """Return the directory a path or ``file://`` URL names, made absolute."""
    if "://" in path:
        parts = urlsplit(path)
        if parts.scheme != "file":
            near = difflib.get_close_matches(parts.scheme, ("file", *_INSTEAD), 1)
            advice = _INSTEAD.get(parts.scheme) or (f"did you mean {near[0]}://?" if near else "use file://")
            raise ConfigError(f"path={path!r}: Spark reads the log from a directory; {advice}")
        path = unquote(parts.netloc + parts.path)
    directory = Path(path).expanduser().absolute()
    if not directory.is_dir():
        raise ConfigError(f"path={path!r}: there is no directory {directory}")
    return str(directory)


def _spelled(options: Mapping[str, str], stream: bool | None) -> dict[str, str]:
    given: dict[str, str] = {}
    for key, value in options.items():
        name = _SPELLING.get(key.lower())
        if name is None and key.lower() == "kafka.bootstrap.servers":
            raise ConfigError("kafka.bootstrap.servers: this reads a directory; for a cluster there is format('kafka')")
        if name is None and key.lower().startswith(_OF_CLUSTERS):
            continue
        if name is None:
            near = difflib.get_close_matches(key.lower(), _SPELLING, 1)
            hint = f"did you mean {_SPELLING[near[0]]!r}?" if near else f"the options are {', '.join(KNOWN)}"
            raise ConfigError(f"format('eventbus') has no option {key!r}; {hint}")
        given[name] = value
    if stream and (wrong := _BATCH_ONLY & given.keys()):
        raise ConfigError(f"{min(wrong)} is for spark.read; a stream ends by its trigger (availableNow)")
    if stream is False and (wrong := _STREAM_ONLY & given.keys()):
        raise ConfigError(f"{min(wrong)} is for spark.readStream; limit a batch with endingOffsets")
    if given.get("isolation.level", "read_committed").strip().lower() != "read_committed":
        raise ConfigError(
            f"isolation.level={given['isolation.level']!r}: only read_committed is supported, because readers of a "
            f"directory see committed records only"
        )
    return given


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(name for name in (part.strip() for part in text.split(",")) if name)
    if not topics:
        raise ConfigError(f"subscribe={text!r} names no topic: write subscribe='orders' or 'orders,payments'")
    return topics


def _pattern(text: str | None) -> str | None:
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern={text!r} is not a regular expression: {error}") from error
    return text


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    try:
        value = msgspec.json.decode(text, type=dict[str, list[int]])
    except msgspec.DecodeError as error:
        raise ConfigError(f'assign={text!r} is not understood ({error}): write {{"topic": [0, 1]}}') from error
    pairs = tuple(sorted(TopicPartition(topic, each) for topic, parts in value.items() for each in set(parts)))
    if not pairs:
        raise ConfigError(f'assign={text!r} names no partition: write {{"topic": [0, 1]}}')
    return pairs


def _positive(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option)
    if text is None:
        return None
    return whole_number(text) or refuse(option, text, "a whole number above 0")


def _flag(given: Mapping[str, str], option: str, default: bool) -> bool:
    if option not in given:
        return default
    value = {"true": True, "false": False}.get(given[option].strip().lower())
    return refuse(option, given[option], "'true' or 'false'") if value is None else value


def _duration_ms(text: str, option: str) -> int:
    given = re.sub(r"(?<=[0-9])\s+(?=[a-z])", "", text.strip().lower())
    found = read_duration(f"{given}ms" if given.isdecimal() else given)
    return refuse(option, text, "a time as in '500ms', '30s' or '15m'") if found is None else round(found)
