"""``eventbus outbox list``: list events that the log refused, and events that wait for them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.cli.output import Output, first_line, key_text, text_or_base64
from eventbus.cli.parser import Subcommands, positive
from eventbus.format import format_duration
from outbox.cli.choosing import add_choice, choice_of
from outbox.cli.database import add_database, open_outbox

if TYPE_CHECKING:
    from outbox.quarantine import Content, Quarantine, Refused

_MOST = 50
_EPILOG = """\
  eventbus outbox list                          what the log refused, and why
  eventbus outbox list 4711                     one of them: headers and value too
  eventbus outbox list --topic orders --behind  with the events that wait for them
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser(
        "list",
        help="what the log refused, why, and how many events wait for it",
        description="Events that the log does not take (too large, unknown topic, ...). Later events with the\n"
        'key of such an event wait, unless relays have on_poison="skip".',
        epilog=_EPILOG,
    )
    add_choice(parser)
    add_database(parser)
    parser.add_argument("--behind", action="store_true", help="also the events that wait for them")
    parser.add_argument("--limit", type=positive, default=_MOST, metavar="N", help=f"so many (default: {_MOST})")
    parser.set_defaults(run=list_refused)


async def list_refused(args: argparse.Namespace) -> int:
    choice, out = choice_of(args), Output.of(args)
    async with open_outbox(args) as opened:
        from outbox.database import now_ms
        from outbox.quarantine import Quarantine

        quarantine = Quarantine(opened.database, opened.outbox.tables)
        # An event named explicitly is shown even if it only waits.
        behind = args.behind or bool(args.chosen)
        found = await quarantine.events(choice, limit=args.limit + 1, behind=behind)
        shown, more = found[: args.limit], len(found) > args.limit
        if len(args.chosen) == 1 and shown:
            await _show_one(shown[0], quarantine, await opened.database.run(now_ms), out)
        elif out.json:
            out.data([_as_json(one) for one in shown])
        elif shown:
            _show_table(shown, await opened.database.run(now_ms), out)
        else:
            out.note(
                "there is none like that" if args.chosen or args.topic or args.reason else "the log refused nothing"
            )
        if more and not out.json:
            out.note(f"and more: --limit {args.limit * 4}")
        return 1 if args.chosen and not shown else 0


def _show_table(events: list[Refused], now_ms: int, out: Output) -> None:
    columns = ("event", "topic", "key", "refused", "behind", "bytes", "reason")
    rows = [
        (
            one.id, one.topic, key_text(one.key), f"{format_duration(now_ms - one.failed_at_ms)} ago",
            None if one.is_behind else one.behind, one.value_bytes, first_line(one.reason),
        )
        for one in events
    ]  # fmt: skip
    out.table(columns, rows)


def _as_json(one: Refused) -> dict[str, Any]:
    fields = msgspec.structs.asdict(one)
    key = fields.pop("key")
    return fields | ({"key": key} if isinstance(key, str) else text_or_base64("key", key))


async def _show_one(one: Refused, quarantine: Quarantine, now_ms: int, out: Output) -> None:
    content = await quarantine.content(one.id)
    if out.json:
        out.data(_as_json(one) | _content_as_json(content))
        return
    refused = (
        "waits for an earlier event with its key"
        if one.is_behind
        else f"refused {format_duration(now_ms - one.failed_at_ms)} ago"
    )
    out.line(f"event {one.id} ({one.event_id}), {refused}, written {format_duration(now_ms - one.written_at_ms)} ago")
    fields = {
        "topic": one.topic if one.partition is None else f"{one.topic}, partition {one.partition}",
        "key": key_text(one.key),
        "reason": one.reason,
        "behind": f"{one.behind:,} of the same key" if one.behind else "",
        **({} if content is None else {name: _text(value) for name, value in content.headers}),
        "value": "(gone)" if content is None else _text(content.value),
    }
    for name, value in fields.items():
        if value:
            out.line(f"  {name:<8}  {value}")


def _content_as_json(content: Content | None) -> dict[str, Any]:
    if content is None:
        return {}
    headers = [{"name": name, **text_or_base64("value", value)} for name, value in content.headers]
    return {"headers": headers, **text_or_base64("value", content.value)}


def _text(data: bytes | None) -> str:
    if data is None:
        return "null"
    try:
        return data[:4_096].decode() if len(data) <= 4_096 else f"{data[:4_096].decode(errors='ignore')}..."
    except UnicodeDecodeError:
        return f"0x{data[:256].hex()}{'...' if len(data) > 256 else ''}"
