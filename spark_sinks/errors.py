"""Errors of ours on their way through Spark, which makes text of them."""

from __future__ import annotations

import re

from eventbus import errors
from eventbus.errors import EventBusError


def own_error(error: BaseException) -> BaseException:
    """The error of ours that Spark turned into text on its way from a worker, or else the error as it is."""
    if isinstance(error, EventBusError):
        return error
    found = re.findall(r"^(?:\w+\.)*errors\.(\w+): (.+)$", str(error), re.MULTILINE)
    kind = getattr(errors, found[-1][0], None) if found else None
    if isinstance(kind, type) and issubclass(kind, EventBusError):
        return kind(found[-1][1])
    return error
