"""Delete published rows while the next batch is published, so that publishing does not wait for deletes.

Until its rows are deleted, a batch is listed in each receipt, so that a crash does not lead to publishing it again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain

import anyio
import msgspec

from outbox.relay.receipts import Part

logger = logging.getLogger("outbox")

_ENOUGH_ROWS = 500
_GATHER_SECONDS = 0.02
_AGAIN_SECONDS = 1.0
"""Pause after a failed delete. Deleting is not urgent."""

Delete = Callable[[Sequence["Published"]], Awaitable[object]]
"""Delete the rows of all these batches in one transaction."""


class Published(msgspec.Struct, frozen=True):
    """A batch that is in the log and whose rows may still be in the table."""

    part: Part
    number: int
    """Number of the batch. Batches of a slot are numbered without gaps."""
    event_ids: tuple[str, str]
    """The lowest and the highest event id. A row with an id of the batch but another event id is a new row, written
    after the sequence was restarted under a running relay.
    """


class Cleaner:
    """Deletes the published rows of one relay. Deleting a row twice is harmless."""

    def __init__(self, delete: Delete) -> None:
        self._delete = delete
        self.open: tuple[Published, ...] = ()
        """Batches that are published, and whose rows may still be in the table."""
        self.trouble = ""
        """Why published rows cannot be deleted now. The receipts grow meanwhile, until publishing waits for the
        deletes.
        """
        self.on_clean: Callable[[], object] = _nothing
        """Called when all published rows are deleted."""
        self._wanted = anyio.Event()
        self._enough = anyio.Event()

    @property
    def rows(self) -> int:
        """Number of published rows that may still be in the table."""
        return sum(len(batch.part.ids) for batch in self.open)

    @property
    def parts(self) -> list[Part]:
        """The parts of the open batches, for a receipt."""
        return [batch.part for batch in self.open]

    def ids(self) -> list[int]:
        """Return the ids of the published rows, ascending."""
        return sorted(chain.from_iterable(batch.part.ids for batch in self.open))

    def add(self, batch: Published) -> None:
        """Add a batch whose rows are in the log."""
        self.open = (*self.open, batch)
        self._wanted.set()
        if self.rows >= _ENOUGH_ROWS:
            self._enough.set()

    def hurry(self) -> None:
        """Delete soon, because no more rows are being published."""
        self._enough.set()

    def forget(self) -> None:
        """Forget all batches. Their rows are deleted, or listed in a receipt."""
        self.trouble = ""
        self.open = ()

    async def clean(self) -> None:
        """Delete all published rows. Raises what the database raises."""
        while self.open:
            await self._delete_open()

    async def _delete_open(self) -> None:
        done = self.open
        if not done:
            return
        await self._delete(done)
        self.open = tuple(batch for batch in self.open if batch not in done)
        self.trouble = ""

    async def run(self) -> None:
        """Delete published rows until cancelled."""
        while True:
            self._wanted = anyio.Event()
            self._enough = anyio.Event()
            if not self.open:
                await self._wanted.wait()
            if self.rows < _ENOUGH_ROWS:
                with anyio.move_on_after(_GATHER_SECONDS):  # a few large deletes are cheaper than many small ones
                    await self._enough.wait()
            try:
                await self._delete_open()
            except Exception as error:  # publishing runs into the error too, and reports it
                logger.debug("published rows were not deleted: %s", error)
                self.trouble = f"{type(error).__name__}: {error}".partition("\n")[0]
                await anyio.sleep(_AGAIN_SECONDS)
            if not self.open:
                self.on_clean()


def _nothing() -> None:
    """Do nothing when all rows are deleted."""
