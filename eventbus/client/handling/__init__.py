"""Call handlers with records, store what they publish, and then commit their offsets (steps 5 to 7 of DESIGN.md).

- ``runner``, ``dispatch``, ``batches``, ``invocation``, ``call_loop``: take fetched records and call the handler
- ``partition_work``, ``progress``, ``ordering``, ``work_actions``: the state of a partition's records, pure
- ``partition_driver``, ``drivers``, ``worker_pool``, ``concurrency_limiter``: perform the actions of a partition, in
  order or by workers
- ``offset_commits``, ``forwarding``: commit offsets, alone or with records moved to a retry or dead-letter topic
- ``exactly_once``: one transaction per slice of records
- ``failed_calls``, ``handler_errors``, ``in_place_retries``, ``outage_policy``: what becomes of a failed call
- ``failure_policy``, ``retry_partition``: the handler's failure policy, and records that wait in its retry topic. Dead
  letters are built in `dlq.recovery` and written by ``forwarding``
- ``revocation``: partitions that are revoked or lost
- ``call_timeouts``, ``poison_pill``: calls that take too long, and records that kill the process
- ``handlers``, ``signatures``, ``options``, ``injection``, ``middleware``: what a handler declares
- ``current_record``: the record that the calling code handles, for log lines and spans
- ``external_offsets``: the offset where a handler with ``tx=`` begins
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from eventbus.client.handling.handlers import Handler as Handler
    from eventbus.client.handling.handlers import ProducerFunction as ProducerFunction
    from eventbus.client.handling.handlers import calling_frame as calling_frame
    from eventbus.client.handling.handlers import marking as marking
    from eventbus.client.handling.options import consumer_spec as consumer_spec
    from eventbus.client.handling.result_serdes import serdes_meant as serdes_meant

# Names are imported on first use: a bus needs them when its first handler or producer function is declared.
_HOMES = {
    "handlers": ("Handler", "ProducerFunction", "calling_frame", "marking"),
    "options": ("consumer_spec",),
    "result_serdes": ("serdes_meant",),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)
