"""Stories of requests and answers, as text: each request on a line, what it is answered indented below it.

``let name JSON`` names a schema; a body that is such a name is ``{"schema": "..."}`` of it. ``<a|b|c>`` makes three
requests of one line. Headers stand behind ``|`` with a space on both sides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.schema_registry.http.asgi import Answer

FOLDER = Path(__file__).with_name("stories")

_CHOICE = re.compile(r"<([^<>]*\|[^<>]*)>")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HEADER = re.compile(r"(?: \|(?: |$))")


class Request(NamedTuple):
    line: str
    """As it stands there, with one of its choices."""
    method: str
    target: str
    body: bytes
    headers: dict[str, str]


class Story(NamedTuple):
    name: str
    lines: list[str]
    """Its requests and lets, as they stand in the file."""
    answers: list[str]
    """One for each request."""

    def requests(self) -> Iterator[tuple[str, list[Request]]]:
        """Every line with the requests it stands for."""
        schemas: dict[str, str] = {}
        for line in self.lines:
            if line.startswith("let "):
                _, name, text = line.split(" ", 2)
                schemas[name] = text
            else:
                yield line, [_request(each, schemas) for each in _expanded(line)]


def stories(path: Path) -> list[Story]:
    found: list[Story] = []
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("== "):
            found.append(Story(line[3:], [], []))
        elif line.startswith("    "):
            found[-1].answers.append(line[4:])
        elif line:
            found[-1].lines.append(line)
    return found


def shown(answer: Answer) -> str:
    """On one line: status, error code and text, or body; what is special about its headers."""
    text = answer.body.decode()
    if (
        answer.status >= 400
        and answer.body
        and isinstance(answer.json, dict)
        and set(answer.json) == {"error_code", "message"}
    ):
        text = f"{answer.json['error_code']} {answer.json['message']}"
    special = [f"{name}: {answer.headers[name]}" for name in ("allow",) if name in answer.headers]
    kind = answer.headers.get("content-type", "")
    if kind and kind != "application/vnd.schemaregistry.v1+json":
        special.append(kind)
    text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return " ".join(filter(None, [str(answer.status), text, *(f"[{each}]" for each in special)]))


def rendered(found: list[Story], answers: dict[str, list[str]]) -> str:
    """The file again, with these answers to each story's requests."""
    parts: list[str] = []
    for story in found:
        told = iter(answers[story.name])
        parts.append(f"== {story.name}")
        requests = dict(enumerate(each for _, each in story.requests()))
        number = 0
        for line in story.lines:
            parts.append(line)
            if not line.startswith("let "):
                parts += [f"    {next(told, '?')}" for _ in requests[number]]
                number += 1
        parts.append("")
    return "\n".join(parts)


def _expanded(line: str) -> list[str]:
    found = _CHOICE.search(line)
    if found is None:
        return [line]
    return [line[: found.start()] + choice + line[found.end() :] for choice in found[1].split("|")]


def _request(line: str, schemas: dict[str, str]) -> Request:
    asked, *rest = _HEADER.split(line)
    method, _, more = asked.strip().partition(" ")
    target, _, body = more.partition(" ")
    headers = dict(each.split(": ", 1) for each in rest if each)
    content = json.dumps({"schema": schemas[body]}).encode() if body in schemas else body.encode()
    return Request(line, method, target, content, headers)
