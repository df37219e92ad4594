"""Stacks of other languages: where in the user's code an error came up, as `dlq.failures` says it of Python's."""

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
    """Of what caused everything else, which Java prints last."""
    return _frame(stack.rpartition(_CAUSE)[2], _JAVA)


def dotnet_frame(stack: str) -> str:
    """Of what caused everything else, which .NET prints first."""
    return _frame(stack, _DOTNET)


def java_root_class(stack: str) -> str:
    """The class of what caused everything else; empty where nothing is said to."""
    _, cause, rest = stack.rpartition(_CAUSE)
    return rest.partition("\n")[0].partition(":")[0].strip() if cause else ""


def _frame(stack: str, line: re.Pattern[str]) -> str:
    frames = [found for found in map(line.match, stack.splitlines()) if found is not None]
    users = next((one for one in frames if not one["where"].rpartition("/")[2].startswith(_NOT_USERS)), None)
    found = users or next(iter(frames), None)
    if found is None:
        return ""
    method = ".".join(found["where"].rpartition("/")[2].split(".")[-2:])
    file = re.split(r"[\\/]", found["file"] or "")[-1]
    return ":".join(part for part in (file, method, found["line"]) if part)
