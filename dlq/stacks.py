"""Find the user's frame in Java and .NET stacks, as `dlq.failures` does for Python."""

from __future__ import annotations

import re

_JAVA = re.compile(r"\s*at (?P<where>[^\s()]{1,500})\((?:(?P<file>[^\s():]{1,200})(:(?P<line>\d{1,9}))?|[^()]{1,50})\)")
_DOTNET = re.compile(r"\s*at (?P<where>[^\s()]{1,500})\([^()]*\)( in (?P<file>.{1,500}):line (?P<line>\d{1,9}))?")
_CAUSE = "Caused by: "
_NOT_USERS = (
    "java.", "javax.", "jdk.", "sun.", "org.apache.kafka.", "org.springframework.",
    "System.", "Microsoft.", "MassTransit.", "NServiceBus.",
)  # fmt: skip


def java_frame(stack: str) -> str:
    """Return the frame of the root cause, which Java prints last."""
    return _frame(stack.rpartition(_CAUSE)[2], _JAVA)


def dotnet_frame(stack: str) -> str:
    """Return the frame of the root cause, which .NET prints first."""
    return _frame(stack, _DOTNET)


def java_root_class(stack: str) -> str:
    """Return the class of the root cause, or "" if the stack names none."""
    _, cause, rest = stack.rpartition(_CAUSE)
    return rest.partition("\n")[0].partition(":")[0].strip() if cause else ""


def _frame(stack: str, line: re.Pattern[str]) -> str:
    frames = [found for found in map(line.match, stack.splitlines()) if found is not None]
    users = next((frame for frame in frames if not frame["where"].rpartition("/")[2].startswith(_NOT_USERS)), None)
    found = users or next(iter(frames), None)
    if found is None:
        return ""
    method = ".".join(found["where"].rpartition("/")[2].split(".")[-2:])
    file = re.split(r"[\\/]", found["file"] or "")[-1]
    return ":".join(part for part in (file, method, found["line"]) if part)
