"""Extract class, message, stack and the place in the user's code from an error.

Errors come from the user's code: `str(error)` may raise, be megabytes long, or contain anything.
"""

from __future__ import annotations

import sysconfig
import traceback
from functools import lru_cache
from pathlib import PurePath
from types import FrameType
from typing import Final, NamedTuple, cast

_OURS = frozenset({"eventbus", "dlq", "serdes", "anyio"})
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_STDLIB = PurePath(sysconfig.get_paths()["stdlib"])
_MOST_FRAMES = 40
"""The innermost frames of a traceback that are kept."""
_MOST_CAUSES = 10
_MOST_IN_GROUP = 8
_MOST_DEPTH = 4
_MOST_CHARS: Final = 1 << 16
"""The longest message of an error that is kept whole; of a longer one, both ends are kept."""


class Failure(NamedTuple):
    """A description of an error."""

    error_class: str
    """``module.Class``, or only ``Class`` for builtins."""
    message: str
    stack: str
    top_frame: str
    """``file.py:function:line`` of the innermost frame in the user's code."""


def failure_of(error: BaseException) -> Failure:
    """Describe an error. A group with one member is described as that member, but its stack still shows the group."""
    cause = _single(error)
    return Failure(class_of(cause), message_of(cause), _stack(error), top_frame(cause))


def class_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """Return `str(error)`, or a placeholder if that raises. The messages inside a group are appended."""
    inside = "; ".join(f"{class_of(member)}: {_text(member)}" for member in _inside(error)[:_MOST_IN_GROUP])
    return f"{_text(error)}: {inside}" if inside else _text(error)


def top_frame(error: BaseException) -> str:
    """Return the innermost frame of the user's code: neither ours, nor installed, nor the standard library.

    If the service is an installed package itself, there is none. Then the package that was called first, which is the
    handler's, counts as the user's. If that does not exist either, the innermost frame is returned.
    """
    users = service = innermost = None
    package = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        innermost = frame, line
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name in _OURS:
            continue
        if not _is_library(frame.f_code.co_filename):
            users = frame, line
        package = package or name
        if name == package:
            service = frame, line
    found = users or service or innermost
    return "" if found is None else _place(*found)


def _place(frame: FrameType, line: int) -> str:
    code = frame.f_code
    return f"{PurePath(code.co_filename).name}:{code.co_name}:{line}"


@lru_cache(1000)
def _is_library(filename: str) -> bool:
    path = PurePath(filename)
    return not _INSTALLED.isdisjoint(path.parts) or path.is_relative_to(_STDLIB) or filename.startswith("<frozen ")


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as raised:
        return f"<str() of it raised {class_of(raised)}>"
    half = _MOST_CHARS // 2
    return text if len(text) <= _MOST_CHARS else f"{text[:half]} [...] {text[-half:]}"


def _inside(error: BaseException) -> tuple[BaseException, ...]:
    if not isinstance(error, BaseExceptionGroup):
        return ()
    return cast("BaseExceptionGroup[BaseException]", error).exceptions


def _single(error: BaseException) -> BaseException:
    while len(inside := _inside(error)) == 1:
        error = inside[0]
    return error


# Python does not limit stacks, and a call that is retried often may chain as many causes.


def _stack(error: BaseException, depth: int = 0) -> str:
    """Format the stack as Python does: causes before the error they led to, members after their group."""
    chain = [error]
    links = [""]
    while len(chain) < _MOST_CAUSES:
        before, link = _before(chain[-1])
        if before is None or any(before is one for one in chain):
            break
        chain.append(before)
        links.append(link)
    parts: list[str] = []
    for one, link in zip(reversed(chain), reversed(links), strict=True):
        parts += _own_stack(one, depth), link
    return "".join(parts)


def _before(error: BaseException) -> tuple[BaseException | None, str]:
    if error.__cause__ is not None:
        return error.__cause__, "\nThe above exception was the direct cause of the following exception:\n\n"
    context = None if error.__suppress_context__ else error.__context__
    return context, "\nDuring handling of the above exception, another exception occurred:\n\n"


def _own_stack(error: BaseException, depth: int) -> str:
    frames = traceback.extract_tb(error.__traceback__, limit=-_MOST_FRAMES)
    parts = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    text = _text(error)
    parts.append(f"{class_of(error)}: {text}\n" if text else f"{class_of(error)}\n")
    notes: object = getattr(error, "__notes__", ())
    if isinstance(notes, list):
        parts += [f"{note[:_MOST_CHARS]}\n" for note in cast("list[object]", notes) if isinstance(note, str)]
    if depth < _MOST_DEPTH:
        for number, one in enumerate(_inside(error)[:_MOST_IN_GROUP], 1):
            parts.append(f"---- {number} of the group ----\n{_stack(one, depth + 1)}")
    return "".join(parts)
