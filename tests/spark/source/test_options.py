"""Options of the source, and the arithmetic of offsets: no Spark, no log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.errors import ConfigError, UnknownTopicOrPartition
from eventbus.types import TopicPartition
from spark_sinks.source.offsets import OffsetRange, from_json, limited, parse, split, to_json
from spark_sinks.source.options import KNOWN, log_directory, parse_options


class StubReader:
    """The two calls of a `LogReader` that options need."""

    def topics(self) -> list[str]:
        return ["orders", "orders-old", "payments", "__consumer_offsets"]

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        return {0: (0, 10), 1: (5, 20)}


def selected(tmp_path: Path, **options: str) -> list[str]:
    reader: Any = StubReader()
    bounds = parse_options({"path": str(tmp_path), **options}).bounds(reader)
    return [str(each) for each in bounds]


def test_subscribe_takes_topics_with_commas(tmp_path: Path) -> None:
    assert selected(tmp_path, subscribe="orders, payments") == ["orders-0", "orders-1", "payments-0", "payments-1"]


def test_pattern_matches_whole_names_and_no_internal_topic(tmp_path: Path) -> None:
    assert selected(tmp_path, subscribePattern="orders") == ["orders-0", "orders-1"]
    assert len(selected(tmp_path, subscribePattern=".*")) == 6


def test_assign_takes_partitions(tmp_path: Path) -> None:
    assert selected(tmp_path, assign='{"payments": [1], "orders": [0]}') == ["orders-0", "payments-1"]


def test_names_of_options_are_not_case_sensitive(tmp_path: Path) -> None:
    options = parse_options({"PATH": str(tmp_path), "SUBSCRIBE": "a", "includeheaders": "TRUE"})
    assert options.include_headers


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "exactly one of subscribe, subscribePattern and assign selects the topics; none was given"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "subscribe and assign were given"),
        ({"subscribe": " , "}, "subscribe=' , ' names no topic"),
        ({"subscribePattern": "(a"}, "subscribePattern='\\(a' is not a regular expression"),
        ({"assign": "a:0"}, "assign='a:0' is not understood .*write {\"topic\": \\[0, 1\\]}"),
        ({"assign": "{}"}, "assign='{}' names no partition"),
        (
            {"subscribe": "a", "startingOffset": "earliest"},
            "no option 'startingOffset'; did you mean 'startingOffsets'",
        ),
        (
            {"subscribe": "a", "bootstrap.servers": "x"},
            "no option 'bootstrap.servers'; the options are path, subscribe",
        ),
        ({"subscribe": "a", "startingOffsets": "first"}, "startingOffsets='first' is not 'earliest', 'latest' or JSON"),
        ({"subscribe": "a", "startingOffsets": '{"a": 3}'}, "startingOffsets='{\"a\": 3}' is not understood"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "offset -3 of a-0 is negative"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets='earliest' is not 'latest' or JSON"),
        ({"subscribe": "a", "endingOffsets": '{"a": {"0": -2}}'}, "cannot be an end"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0' is not a whole number above 0"),
        ({"subscribe": "a", "minPartitions": "two"}, "minPartitions='two' is not a whole number above 0"),
        (
            {"subscribe": "a", "startingOffsets": "latest", "startingTimestamp": "5"},
            "startingOffsets and startingTimestamp were given: one of them says where",
        ),
        (
            {"subscribe": "a", "endingTimestamp": "5", "endingOffsetsByTimestamp": "{}"},
            "endingTimestamp and endingOffsetsByTimestamp were given",
        ),
        ({"subscribe": "a", "startingTimestamp": "2024-02-29"}, "startingTimestamp='2024-02-29' is not a time in ms"),
        ({"subscribe": "a", "startingTimestamp": "²"}, "startingTimestamp='²' is not a time in ms"),
        ({"subscribe": "a", "startingTimestamp": "9" * 5000}, "is not a time in ms"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "9" * 5000}, "is not a whole number above 0"),
        ({"subscribe": "a", "maxTriggerDelay": "9" * 5000 + "s"}, "is not a time as in"),
        ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a": 5}'}, 'not understood .*write {"topic": {"0": <ms>}}'),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "first"}, "'first' is not 'error' or 'latest'"),
        ({"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "=9 is above .*Trigger=8"),
        ({"subscribe": "a", "maxTriggerDelay": "soon"}, "maxTriggerDelay='soon' is not a time as in '500ms'"),
        ({"subscribe": "a", "isolation.level": "read_uncommitted"}, "only read_committed is supported"),
        ({"subscribe": "a", "kafka.isolation.level": "read_uncommitted"}, "only read_committed"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "b:9092"}, r"reads a directory; .*format\('kafka'\)"),
        ({"subscribe": "a", "failOnDataLoss": "no"}, "failOnDataLoss='no' is not 'true' or 'false'"),
        ({"subscribe": "a", "path": "/nowhere/at/all"}, "there is no directory /nowhere/at/all"),
        ({"subscribe": "a", "path": "kafka://b:9092"}, "for a Kafka cluster there is Spark's format\\('kafka'\\)"),
        ({"subscribe": "a", "path": "http://b"}, "use file://"),
    ],
)
def test_wrong_options_are_named_with_their_right_form(tmp_path: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_options({"path": str(tmp_path), **options})


def test_claims_name_a_directory_that_is_there(tmp_path: Path) -> None:
    given = {"path": str(tmp_path), "subscribe": "a", "claims": str(tmp_path / "claims")}
    with pytest.raises(ConfigError, match=r"claims=.* is not a directory\. Give the one"):
        parse_options(given)
    assert parse_options({**given, "claims": str(tmp_path)}).claims == str(tmp_path)


def test_path_is_needed() -> None:
    with pytest.raises(ConfigError, match="path is missing"):
        parse_options({"subscribe": "a"})


def test_options_of_the_other_kind_of_query_are_refused(tmp_path: Path) -> None:
    given = {"path": str(tmp_path), "subscribe": "a"}
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(ConfigError, match=rf"{name} is for spark\.read"):
            parse_options({**given, name: EXAMPLES.get(name, "latest")}, stream=True)
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
        with pytest.raises(ConfigError, match=rf"{name} is for spark\.readStream"):
            parse_options({**given, name: "5"}, stream=False)


EXAMPLES = {
    "subscribe": "a",
    "subscribePattern": "a.*",
    "assign": '{"a": [0]}',
    "startingOffsets": "latest",
    "startingTimestamp": "1700000000000",
    "startingOffsetsByTimestamp": '{"a": {"0": 1700000000000}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": "latest",
    "endingTimestamp": "1700000000000",
    "endingOffsetsByTimestamp": '{"a": {"0": 1700000000000}}',
    "maxOffsetsPerTrigger": "5",
    "minOffsetsPerTrigger": "5",
    "maxTriggerDelay": "30s",
    "minPartitions": "5",
    "maxRecordsPerPartition": "5",
    "failOnDataLoss": "false",
    "includeHeaders": "true",
    "claims": ".",
    "isolation.level": "read_committed",
}


def test_every_known_option_is_accepted_somewhere(tmp_path: Path) -> None:
    assert EXAMPLES.keys() | {"path"} == KNOWN.keys()
    for name, text in EXAMPLES.items():
        topics = {} if name in ("subscribe", "subscribePattern", "assign") else {"subscribe": "a"}
        parse_options({"path": str(tmp_path), **topics, name: text})


def test_what_only_a_cluster_needs_does_no_harm(tmp_path: Path) -> None:
    usual = {"path": str(tmp_path), "subscribe": "a"}
    moved = {
        "kafka.security.protocol": "SSL",
        "groupIdPrefix": "g",
        "kafkaConsumer.pollTimeoutMs": "5",
        "fetchOffset.numRetries": "3",
        "kafka.isolation.level": "read_committed",
    }
    assert parse_options({**usual, **moved}) == parse_options(usual)


@pytest.mark.parametrize(
    ("text", "delay_ms"), [("500ms", 500), ("7", 7), ("2 S", 2_000), ("3m", 180_000), ("1d", 86_400_000)]
)
def test_delays_are_written_as_spark_writes_them(tmp_path: Path, text: str, delay_ms: int) -> None:
    options = parse_options({"path": str(tmp_path), "subscribe": "a", "maxTriggerDelay": text})
    assert options.max_trigger_delay_ms == delay_ms


def test_unknown_topic_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=r"no topic 'order' in .*; did you mean 'orders'"):
        selected(tmp_path, subscribe="order")
    with pytest.raises(UnknownTopicOrPartition, match="no partition orders-7"):
        selected(tmp_path, assign='{"orders": [7]}')


def test_file_urls_are_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my data").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in ("my data", "./my data", "file://./my data", "file://./my%20data", f"file://{tmp_path}/my data"):
        assert log_directory(path) == str(tmp_path / "my data")


offsets_of = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3)), st.integers(0, 100_000), min_size=1
)


@pytest.mark.system
@settings(deadline=None)
@given(offsets_of)
def test_json_is_kafkas(offsets: dict[TopicPartition, int]) -> None:
    assert from_json(to_json(offsets)) == offsets


def test_json_by_example() -> None:
    text = '{"t": {"0": 23, "1": -1}}'
    assert parse(text, "startingOffsets") == {TopicPartition("t", 0): 23, TopicPartition("t", 1): -1}
    assert to_json({TopicPartition("t", 10): 2, TopicPartition("t", 9): 1}) == {"t": {"9": 1, "10": 2}}


@pytest.mark.system
@settings(deadline=None)
@given(offsets_of, st.data(), st.integers(1, 50_000))
def test_a_limited_batch_advances_everything_that_waits(
    start: dict[TopicPartition, int], data: st.DataObject, most: int
) -> None:
    end = {each: offset + data.draw(st.integers(0, 60_000)) for each, offset in start.items()}
    cut = limited(start, end, most)
    assert cut.keys() == end.keys()
    for each in end:
        assert start[each] <= cut[each] <= end[each]
        assert (cut[each] > start[each]) == (end[each] > start[each])
    assert sum(cut[each] - start[each] for each in end) <= most + len(end)


@pytest.mark.system
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 300_000)), max_size=5), st.integers(1, 8), st.data())
def test_split_covers_each_range_once(sizes: list[tuple[int, int]], tasks: int, data: st.DataObject) -> None:
    most = data.draw(st.none() | st.integers(1_000, 100_000))
    ranges = [OffsetRange(TopicPartition("t", n), low, low + size) for n, (low, size) in enumerate(sizes)]
    pieces = split(ranges, min_tasks=tasks, max_records=most)
    for each in ranges:
        own = [piece for piece in pieces if piece.topic_partition == each.topic_partition]
        edges = [each.start, *(piece.end for piece in own)]
        assert [piece.start for piece in own] == edges[:-1]
        assert edges[-1] == each.end
    assert all(0 < piece.end - piece.start <= (most or 10**9) for piece in pieces)


def test_split_feeds_both_cores_but_not_with_crumbs() -> None:
    def tasks(size: int, **limits: Any) -> int:
        return len(
            split([OffsetRange(TopicPartition("t", 0), 0, size)], **{"min_tasks": 2, "max_records": None} | limits)
        )

    assert tasks(100_000) == 2
    assert tasks(1_000) == 1
    assert tasks(1_000, max_records=100) == 10
    assert tasks(0) == 0
