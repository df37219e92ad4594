"""Tables: the latest state of each key of a topic in memory, for handlers to look up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from eventbus.client.tables.table import Table as Table
    from eventbus.client.tables.table import table_spec as table_spec

# Names are imported on first use: most buses have no table.
__getattr__, __dir__ = lazy_names(globals(), {"table": ("Table", "table_spec")})
