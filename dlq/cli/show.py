"""``eventbus dlq show``: everything that one dead letter says."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from dlq.cli.choosing import NOTHING_CHOSEN, UNDONE, add_letters, open_letters, selection_of, topics_of
from dlq.cli.letter_json import letter_as_json
from dlq.cli.payloads import show_payload
from dlq.cli.registry import add_registry, registry_of
from eventbus.cli.output import Output, one_line, text_or_base64
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.client.consuming.restoring import CLAIM_CHECK
from eventbus.errors import ConfigError, PayloadGone
from eventbus.format import format_age, format_count, format_duration, format_size, format_time

if TYPE_CHECKING:
    from dlq.cli.registry import Registry
    from dlq.dead_letters import DeadLetters
    from dlq.letters import DeadLetter
    from dlq.selection import Selection
    from dlq.state import Step

_EPILOG = """\
  eventbus dlq show dlq.billing/0/17
  eventbus dlq show 3f2a9c1d07                        the newest letter of a case, as list shows it
  eventbus dlq show dlq.billing/0/17 --payload > order.json
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("show", help="all that one letter says: error, stack, headers, payload", epilog=_EPILOG)
    add_letters(parser, None)
    parser.add_argument("--payload", action="store_true", help="the payload alone, byte for byte into a pipe")
    parser.add_argument("--full", action="store_true", help="also what is too long for a out")
    add_registry(parser)
    parser.set_defaults(run=show)


async def show(args: argparse.Namespace) -> None:
    selection, out = selection_of(args), Output.of(args)
    if selection.ids is not None and len(selection.ids) > 1:
        raise UsageError(f"{args.program}: one letter at a time; several, one a line: eventbus dlq list --letters")
    async with open_letters(args, topics=topics_of(selection)) as (letters, bus):
        letter, alike = await _chosen(letters, selection)
        payload, gone = letter.value, ""
        try:
            payload = await letters.payload(letter)
        except PayloadGone as error:
            gone = str(error)
        if args.payload:
            if gone:
                raise PayloadGone(gone)
            _write_payload(payload, out)
            return
        steps = await letters.history(letter.id)
        status = (await letters.statuses([letter.id])).get(letter.id, "open")
        async with registry_of(bus, args) as registry:
            decoded = await registry.as_json(letter, payload)
            if out.json:
                extra = {"decoded": msgspec.Raw(decoded)} if decoded is not None else {}
                history = [msgspec.to_builtins(step) for step in steps]
                out.data(
                    {**letter_as_json(letter, status), **text_or_base64("value", payload), **extra, "history": history}
                )
                return
            _show_story(letter, status, alike, out)
            _show_history(steps, out)
            _show_stack(letter, out)
            _show_headers(letter, out)
            _show_body(payload, gone, decoded, registry, args.full, out)
        if any(name == CLAIM_CHECK for name, _ in letter.headers):
            out.note("the payload is in the store of a claim check: what is shown is its name there")
        if status in UNDONE:
            out.note(f"send it back: eventbus dlq redrive {letter.id}")


async def _chosen(letters: DeadLetters, selection: Selection) -> tuple[DeadLetter, int]:
    """Return the letter that is named, else the newest one that is chosen; and how many are of its case."""
    if selection.ids:
        letter = await letters.get(next(iter(selection.ids)))
        of_case = [one for one in await letters.groups(letter.topic) if one.case == letter.case]
        return letter, sum(one.count for one in of_case)
    cases = await letters.groups(selection=selection)
    undone = await letters.groups(selection=msgspec.structs.replace(selection, status=UNDONE))
    if not cases:
        raise ConfigError(NOTHING_CHOSEN)
    newest = max(undone or cases, key=lambda case: case.last_ms)
    return await letters.get(newest.sample_ids[0]), sum(one.count for one in cases if one.case == newest.case)


def _write_payload(payload: bytes | None, out: Output) -> None:
    """Write the payload's bytes, or a readable form to a terminal."""
    if out.stdout.isatty():
        out.line(show_payload(payload, full=True).text)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(payload or b"")
        sys.stdout.buffer.flush()


# the parts of the page ------------------------------------------------------------------------------------------------


def _show_story(letter: DeadLetter, status: str, alike: int, out: Output) -> None:
    out.heading(letter.id)
    out.field("status", status)
    out.field("case", f"{letter.case}, {format_count(alike, 'letter')}")
    by = f", service {letter.service}" if letter.service else ""
    group = f", group {letter.group}" if letter.group else ""
    out.field("handler", f"{letter.handler or '?'}{group}{by}" if letter.handler or letter.group else "")
    written = "" if letter.family in ("eventbus", "unknown") else letter.family
    out.field("written by", written)
    out.field("source", _source(letter))
    out.field("key", _key(letter))
    failed_ms = letter.timestamp_ms if letter.last_failed_ms is None else letter.last_failed_ms
    out.field("failed", f"{format_time(failed_ms)}, {format_age(failed_ms, round(time.time() * 1000))} ago")
    out.field("tries", _tries(letter))
    out.field("reason", letter.reason)
    last = f", last as {letter.former_id}" if letter.former_id else ""
    out.field("redriven", f"{format_count(letter.hops, 'time')} before{last}" if letter.hops else "")
    out.field("error", ": ".join(one for one in (letter.error_class, letter.message) if one))
    out.field("at", letter.top_frame)


def _source(letter: DeadLetter) -> str:
    if letter.source is None:
        return "it does not say where it came from"
    offset = "?" if letter.source_offset is None else letter.source_offset
    return f"{letter.source.topic}/{letter.source.partition}/{offset}"


def _key(letter: DeadLetter) -> str:
    return "" if letter.key is None else show_payload(letter.key, most=200).text


def _tries(letter: DeadLetter) -> str:
    first, last = letter.first_failed_ms, letter.last_failed_ms
    calls = format_count(letter.attempts, "call") if letter.attempts else ""
    earlier = (
        ""
        if first is None or last is None or first >= last
        else f"the first failed {format_duration(last - first)} earlier"
    )
    return ", ".join(one for one in (calls, earlier) if one)


def _show_history(steps: tuple[Step, ...], out: Output) -> None:
    for step in steps:
        to = f" to {step.to}" if step.to else ""
        by = f" by {step.by}" if step.by else ""
        note = f": {step.note}" if step.note else ""
        out.field(step.status, f"{format_time(step.at_ms)}{to}{by}{note}")


def _show_stack(letter: DeadLetter, out: Output) -> None:
    if letter.stack:
        out.line()
        out.heading("stack")
        out.block(letter.stack.rstrip("\n"))


def _show_headers(letter: DeadLetter, out: Output) -> None:
    if not letter.headers:
        return
    out.line()
    out.heading("headers")
    width = min(max(len(name) for name, _ in letter.headers), 30)
    for name, value in letter.headers:
        shown = show_payload(value, most=500)
        more = f" ... and {format_count(shown.left_out, 'character')} more" if shown.left_out else ""
        out.block(one_line(f"{name.ljust(width)}  {shown.text}{more}"))


def _show_body(
    payload: bytes | None, gone: str, decoded: bytes | None, registry: Registry, full: bool, out: Output
) -> None:
    out.line()
    if gone:
        out.heading("payload")
        out.block(one_line(gone))
        return
    shown = show_payload(payload if decoded is None else decoded, full=full)
    kind = shown.kind if decoded is None else "through its schema"
    out.heading(f"payload, {kind}" + (f", {format_size(len(payload))}" if payload else ""))
    if shown.text:
        out.block(shown.text)
    if shown.left_out:
        out.block(one_line(f"... and {shown.left_out:,} more: --full, or --payload into a file"))
    if decoded is None and registry.advice and "schema" in shown.kind:
        out.block(one_line(registry.advice))
