"""Transcripts: text files that say what a state machine is told, and everything it does in answer.

A file is a list of blocks: a command, ``----``, and the lines the machine gave. They are compared literally;
``pytest --rewrite`` writes down what the machine does now, for a person to read in the diff::

    # a comment belongs to the block below it
    join g m1 range=x
    ----
    m1: joined generation 1 as m1-1, leads m1-1

A machine is an object with ``run(command) -> lines``; one is made for each file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

SEPARATOR = "----"


class Machine(Protocol):
    def run(self, command: str) -> list[str]: ...


class Block(NamedTuple):
    comments: tuple[str, ...]
    command: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((*self.comments, self.command, SEPARATOR, *self.lines))


def parse(text: str) -> list[Block]:
    """The blocks of a transcript. A command without ``----`` has no lines yet. Raises ValueError."""
    blocks: list[Block] = []
    for paragraph in filter(None, (part.strip("\n") for part in text.split("\n\n"))):
        lines = paragraph.split("\n")
        comments = tuple(line for line in lines if line.startswith("#"))
        rest = [line for line in lines if not line.startswith("#")]
        if not rest:
            raise ValueError(f"a comment without a command below it: {paragraph!r}")
        if len(rest) > 1 and rest[1] != SEPARATOR:
            raise ValueError(f"after the command {rest[0]!r} comes {SEPARATOR!r}, not {rest[1]!r}")
        blocks.append(Block(comments, rest[0], tuple(rest[2:])))
    return blocks


def play(blocks: list[Block], machine: Machine) -> list[Block]:
    """The same blocks, with what the machine really does."""
    return [block._replace(lines=tuple(machine.run(block.command))) for block in blocks]


def check(path: Path, new_machine: Callable[[], Machine], rewrite: bool) -> None:
    """AssertionError unless the machine does what the file says; with ``rewrite`` the file is made to say it."""
    found = "\n\n".join(map(str, play(parse(path.read_text(encoding="utf-8")), new_machine()))) + "\n"
    if rewrite:
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), f"{path.name} says otherwise; `pytest --rewrite` accepts it"
