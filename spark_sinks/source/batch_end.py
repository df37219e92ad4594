"""Read the end of a micro-batch from Spark's own file, the only file of Spark that a landing reads (D-77).

Spark writes ``offsets/<batch>`` into the checkpoint before it runs a batch (``OffsetSeqLog``): a version, its own
metadata, and a line of JSON per source. The public API shows the end only after the batch, in its progress, but a
landing commits it together with the rows. The rows do not show it, because the last offsets of a partition may be
transaction markers. The checkpoint belongs to a single run of Spark, so an unknown format ends the landing with an
error, and the table is unchanged.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from eventbus.errors import CorruptRecord


def batch_end(checkpoint: Path, batch_id: int, topic: str) -> dict[int, int]:
    """Return the end offset of a batch by partition."""
    path = checkpoint / "offsets" / str(batch_id)
    try:
        source = path.read_text("utf-8").splitlines()[2]
        end = msgspec.json.decode(source, type=dict[str, msgspec.Raw])[topic]
        return msgspec.json.decode(end, type=dict[int, int])
    except (OSError, IndexError, KeyError, msgspec.DecodeError) as error:
        told = f"{type(error).__name__}: {error}"
        raise CorruptRecord(f"{path} is not what Spark writes there ({told}): land again") from error
