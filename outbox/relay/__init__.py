"""The relay: publishes committed events from the outbox's table, exactly once and in the order of each key.

- ``relay``, ``work``: the part of a bus, and its steps
- ``lease_keeper``, ``slots``, ``hosts``: the lease: entered, renewed (`slots`), shared, taken over
- ``rows``, ``row_filters``, ``topic_waits``, ``poison``, ``releases``: which rows are published now
- ``publishing``, ``receipts``, ``batches``, ``cleaning``: publish once, and detect a restored database
"""
