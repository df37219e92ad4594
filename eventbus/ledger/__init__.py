"""State that is kept in a topic: found or created (``topic``), and read to its end (``reader``).

`eventbus.client.ledger_writer` writes it: one writer at a time, fenced by a transactional id.
"""

from eventbus.ledger.reader import ends_of, read_partitions, read_to_end
from eventbus.ledger.topic import find_or_create

__all__ = ["ends_of", "find_or_create", "read_partitions", "read_to_end"]
