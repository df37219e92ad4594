"""``eventbus dlq edit``: a letter with another content, as a new record to the group that failed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from difflib import unified_diff
from itertools import islice
from typing import TYPE_CHECKING, TypedDict

from msgspec import UNSET, UnsetType

from dlq.cli.choosing import UNDONE, add_who, letter_id, open_letters, who
from dlq.cli.new_content import add_content, bytes_of, changes_anything, changes_value, new_headers, new_value
from dlq.cli.payloads import show_payload
from dlq.cli.reach import add_targets, also_to, as_options, reach_notes, where_to
from dlq.cli.registry import add_registry, registry_of
from dlq.selection import Selection
from dlq.targets import REASONS
from eventbus.cli.confirm import confirmed
from eventbus.cli.output import Output, one_line
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from dlq.cli.registry import Registry
    from dlq.dead_letters import DeadLetters
    from dlq.letters import DeadLetter
    from dlq.redrive import Redriven
    from eventbus.types import Headers

_MOST_LINES = 60
_EPILOG = """\
  eventbus dlq edit dlq.billing/0/17 --editor
  eventbus dlq edit dlq.billing/0/17 --value '{"id": 7, "cents": 250}' --header tenant=acme

The letter stays unchanged, and its status shows the edit; the new record's headers name the letter. It goes to the
group that failed alone, as with redrive. A payload that names a schema is edited as JSON, and written in the latest
schema of its subject.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("edit", help="send one letter with another content", epilog=_EPILOG)
    parser.add_argument("letter", metavar="LETTER", help="topic/partition/offset, as list --letters shows it")
    add_content(parser)
    add_targets(parser)
    add_registry(parser)
    add_who(parser)
    parser.set_defaults(run=edit)


async def edit(args: argparse.Namespace) -> int:
    out, id = Output.of(args), letter_id(args.letter, args)
    if not changes_anything(args):
        raise UsageError(
            f"{args.program}: nothing to change. Give --value, --value-file, --editor, --tombstone, --key, "
            f"--header or --no-header; to send it unchanged: eventbus dlq redrive {id}"
        )
    if out.json and not args.yes:
        raise UsageError(f"{args.program}: --json asks for no confirmation: add --yes")
    async with open_letters(args, topics={id.topic}) as (letters, bus):
        if args.to is not None:
            await bus.admin.describe_topics([args.to])  # a wrong name fails here, with the nearest one
        letter = await letters.get(str(id))
        before = await letters.payload(letter)
        async with registry_of(bus, args) as registry:
            value: bytes | UnsetType | None = UNSET
            if changes_value(args) and (made := await new_value(letter, before, registry, args)) != before:
                value = made
            headers = new_headers(letter.headers, args)
            key = UNSET if args.key is None else bytes_of(args.key)
            if (value, headers, key) == (UNSET, UNSET, UNSET):
                out.note("nothing is changed, so nothing is sent")
                return 0
            target: TargetOptions = {"to": args.to, "whole_topic": args.whole_topic}
            plan = await _plan(letters, str(id), target)
            for reason in plan.left_out.keys() - {"no-payload"}:  # which the new content may be instead
                raise ConfigError(f"dead letter {id} cannot be sent: {as_options(REASONS[reason])}")
            if not out.json:
                out.heading(f"{id}{where_to(plan)}")
                for line in await _changes(letter, before, registry, value, headers, key):
                    out.block(one_line(line))
                for note in reach_notes(plan):
                    out.note(note)
            if not args.yes and not confirmed(out, f"Send it{also_to(plan)}?"):
                return 1
        try:
            sent = await letters.edit(
                str(id), value=value, key=key, headers=headers, **target, by=who(args), note=args.note
            )
        except ConfigError as error:
            raise _in_our_words(error) from None
        where = f"{sent.topic}/{sent.partition}/{sent.offset}"
        out.answer({"letter": str(id), "sent": where}, f"sent as {where}; {id} is edited")
        return 0


class TargetOptions(TypedDict):
    """The arguments of `DeadLetters.edit` and `DeadLetters.redrive` that select the target of a letter."""

    to: str | None
    whole_topic: bool


async def _plan(letters: DeadLetters, id: str, target: TargetOptions) -> Redriven:
    """Return where the letter would go. A redrive goes to the same topic, and needs no new content for a dry run."""
    try:
        return await letters.redrive(Selection(ids={id}, status=UNDONE), dry_run=True, max_hops=None, **target)
    except ConfigError as error:
        raise _in_our_words(error) from None


def _in_our_words(error: ConfigError) -> ConfigError:
    """Return the error of ``--to``, without the advice to use --allow, which this command does not have."""
    is_about_to = error.option == "to"
    return ConfigError(as_options(f"--to {error.value!r}: {error.reason}" if is_about_to else str(error)))


async def _changes(
    letter: DeadLetter,
    before: bytes | None,
    registry: Registry,
    value: bytes | UnsetType | None,
    headers: Headers | UnsetType,
    key: bytes | UnsetType,
) -> list[str]:
    """Return the removed and the added lines, in the format of diff."""
    lines: list[str] = []
    if key is not UNSET:
        lines += _differences([f"key: {_short(letter.key)}"], [f"key: {_short(key)}"])
    if headers is not UNSET:
        old, new = ([f"{name}: {_short(text)}" for name, text in sorted(some)] for some in (letter.headers, headers))
        lines += _differences(old, new)
    if value is not UNSET:
        shown = [show_payload(await registry.as_json(letter, data) or data).text for data in (before, value)]
        lines += _differences(*(text.splitlines() for text in shown))
    more = len(lines) - _MOST_LINES
    return lines if more <= 0 else [*lines[:_MOST_LINES], f"... and {more:,} more lines"]


def _differences(old: list[str], new: list[str]) -> Iterator[str]:
    lines = unified_diff(old, new, lineterm="", n=2)
    return (line for line in islice(lines, 2, None) if not line.startswith("@@"))


def _short(data: bytes | None) -> str:
    return show_payload(data, most=200).text
