"""Scheduled records: ``send(..., delay=)``, `cancel_scheduled`, and functions called at times (``@bus.every``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from eventbus.client.scheduling.timed_functions import table_of as table_of
    from eventbus.client.scheduling.timed_functions import timed_handler as timed_handler

# Names are imported on first use: most buses have no timed function.
__getattr__, __dir__ = lazy_names(globals(), {"timed_functions": ("table_of", "timed_handler")})
