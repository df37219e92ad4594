"""Options of the source, and the arithmetic of offsets: no Spark, no log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.errors import ConfigError, UnknownTopicOrPartition
from eventbus.types import TopicPartition
from spark_sinks.landing import table_directory
from spark_sinks.source.offsets import OffsetRange, from_json, limited, parse, split, to_json
from spark_sinks.source.options import KNOWN, log_directory, parse_options


class StubReader:
    """The two calls of a `LogReader` that options need."""

    def topics(self) -> list[str]:
        return ["orders", "orders-old", "payments", "__consumer_offsets"]

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        return {0: (0, 10), 1: (5, 20)}


def selected(tmp_path: Path, **options: str) -> list[str]:
    bounds = parse_options({"path": str(tmp_path), **options}).bounds(StubReader())  # type: ignore[arg-type]
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
        ({"subscribe": "a", "failOnDataLoss": "no"}, "failOnDataLoss='no' is not 'true' or 'false'"),
        ({"subscribe": "a", "path": "/nowhere/at/all"}, "there is no directory /nowhere/at/all"),
        ({"subscribe": "a", "path": "kafka://b:9092"}, "for a Kafka cluster there is Spark's format\\('kafka'\\)"),
        ({"subscribe": "a", "path": "http://b"}, "use file://"),
    ],
)
def test_wrong_options_are_named_with_their_right_form(tmp_path: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_options({"path": str(tmp_path), **options})


def test_path_is_needed() -> None:
    with pytest.raises(ConfigError, match="path is missing"):
        parse_options({"subscribe": "a"})


def test_options_of_the_other_kind_of_query_are_refused(tmp_path: Path) -> None:
    given = {"path": str(tmp_path), "subscribe": "a"}
    with pytest.raises(ConfigError, match=r"endingOffsets is for spark\.read"):
        parse_options({**given, "endingOffsets": "latest"}, stream=True)
    with pytest.raises(ConfigError, match=r"maxOffsetsPerTrigger is for spark\.readStream"):
        parse_options({**given, "maxOffsetsPerTrigger": "5"}, stream=False)


def test_every_known_option_is_accepted_somewhere(tmp_path: Path) -> None:
    values = {"path": str(tmp_path), "startingOffsets": "latest", "endingOffsets": "latest"}
    values |= {name: "5" for name in ("maxOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition")}
    values |= {"failOnDataLoss": "false", "includeHeaders": "true", "subscribe": "a"}
    assert values.keys() | {"subscribePattern", "assign"} == KNOWN.keys()
    parse_options(values)


def test_unknown_topic_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=r"no topic 'order' with records in .*; did you mean 'orders'"):
        selected(tmp_path, subscribe="order")
    with pytest.raises(UnknownTopicOrPartition, match="no partition orders-7"):
        selected(tmp_path, assign='{"orders": [7]}')


def test_file_urls_are_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my data").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in ("my data", "./my data", "file://./my data", "file://./my%20data", f"file://{tmp_path}/my data"):
        assert log_directory(path) == str(tmp_path / "my data")


def test_tables_are_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert table_directory("./warehouse/x") == tmp_path / "warehouse" / "x"
    assert table_directory(f"file://{tmp_path}/x") == tmp_path / "x"
    for other in ("delta:./x", "iceberg:x", "s3://bucket/x", "postgresql://h/db"):
        with pytest.raises(ConfigError, match="tables are local directories"):
            table_directory(other)


offsets_of = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3)), st.integers(0, 100_000), min_size=1
)


@settings(deadline=None)
@given(offsets_of)
def test_json_is_kafkas(offsets: dict[TopicPartition, int]) -> None:
    assert from_json(to_json(offsets)) == offsets


def test_json_by_example() -> None:
    text = '{"t": {"0": 23, "1": -1}}'
    assert parse(text, "startingOffsets") == {TopicPartition("t", 0): 23, TopicPartition("t", 1): -1}
    assert to_json({TopicPartition("t", 10): 2, TopicPartition("t", 9): 1}) == {"t": {"9": 1, "10": 2}}


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
