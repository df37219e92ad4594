"""The relay: publishes committed events from the outbox's table, exactly once and in the order of each key.

- ``relay``, ``work``: the part of a bus, and its steps
- ``lease_keeper``, ``shard_leases``, ``hosts``: take, renew, share and take over the leases of shards
- ``rows``, ``row_filters``, ``topic_waits``, ``poison``, ``releases``: which rows are published now
- ``publishing``, ``receipts``, ``batches``, ``cleaning``: publish once, and detect a restored database
"""
