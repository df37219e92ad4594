"""A file's lines become records, and records lines, whatever becomes of the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from eventbus import EventBus
from eventbus.connect import Connectors
from eventbus.connect.file_source import FileStreamSource
from eventbus.errors import RecordTooLarge
from tests.connect.conftest import Notes, Opened, all_values

pytestmark = pytest.mark.system


class Lines:
    """A file that is followed."""

    def __init__(self, path: Path, opened: Opened, **settings: Any) -> None:
        self.path = path
        self._opened = opened
        self._settings = {"file": str(path), "topic": "t", **settings}
        self._offsets: dict[str, Any] = {}
        self.source: Any = opened(FileStreamSource, self._settings)

    def come(self) -> list[str]:
        """All that there is now."""
        found: list[str] = []
        while records := self.source.poll():
            found += [record.value for record in records]
            self._offsets = {f'{{"filename":"{self.path}"}}': records[-1].offset}
        return found

    def restart(self) -> None:
        self.source.stop()
        self.source = self._opened(FileStreamSource, self._settings, self._offsets)

    def add(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)


@pytest.fixture
def lines(tmp_path: Path, opened: Opened) -> Lines:
    return Lines(tmp_path / "a.txt", opened)


def test_what_is_added_comes_and_a_line_waits_for_its_end(lines: Lines) -> None:
    lines.add("one\r\n\ntwo\nthr")
    assert lines.come() == ["one", "", "two"]
    assert lines.come() == []
    lines.add("ee\n")
    assert lines.come() == ["three"]


def test_it_goes_on_where_it_was(lines: Lines) -> None:
    lines.add("one\ntwo\nthr")
    assert lines.come() == ["one", "two"]
    lines.restart()
    lines.add("ee\nfour\n")
    assert lines.come() == ["three", "four"]


def test_a_file_that_is_not_there_is_waited_for_and_said_once(lines: Lines, notes: Notes) -> None:
    assert lines.come() == lines.come() == []
    assert [note for note in notes if "is waited for" in note] == notes and len(notes) == 1
    lines.add("one\n")
    assert lines.come() == ["one"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_that_is_cut_short_is_read_anew(lines: Lines, notes: Notes, restart: bool) -> None:
    lines.add("one\ntwo\n")
    assert lines.come() == ["one", "two"]
    lines.path.write_text("1\n")
    if restart:
        lines.restart()
    assert lines.come() == ["1"]
    assert notes.has("is shorter than it was (2 bytes, 8 were read)")


@pytest.mark.parametrize("restart", [False, True])
def test_another_content_of_the_same_length_or_more_is_read_anew(lines: Lines, notes: Notes, restart: bool) -> None:
    lines.add("one\ntwo\n")
    assert lines.come() == ["one", "two"]
    lines.path.write_text("eins\nzwei\ndrei\n")
    if restart:
        lines.restart()
    assert lines.come() == ["eins", "zwei", "drei"]
    assert notes.has("is another one")


def test_of_a_rotated_file_the_rest_comes_first(lines: Lines) -> None:
    lines.add("one\n")
    assert lines.come() == ["one"]
    lines.add("two\nlast, without an end")
    lines.path.rename(lines.path.with_suffix(".1"))
    assert lines.come() == ["two"], "the new one is not there yet, and the old one may grow"
    lines.add("new\n")
    assert lines.come() == ["last, without an end", "new"]


def test_an_editor_that_writes_the_file_anew_repeats_nothing(lines: Lines) -> None:
    lines.add("one\ntwo\nthr")
    assert lines.come() == ["one", "two"]
    other = lines.path.with_suffix(".swp")
    other.write_text("one\ntwo\nthree\n")
    other.rename(lines.path)
    assert lines.come() == ["three"]


def test_batches_are_as_large_as_they_may_be(tmp_path: Path, opened: Opened) -> None:
    lines = Lines(tmp_path / "a.txt", opened, **{"batch.size": "3"})
    lines.add("".join(f"{number}\n" for number in range(7)))
    assert [len(lines.source.poll()) for _ in range(4)] == [3, 3, 1, 0]


def test_a_line_without_an_end_is_no_reason_to_take_all_memory(tmp_path: Path, opened: Opened) -> None:
    lines = Lines(tmp_path / "a.txt", opened, **{"line.max.bytes": "1000"})
    lines.add("one\n" + "x" * 2_000 + "\n")
    assert [record.value for record in lines.source.poll()] == ["one"]
    with pytest.raises(RecordTooLarge, match=r"the line at byte 4 is longer than line.max.bytes=1,000"):
        lines.source.poll()
    lines.path.write_bytes(b"y" * 1_000_000)
    lines.restart()
    with pytest.raises(RecordTooLarge, match="the line at byte 0"):
        lines.source.poll()


def test_bytes_that_are_no_text_stay_what_they_are(lines: Lines) -> None:
    lines.path.write_bytes(b"gr\xfcn\n")
    [text] = lines.come()
    assert text.encode("utf-8", "surrogateescape") == b"gr\xfcn"


def test_without_a_file_it_reads_standard_input(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    readable, writable = os.pipe()
    with os.fdopen(readable) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        source = opened(FileStreamSource, {"topic": "t"})
        assert source.poll() == []
        os.write(writable, b"one\ntw")
        assert [record.value for record in source.poll()] == ["one"]
        os.close(writable)
        assert [(record.value, record.offset) for record in source.poll()] == [("tw", {})], "it can not be read again"
        assert source.poll() == []


# to a topic, and to another file --------------------------------------------------------------------------------------

STRINGS = {"value.converter": "StringConverter"}


def connectors(folder: Path, notes: Notes, **sink: str) -> Connectors:
    source = {"name": "in", "connector.class": "FileStreamSource", "file": str(folder / "in.txt"), "topic": "lines"}
    out = {"name": "out", "connector.class": "FileStreamSink", "file": str(folder / "out.txt"), "topics": "lines"}
    return Connectors(source, {**out, **sink}, worker=STRINGS, note=notes.append)


async def test_file_to_topic_to_file(make_bus: Callable[[], EventBus], tmp_path: Path, notes: Notes) -> None:
    into, out = tmp_path / "in.txt", tmp_path / "out.txt"
    into.write_text("one\ntwo\n")
    bus = make_bus()
    bus.include(connectors(tmp_path, notes))
    async with bus:
        await bus.drain()
        assert out.read_text() == "one\ntwo\n"
        assert await all_values(bus, "lines") == ["one", "two"]
        with into.open("a") as file:
            file.write("three\n")
        await bus.drain()
        assert out.read_text() == "one\ntwo\nthree\n"
        counts = [one for one in bus.metrics().parts if one.name == "eventbus_connect_records_total"]
        assert {one.labels["connector"]: one.value for one in counts} == {"in": 3, "out": 3}
    assert notes == ["out: topic 'lines' created"] or notes == ["in: topic 'lines' created"]


def test_file_to_topic_to_file_under_trio(make_bus: Callable[[], EventBus], tmp_path: Path, notes: Notes) -> None:
    into, out = tmp_path / "in.txt", tmp_path / "out.txt"
    into.write_text("".join(f"{number}\n" for number in range(5_000)))

    async def main() -> None:
        bus = make_bus()
        bus.include(part := connectors(tmp_path, notes))
        async with bus:
            await bus.drain()
            with into.open("a") as file:
                file.write("three\n")
            await bus.drain()
            assert len(await all_values(bus, "lines")) == 5_001
        assert [run.state for run in part.runs] == ["stopped", "stopped"]

    anyio.run(main, backend="trio")
    assert out.read_text() == into.read_text()


async def test_what_is_behind_the_last_commit_is_taken_back(tmp_path: Path, notes: Notes) -> None:
    out = tmp_path / "out.txt"
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    url = f"file://{tmp_path / 'log'}"
    for _ in range(2):
        bus = EventBus(url)
        bus.include(connectors(tmp_path, notes))
        async with bus:
            await bus.drain()
        assert out.read_text() == "one\ntwo\n"
        with out.open("a") as file:
            file.write("tw")  # as a crash leaves it
    assert notes.has("2 byte(s) after the last commit")


async def test_the_file_knows_better_than_the_group(tmp_path: Path, notes: Notes) -> None:
    """It dies between making the file durable and the commit."""
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    url = f"file://{tmp_path / 'log'}"
    for _ in range(2):
        bus = EventBus(url)
        bus.include(connectors(tmp_path, notes))
        async with bus:
            await bus.drain()
        async with EventBus(url) as bus:
            await bus.admin.delete_group("connect-out")
    assert (tmp_path / "out.txt").read_text() == "one\ntwo\n"


async def test_a_file_that_was_there_is_added_to(tmp_path: Path, notes: Notes) -> None:
    (tmp_path / "in.txt").write_text("one\n")
    (tmp_path / "out.txt").write_text("before\n")
    bus = EventBus("memory://")
    bus.include(connectors(tmp_path, notes))
    async with bus:
        await bus.drain()
    assert (tmp_path / "out.txt").read_text() == "before\none\n"


async def test_two_sinks_do_not_share_a_file(tmp_path: Path, notes: Notes) -> None:
    sink = {"connector.class": "FileStreamSink", "file": str(tmp_path / "out.txt"), "topics": "lines"}
    part = Connectors({**sink, "name": "one"}, {**sink, "name": "two"}, note=notes.append)
    bus = EventBus("memory://")
    bus.include(part)
    async with bus:
        await bus.drain()
    assert sorted(run.state for run in part.runs) == ["failed", "stopped"]
    assert notes.has("another sink writes to it")


async def test_what_another_wrote_as_offsets_is_refused(tmp_path: Path, notes: Notes) -> None:
    (tmp_path / "out.txt.offsets").write_text("{}")
    (tmp_path / "in.txt").write_text("one\n")
    bus = EventBus("memory://")
    bus.include(connectors(tmp_path, notes))
    async with bus:
        await bus.drain()
    assert notes.has("is not what this sink has written")


async def test_a_sink_does_not_append_another_topic_of_the_same_name(tmp_path: Path, notes: Notes) -> None:
    out = tmp_path / "out.txt"
    sink = {"name": "out", "connector.class": "FileStreamSink", "file": str(out), "topics": "lines"}

    async def land() -> None:
        bus = EventBus(f"file://{tmp_path}/log")
        bus.include(Connectors(sink, worker=STRINGS, note=notes.append))
        async with bus:
            await bus.drain()

    for names in (["old-0", "old-1"], ["new-0", "new-1", "new-2"]):
        async with EventBus(f"file://{tmp_path}/log") as bus:
            if "lines" in await bus.admin.list_topics():
                await bus.admin.delete_topics(["lines"])
            await bus.admin.create_topic("lines")
            await bus.send_many("lines", names)
        await land()
    assert out.read_text() == "old-0\nold-1\n"
    assert notes.has(f"{out} holds the records of another topic 'lines'")
    Path(f"{out}.offsets").unlink()
    await land()
    assert out.read_text() == "old-0\nold-1\nnew-0\nnew-1\nnew-2\n"


async def test_topics_by_a_pattern(tmp_path: Path, notes: Notes) -> None:
    bus = EventBus("memory://")
    bus.topic("orders-de")
    bus.topic("invoices")
    out = {"name": "out", "connector.class": "FileStreamSink", "file": str(tmp_path / "out.txt")}
    bus.include(Connectors({**out, "topics.regex": "orders-.*"}, worker=STRINGS, note=notes.append))
    async with bus:
        await bus.send("orders-de", "here")
        await bus.send("invoices", "not here")
        await bus.drain()
    assert (tmp_path / "out.txt").read_text() == "here\n"
