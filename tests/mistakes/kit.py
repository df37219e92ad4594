"""What a likely mistake is: it is really made, and what is said of it is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from eventbus import EventBus
from eventbus.cli.app import run
from eventbus.errors import EventBusError

ROOT = Path(__file__).resolve().parent.parent.parent


class At(NamedTuple):
    """Where a mistake is made: a folder of its own, which is the current one."""

    folder: Path
    patch: pytest.MonkeyPatch

    def bus(self, **config: object) -> EventBus:
        """One with a topic."""
        bus = EventBus("memory://", **config)  # pyright: ignore[reportArgumentType]
        bus.topic("orders", partitions=2)
        return bus

    def file(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, "utf-8")

    def cli(self, *words: str) -> str:
        """What a command complains of; it must fail."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = run(list(words))
            except SystemExit as ended:  # argparse's way
                code = ended.code
        assert code, f"eventbus {' '.join(words)} succeeded: {out.getvalue()}"
        return err.getvalue().strip()


Make = Callable[[At], "str | Awaitable[str | None] | None"]


class Mistake(NamedTuple):
    wrote: str
    """What one writes, or does."""
    fix: str
    says: tuple[str, ...]
    """What is in the message: what is wrong, where, and how it is mended."""
    make: Make
    """Makes it: what is raised is the message, or what it returns."""

    @property
    def name(self) -> str:
        return getattr(self.make, "__name__", "")


class Section:
    """Mistakes that belong together."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.mistakes: list[Mistake] = []

    def mistake(self, wrote: str, fix: str, *says: str) -> Callable[[Make], Make]:
        def add(make: Make) -> Make:
            self.mistakes.append(Mistake(wrote, fix, says, make))
            return make

        return add


def message_of(mistake: Mistake, folder: Path) -> str:
    """Make it, and return what is said. An error that is none of the bus's is no answer, and passes through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("EVENTBUS_URL", raising=False)
        try:
            told = mistake.make(At(folder, patch))
            if inspect.iscoroutine(told):
                told = asyncio.run(told)
        except EventBusError as error:
            told = str(error)
    assert isinstance(told, str) and told, f"{mistake.name}: nobody said anything"
    return as_anywhere(told, folder)


_ELSEWHERE = (
    (re.compile(r"(127\.0\.0\.1|localhost):\d{4,5}"), r"\1:9092"),
    (re.compile(r"(port) \d{4,5}"), r"\1 9092"),
    (re.compile(r"\bpid \d+"), "pid 4711"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x7f00"),
    (re.compile(r"\ba-[\w-]{22}"), "a-5f0c"),
    (re.compile(r"\(127\.0\.0\.1.* refused .*\): is it"), "(127.0.0.1:9092/bootstrap: Connection refused): is it"),
    (re.compile(r"/srv/\S*/bin/python\S*|/usr/\S*/python\S*"), "/usr/bin/python3"),
    (re.compile(r"process \d+ on [\w.-]+\w"), "process 4711 on shop"),
    (re.compile(r"only in process \d+"), "only in process 4711"),
    (re.compile(r"(\.py:|\.py, line )\d+"), r"\g<1>12"),
    (re.compile(r"\b\d+(\.\d+)? (s|ms)\b(?! \()"), r"1 \2"),
)


def as_anywhere(text: str, folder: Path) -> str:
    """The message as it would be on another machine, on another day."""
    text = (
        text.replace(str(folder.resolve()), "/srv/shop").replace(str(folder), "/srv/shop").replace(f"{ROOT}/", "/srv/")
    )
    for pattern, instead in _ELSEWHERE:
        text = pattern.sub(instead, text)
    return text


@contextlib.contextmanager
def heard(name: str = "eventbus") -> Iterator[list[str]]:
    """What is logged as a warning or worse."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Keep(logging.WARNING), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
