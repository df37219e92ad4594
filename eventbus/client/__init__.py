"""The bus, its decorators, explicit clients and the runner.

- ``bus``, ``bus_run``: the bus, and one run of it from opening to closing
- ``decorators``, ``declarations``, ``router``: decorators, and what they declare
- ``producer``, ``partitioner``, ``sending``, ``producing``: how a record gets its bytes and its partition
- ``consumer``, ``consuming``, ``rebalance``: a consumer for your own loop
- ``transaction``, ``requests``, ``replies``, ``interceptors``, ``admin``: one module each
- ``handling``: records to handlers, with retries, commits and time limits
- ``scheduling``, ``tables``: records for later and timetables; tables of the latest value per key
- ``health``, ``metrics``, ``running``, ``blocked_loop``: observation of a run
- ``configuration``, ``config``, ``keywords``, ``log_url``: where settings come from
- ``threads``, ``blocking``: calls from other threads, and programs without an event loop
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from eventbus.client.blocking import BlockingBus as BlockingBus
    from eventbus.client.bus_run import BusRun as BusRun
    from eventbus.client.bus_run import Plan as Plan
    from eventbus.client.config import consumer_settings as consumer_settings
    from eventbus.client.config import serdes_given as serdes_given
    from eventbus.client.configuration.resolution import configure as configure
    from eventbus.client.consumer import Consumer as Consumer
    from eventbus.client.context import BusContext as BusContext
    from eventbus.client.handling.current_record import inside_handler as inside_handler
    from eventbus.client.health import BusHealth as BusHealth
    from eventbus.client.metrics import BusMetrics as BusMetrics
    from eventbus.client.metrics import bus_metrics as bus_metrics
    from eventbus.client.producing.joining import outside_calls as outside_calls
    from eventbus.client.rebalance import RebalanceListener as RebalanceListener
    from eventbus.client.running.start_checks import check_groups as check_groups
    from eventbus.client.scheduling.schedules import Schedules as Schedules
    from eventbus.client.schema_uses import prepare as prepare
    from eventbus.client.schema_uses import uses_of_types as uses_of_types

# What `EventBus` needs besides its own methods. Names are imported on first use: the settings and the log when a bus is
# created, the runtime of handlers and clients when it starts.
_HOMES = {
    "blocking": ("BlockingBus",),
    "bus_run": ("BusRun", "Plan"),
    "config": ("consumer_settings", "serdes_given"),
    "configuration.resolution": ("configure",),
    "consumer": ("Consumer",),
    "context": ("BusContext",),
    "handling.current_record": ("inside_handler",),
    "health": ("BusHealth",),
    "metrics": ("BusMetrics", "bus_metrics"),
    "producing.joining": ("outside_calls",),
    "rebalance": ("RebalanceListener",),
    "running.start_checks": ("check_groups",),
    "scheduling.schedules": ("Schedules",),
    "schema_uses": ("prepare", "uses_of_types"),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)
