"""Read the new payload, key and headers of an edited letter from options, files and editors."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from anyio.to_thread import run_sync
from msgspec import UNSET, UnsetType

from dlq.cli.choosing import read_file
from dlq.cli.payloads import show_payload
from eventbus.cli.parser import UsageError
from eventbus.errors import SerializationError

if TYPE_CHECKING:
    from dlq.cli.registry import Registry
    from dlq.letters import DeadLetter
    from eventbus.types import Headers


def add_content(parser: argparse.ArgumentParser) -> None:
    value = parser.add_mutually_exclusive_group()
    value.add_argument("--value", metavar="TEXT", help="the new payload")
    value.add_argument("--value-file", metavar="FILE", help="the new payload, from a file; - for stdin")
    value.add_argument("--editor", action="store_true", help="edit the payload in $VISUAL or $EDITOR")
    value.add_argument("--tombstone", action="store_true", help="no payload: the key's deletion")
    parser.add_argument("--key", metavar="TEXT", help="another key")
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="set a header, or add it; repeatable"
    )
    parser.add_argument("--no-header", action="append", default=[], metavar="NAME", help="leave one out; repeatable")


def changes_value(args: argparse.Namespace) -> bool:
    return args.value is not None or args.value_file is not None or args.editor or args.tombstone


def changes_anything(args: argparse.Namespace) -> bool:
    return changes_value(args) or args.key is not None or bool(args.header or args.no_header)


async def new_value(
    letter: DeadLetter, before: bytes | None, registry: Registry, args: argparse.Namespace
) -> bytes | None:
    """Return the new payload, encoded with a schema if the old payload was. Raises EventBusError if that fails."""
    if args.tombstone:
        return None
    decoded = await registry.as_json(letter, before)
    if args.value_file is not None:
        given = read_file(args.value_file, "--value-file")
    elif args.value is not None:
        given = bytes_of(args.value)
    else:
        edited = await run_sync(_edited, before if decoded is None else decoded, registry.advice)
        if edited is None:
            return before
        given = edited
    if decoded is None or await registry.as_json(letter, given) is not None:
        return given
    return await registry.from_json(letter.topic if letter.source is None else letter.source.topic, given)


def _edited(data: bytes | None, advice: str) -> bytes | None:
    """Let the user edit a text; None if it is unchanged. JSON is formatted for editing, and compacted afterwards."""
    shown = show_payload(data or b"", full=True)
    if shown.kind not in ("JSON", "text", "empty"):
        hint = f", or: {advice}" if advice else ""
        raise UsageError(f"--editor: the payload is not text ({shown.kind}): write a new one with --value-file{hint}")
    edited = _in_editor(shown.text, ".json" if shown.kind == "JSON" else ".txt")
    if edited == shown.text:
        return None
    if shown.kind != "JSON":
        return bytes_of(edited)
    try:
        return msgspec.json.format(bytes_of(edited), indent=-1)
    except msgspec.MsgspecError as error:
        raise SerializationError(f"the edited text is not JSON any more ({error}): nothing is sent") from None


def _in_editor(text: str, suffix: str) -> str:
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="eventbus-dlq-") as folder:
        path = Path(folder) / f"payload{suffix}"
        path.write_text(text, encoding="utf-8", newline="")
        try:
            code = subprocess.run([*shlex.split(command), str(path)], check=False).returncode
        except (OSError, ValueError) as error:
            raise UsageError(f"--editor: {command!r} cannot be run ({error}): set $EDITOR") from None
        if code:
            raise UsageError(f"--editor: {command!r} ended with exit code {code}: nothing is sent")
        edited = path.read_bytes().decode(errors="surrogateescape")
    # Editors end the last line; a payload without a line feed there is not meant to have one.
    return edited if text.endswith("\n") else edited.removesuffix("\n")


def bytes_of(text: str) -> bytes:
    """Return an argument's bytes as the shell gave them."""
    return text.encode(errors="surrogateescape")


def new_headers(headers: Headers, args: argparse.Namespace) -> Headers | UnsetType:
    """All headers, with those in place of others that are set. Raises UsageError."""
    if not args.header and not args.no_header:
        return UNSET
    given: dict[str, bytes] = {}
    for text in args.header:
        name, equals, value = text.partition("=")
        if not name or not equals or any("\ud800" <= one <= "\udfff" for one in name):
            raise UsageError(f"--header {text!r} is not of the form name=value, as in: --header tenant=acme")
        given[name] = bytes_of(value)
    known = {name for name, _ in headers}
    for name in args.no_header:
        if name not in known:
            there = f"it has none of that name, but {', '.join(sorted(known))}" if known else "it has no headers"
            raise UsageError(f"--no-header {name!r}: {there}")
    gone = {*args.no_header, *given}
    return (*((name, value) for name, value in headers if name not in gone), *given.items())
