"""``eventbus dlq list``: what went wrong, and how often; or the single letters."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from dlq.cli.choosing import NOTHING_CHOSEN, UNDONE, add_letters, chooses, open_letters, selection_of, topics_of
from dlq.cli.letter_json import letter_as_json
from dlq.selection import Selection, looks_dead
from eventbus.backends.masking import shown_url
from eventbus.cli.output import Output, first_line, key_text
from eventbus.cli.parser import Subcommands
from eventbus.format import format_age, format_count, format_duration

if TYPE_CHECKING:
    from dlq.dead_letters import Case, DeadLetters, DeadLetterTopic
    from dlq.letters import DeadLetter

_MOST_LETTERS = 50
_MOST_OF_KEY = 16
"""The most characters of a key that the table of letters shows."""
_DONE = ("resolved", "redriven", "edited")
"""States of letters that need no more work."""
_EPILOG = """\
  eventbus dlq list                             what fails, how often, since when
  eventbus dlq list dlq.billing --since 1h
  eventbus dlq list --error ValueError --letters
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser(
        "list",
        help="failures, grouped into cases; or the single letters",
        description="Dead letters with the same handler, error class and place in the code form a case.",
        epilog=_EPILOG,
    )
    add_letters(parser, UNDONE)
    parser.add_argument("--letters", "-l", action="store_true", help="the single letters, not their cases")
    parser.set_defaults(run=list_letters)


async def list_letters(args: argparse.Namespace) -> None:
    selection, out = selection_of(args), Output.of(args)
    async with open_letters(args, topics=topics_of(selection)) as (letters, bus):
        if args.letters:
            await _show_letters(letters, selection, out)
            return
        # All of a case is counted, also what is dealt with.
        counted = msgspec.structs.replace(
            selection, limit=None, status=None if args.status is None else selection.status
        )
        cases = await letters.groups(selection=counted)
        shown = [case for case in cases if args.status is not None or _undone(case)]
        if out.json:
            out.data([case_as_json(case) for case in shown[: selection.limit]])
        elif shown:
            show_cases(shown[: selection.limit], out)
            _say_more(len(shown[: selection.limit]), shown, cases, out)
        else:
            _show_topics(await letters.topics(), selection, len(cases), bus.url, out)
        await note_waiting(letters, selection.topic, selection.group, out)


# cases ----------------------------------------------------------------------------------------------------------------


def _undone(case: Case) -> int:
    return sum(case.statuses.get(status, 0) for status in UNDONE)


def done_of(statuses: dict[str, int]) -> int:
    return sum(statuses.get(status, 0) for status in _DONE)


def case_as_json(case: Case) -> dict[str, Any]:
    fields = {name: getattr(case, name) for name in case.__struct_fields__ if name != "sample_ids"}
    return fields | {"samples": case.sample_ids}


def show_cases(cases: Sequence[Case], out: Output) -> None:
    """The grouped view, a table for each topic."""
    now_ms = round(time.time() * 1000)
    columns = _columns(cases, now_ms, wide=not out.rich)
    by_topic = groupby(sorted(cases, key=lambda case: case.topic), lambda case: case.topic)
    for number, (topic, group) in enumerate(by_topic):
        if number:
            out.line()
        out.table([*columns], [[read(case) for read in columns.values()] for case in group], title=topic)


def _columns(cases: Sequence[Case], now_ms: int, *, wide: bool) -> dict[str, Callable[[Case], Any]]:
    """Into a pipe all there are. On a terminal no amounts that are 0 throughout, and the names in one that can wrap."""
    names: dict[str, Callable[[Case], Any]] = {
        "handler": lambda case: case.handler,
        "error": lambda case: case.error_class,
        "top frame": lambda case: case.top_frame,
    }
    amounts: dict[str, Callable[[Case], Any]] = {
        "open": lambda case: case.statuses.get("open", 0),
        "parked": lambda case: case.statuses.get("parked", 0),
        "done": lambda case: done_of(case.statuses),
    }
    if not wide:
        amounts = {name: read for name, read in amounts.items() if name == "open" or any(map(read, cases))}
    return {
        "case": lambda case: case.case,
        **(names if wide else {}),
        **({"count": lambda case: case.count} if wide else {}),
        **amounts,
        "oldest": lambda case: format_age(case.first_ms, now_ms),
        "newest": lambda case: format_age(case.last_ms, now_ms),
        **({} if wide else {"what": what_of}),
    }


def what_of(case: Case | DeadLetter) -> str:
    """``bill: ValueError at pricing.py:total:42``."""
    error = case.error_class.rpartition(".")[2] or "an unknown error"
    place = f" at {case.top_frame}" if case.top_frame else ""
    return f"{case.handler or case.group or 'unknown handler'}: {error}{place}"


def _say_more(count: int, shown: Sequence[Case], cases: Sequence[Case], out: Output) -> None:
    if count < len(shown):
        out.note(f"{format_count(len(shown) - count, 'more case')}: --limit {len(shown)}")
    if len(shown) < len(cases):
        out.note(f"{format_count(len(cases) - len(shown), 'more case')}, all dealt with: --status all")
    first = shown[0]
    where = "" if looks_dead(first.topic) else f"{first.topic} "  # whose name does not tell, it is said each time
    out.note(f"one of them: eventbus dlq show {where + first.case if first.case else first.sample_ids[0]}")


# letters --------------------------------------------------------------------------------------------------------------


async def _show_letters(letters: DeadLetters, selection: Selection, out: Output) -> None:
    most = selection.limit or _MOST_LETTERS
    found = [one async for one in letters.letters(msgspec.structs.replace(selection, limit=most + 1))]
    statuses = await letters.statuses([letter.id for letter in found])
    if out.json:
        out.data([letter_as_json(one, statuses.get(one.id, "open")) for one in found[:most]])
        return
    now_ms = round(time.time() * 1000)
    columns = ("letter", "failed", "status", "tries", "key", "what")
    rows = [
        (one.id, format_age(one.last_failed_ms or one.timestamp_ms, now_ms), statuses.get(one.id, "open"),
         one.attempts, key_text(one.key, _MOST_OF_KEY), _error_of(one))
        for one in found[:most]
    ]  # fmt: skip
    if rows:
        out.table(columns, rows)
    else:
        out.note(NOTHING_CHOSEN if chooses(selection) else "no dead letters need a decision")
    if len(found) > most:
        out.note(f"and more: --limit {most * 4}")


def _error_of(letter: DeadLetter) -> str:
    error = letter.error_class.rpartition(".")[2]
    return ": ".join(one for one in (error, first_line(letter.message, 200)) if one) or letter.reason


# topics ---------------------------------------------------------------------------------------------------------------


def _show_topics(topics: Sequence[DeadLetterTopic], selection: Selection, hidden: int, url: str, out: Output) -> None:
    """Show the topics of dead letters, and why no case is shown."""
    if not topics:
        no_topics(url, out)
        return
    now_ms = round(time.time() * 1000)
    rows = topic_rows(topics, now_ms)
    out.table(TOPIC_COLUMNS, rows)
    if hidden:
        out.note(f"{format_count(hidden, 'case')}, all dealt with: --status all")
    elif chooses(selection):
        out.note(NOTHING_CHOSEN)
    else:
        out.note("no dead letter waits for anybody")


def no_topics(url: str, out: Output) -> None:
    out.note(
        f"there are no dead letters in {shown_url(url)}: no topic is named like one of dead letters (dlq.*, *-dlq, "
        "*.DLT, *_error, ...); name another with --topic"
    )


async def note_waiting(letters: DeadLetters, topic: str | None, group: str | None, out: Output) -> None:
    """Print how many records wait for their next try. If a topic or a group is named, print those of it."""
    now_ms = round(time.time() * 1000)
    for one in await letters.waiting():
        if topic not in (None, one.topic, f"dlq.{one.group}") or group not in (None, one.group):
            continue
        due_ms = None if one.next_due_ms is None else one.next_due_ms - now_ms
        due = "" if due_ms is None else f", the first {'is due' if due_ms <= 0 else f'in {format_duration(due_ms)}'}"
        note = "" if one.has_members else ". The group has no members, so they wait until its service runs"
        waits = "record waits" if one.count == 1 else "records wait"
        out.note(f"{one.count:,} {waits} for the next try of group {one.group} in {one.topic}{due}{note}")


TOPIC_COLUMNS = ("topic", "letters", "open", "parked", "done", "cases", "oldest open", "newest", "groups")


def topic_rows(topics: Iterable[DeadLetterTopic], now_ms: int) -> list[tuple[Any, ...]]:
    return [
        (one.name, one.count, one.statuses.get("open", 0), one.statuses.get("parked", 0), done_of(one.statuses),
         one.cases, format_age(one.oldest_open_ms, now_ms), format_age(one.newest_ms, now_ms), ", ".join(one.groups))
        for one in topics
    ]  # fmt: skip
