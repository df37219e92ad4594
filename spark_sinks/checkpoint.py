"""Spark's checkpoint of a landing: read for a batch's end, and thrown away when it contradicts the ledger.

Spark's layout since 2.1 (``OffsetSeqLog``): ``offsets/<batch>`` is written before a batch runs and holds a version
line, a metadata line and one line of JSON per source: its *end* offset. ``commits/<batch>`` follows when it is through.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from eventbus.errors import CorruptRecord


class Checkpoint:
    """The checkpoint directory of a query with one source, which reads one topic."""

    def __init__(self, directory: Path, topic: str) -> None:
        self.directory = directory
        self._topic = topic

    def end(self, batch_id: int) -> dict[int, int]:
        """The end offset of each partition in a planned batch."""
        path = self.directory / "offsets" / str(batch_id)
        try:
            source = path.read_text("utf-8").splitlines()[2]
            return msgspec.json.decode(source, type=dict[str, dict[int, int]])[self._topic]
        except (OSError, IndexError, KeyError, msgspec.DecodeError) as error:
            raise CorruptRecord(
                f"{path} is not what Spark writes there ({type(error).__name__}: {error}): remove {self.directory}, "
                f"the ledger beside it knows what was landed"
            ) from error

    def resume_point(self) -> dict[int, int]:
        """Where Spark would go on: the end of the last batch it finished; empty when there is none."""
        planned, finished = self._batches("offsets"), self._batches("commits")
        done = [batch for batch in planned if batch in finished]
        if done:
            return self.end(max(done))
        return self.end(max(planned) - 1) if planned and max(planned) - 1 in planned else {}

    def agrees_with(self, landed: dict[int, int]) -> bool:
        """Whether a query resumed here leaves nothing out: it must not begin beyond what the ledger holds.

        To begin before it is harmless: rows below the ledger are dropped.
        """
        try:
            return all(offset <= landed.get(partition, 0) for partition, offset in self.resume_point().items())
        except CorruptRecord:
            return False

    def remove(self) -> None:
        """Forget it; the next query starts from the ledger."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _batches(self, kind: str) -> set[int]:
        directory = self.directory / kind
        if not directory.is_dir():
            return set()
        return {int(path.name) for path in directory.iterdir() if path.name.isdigit()}
