"""Call handlers with records, store what they publish, and then commit their offsets (steps 5 to 7 of DESIGN.md).

- ``runner``, ``dispatch``, ``batches``, ``calls``, ``call_loop``: take fetched records and call the handler
- ``partition_work``, ``progress``, ``ordering``, ``work_actions``: the state of a partition's records, pure
- ``partition_driver``, ``drivers``, ``turns``, ``workers``: perform its actions in order, by key, or side by side
- ``offset_commits``, ``moves``: commit offsets, alone or with records moved to a retry or dead-letter topic
- ``exactly_once``: one transaction per slice of records
- ``failing``, ``retries``, ``recovering``, ``delayed``, ``waiting_out``: failures, retry policies, outages. Dead
  letters are built in `dlq.recovery` and written by ``moves``
- ``handovers``: partitions that are revoked or lost
- ``watch``, ``crash_marks``: calls that take too long, and records that kill the process
- ``handlers``, ``signatures``, ``options``, ``injection``, ``middleware``: what a handler declares
- ``stored_places``: where a handler with ``tx=`` begins
"""
