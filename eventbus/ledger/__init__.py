"""State that is kept in a topic: read to the end and folded, and written by one fenced writer at a time.

``reader`` reads partitions to their ends. ``topic`` finds or creates the topic. ``writer`` stores decisions.
"""

from eventbus.ledger.reader import ends_of, read_partitions, read_to_end
from eventbus.ledger.topic import cleanup_policy, find_or_create
from eventbus.ledger.writer import LedgerBatch, LedgerProducer, LedgerRecord, LedgerWriter

__all__ = [
    "LedgerBatch",
    "LedgerProducer",
    "LedgerRecord",
    "LedgerWriter",
    "cleanup_policy",
    "ends_of",
    "find_or_create",
    "read_partitions",
    "read_to_end",
]
