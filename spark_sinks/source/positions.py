"""Parse where a read starts or ends (a word, offsets or a time), and resolve it against the current log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

import msgspec

from eventbus.errors import ConfigError, OffsetOutOfRange
from eventbus.types import TopicPartition
from spark_sinks.source.offsets import EARLIEST, LATEST, Bounds, Offsets, parse, resolve

if TYPE_CHECKING:
    from eventbus.log.reader import LogReader

START_OPTIONS = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
END_OPTIONS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STRATEGY = "startingOffsetsByTimestampStrategy"


class Position(msgspec.Struct, frozen=True):
    """``everywhere``: one offset (-2, -1) for all partitions; or ``each``: one per partition. With ``is_time`` they are
    times (ms since the epoch), and stand for the first record at or after them.

    ``or_latest``: a partition without a record at or after the time starts at its end, instead of `OffsetOutOfRange`.
    """

    option: str
    everywhere: int = EARLIEST
    each: Offsets | None = None
    is_time: bool = False
    or_latest: bool = False

    def place(self, bounds: Bounds, reader: LogReader, *, unnamed: int) -> Offsets:
        """Return an offset for every partition in ``bounds``; one that is not named: its beginning (0) or its end (1).

        Raises `ConfigError` for a partition that is named but not there.
        """
        if self.each is None:
            wanted: Mapping[TopicPartition, int] = dict.fromkeys(bounds, self.everywhere)
        else:
            wanted = self.each
            if unknown := sorted(wanted.keys() - bounds.keys()):
                raise ConfigError(f"{self.option} names {unknown[0]}, which is not selected or not there")
        place = self._at_time if self.is_time else _at_offset
        return {
            where: place(where, wanted[where], found, reader) if where in wanted else found[unnamed]
            for where, found in bounds.items()
        }

    def _at_time(self, where: TopicPartition, timestamp_ms: int, bounds: tuple[int, int], reader: LogReader) -> int:
        found = reader.offset_for_timestamp(*where, timestamp_ms)
        if found is not None:
            return found.offset
        if self.or_latest:
            return bounds[1]
        raise OffsetOutOfRange(
            f"{self.option}: {where} has no record at or after {timestamp_ms} ms; set {STRATEGY}=latest to begin at "
            f"its end, or choose an earlier time"
        )


def _at_offset(where: TopicPartition, wanted: int, bounds: tuple[int, int], reader: LogReader) -> int:
    return resolve(wanted, bounds)


def start_position(given: Mapping[str, str]) -> Position:
    """From the options that say where to begin; the earliest offset when there is none. Raises `ConfigError`."""
    option = _only_one(given, START_OPTIONS)
    strategy = given.get(STRATEGY, "error").strip().lower()
    if strategy not in ("error", "latest"):
        refuse(STRATEGY, given[STRATEGY], "'error' or 'latest'")
    if option is None:
        return Position(START_OPTIONS[0])
    if option != "startingOffsets":
        return _time(option, given[option], or_latest=strategy == "latest")
    text = given[option]
    named = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if named is not None:
        return Position(option, named)
    return Position(option, each=_offsets(option, text, "'earliest', 'latest' or JSON"))


def end_position(given: Mapping[str, str]) -> Position:
    """From the options that say where a batch ends; the end of now when there is none. Raises `ConfigError`."""
    option = _only_one(given, END_OPTIONS)
    if option is None:
        return Position(END_OPTIONS[0], LATEST)
    if option != "endingOffsets":
        return _time(option, given[option], or_latest=True)
    text = given[option]
    if text.strip().lower() == "latest":
        return Position(option, LATEST)
    offsets = _offsets(option, text, "'latest' or JSON")
    if EARLIEST in offsets.values():
        raise ConfigError(f"{option}={text!r}: -2 (the earliest offset) cannot be an end; use -1 or an offset")
    return Position(option, each=offsets)


def whole_number(text: str) -> int | None:
    """Return the number that a string of digits stands for; None for other strings, or for more than 18 digits."""
    return int(text) if re.fullmatch(r"\s*[0-9]{1,18}\s*", text) else None


def refuse(option: str, text: str, form: str) -> NoReturn:
    raise ConfigError(f"{option}={text!r} is not {form}")


def _only_one(given: Mapping[str, str], options: tuple[str, ...]) -> str | None:
    found = [option for option in options if option in given]
    if len(found) > 1:
        raise ConfigError(f"{' and '.join(found)} were given: one of them says where")
    return found[0] if found else None


def _offsets(option: str, text: str, form: str) -> Offsets:
    if not text.lstrip().startswith("{"):
        refuse(option, text, form)
    return parse(text, option)


def _time(option: str, text: str, *, or_latest: bool) -> Position:
    if "Offsets" not in option:
        timestamp_ms = whole_number(text)
        if timestamp_ms is None:
            refuse(option, text, "a time in ms since 1970-01-01 UTC")
        return Position(option, timestamp_ms, is_time=True, or_latest=or_latest)
    try:
        value = msgspec.json.decode(text, type=dict[str, dict[int, int]])
    except msgspec.DecodeError as error:
        raise ConfigError(f'{option}={text!r} is not understood ({error}): write {{"topic": {{"0": <ms>}}}}') from error
    times = {TopicPartition(topic, each): ms for topic, partitions in value.items() for each, ms in partitions.items()}
    return Position(option, each=times, is_time=True, or_latest=or_latest)
