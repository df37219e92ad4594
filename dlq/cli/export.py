"""``eventbus dlq export``: dead letters as lines of JSON, or as a table for a spreadsheet."""

from __future__ import annotations

import argparse
import csv
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dlq.cli.choosing import UNDONE, add_letters, open_letters, say_what_is_there, selection_of, topics_of
from dlq.cli.letter_json import letter_as_json
from dlq.payloads import source_records
from dlq.selection import LetterId
from eventbus.cli.output import Output, one_line, text_or_base64
from eventbus.cli.parser import Subcommands
from eventbus.format import format_count

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator

    from dlq.letters import DeadLetter

_BATCH = 500
_COLUMNS = (
    "id", "status", "case", "handler", "group", "error_class", "message", "top_frame", "reason", "attempts",
    "first_failed_ms", "last_failed_ms", "source", "key", "value", "stack",
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@")


def add(actions: Subcommands) -> None:
    parser = actions.add_parser(
        "export",
        help="letters as lines of JSON, or as CSV",
        description="JSON contains the whole letter; bytes that are not UTF-8 are in value_base64 and similar fields.\n"
        "CSV is for spreadsheets: line feeds and control characters are escaped, and a text that would be\n"
        "read as a formula begins with an apostrophe.",
        epilog="  eventbus dlq export dlq.billing --since 7d > letters.jsonl\n"
        "  eventbus dlq export --error ValueError --format csv > letters.csv",
    )
    add_letters(parser, UNDONE)
    parser.add_argument("--format", choices=["jsonl", "csv"], default="jsonl", help="jsonl (default) or csv")
    parser.set_defaults(run=export)


async def export(args: argparse.Namespace) -> None:
    selection, out = selection_of(args), Output.of(args)
    async with open_letters(args, topics=topics_of(selection)) as (letters, bus):
        count = 0
        lines = csv.writer(out.stdout, lineterminator="\n")
        if args.format == "csv":
            lines.writerow(_COLUMNS)
        async with aclosing(letters.letters(selection)) as found:
            async for some in _batches(found):
                statuses = await letters.statuses([one.id for one in some])
                sources = await source_records(bus, [one for one in some if not one.has_payload])
                for letter in some:
                    fields = letter_as_json(letter, statuses.get(letter.id, "open"))
                    source = sources.get(LetterId.of(letter.id))
                    fields |= {} if source is None else text_or_base64("value", source.value)
                    if args.format == "csv":
                        lines.writerow([_cell(name, fields) for name in _COLUMNS])
                    else:
                        out.data(fields)
                count += len(some)
        out.note(f"{format_count(count, 'letter')} exported")
        if not count:
            await say_what_is_there(letters, selection, out)


async def _batches(letters: AsyncIterable[DeadLetter]) -> AsyncIterator[list[DeadLetter]]:
    """Some at a time: what became of them is asked for all of these at once."""
    batch: list[DeadLetter] = []
    async for letter in letters:
        batch.append(letter)
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _cell(name: str, fields: dict[str, Any]) -> str:
    value = fields.get(name)
    if value is None:
        value = fields.get(f"{name}_base64", "")
    elif name == "source":
        value = f"{value['topic']}/{value['partition']}/{value['offset']}"
    text = one_line(str(value))
    return f"'{text}" if text.startswith(_FORMULA) else text
