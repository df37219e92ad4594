"""Rows that are in the log are deleted beside what is published next: nobody waits for a delete.

Until that is done, each receipt names them too, so that a crash does not bring them back.
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
"""After a delete that failed: the rows are in no hurry."""

Delete = Callable[[Sequence["Published"]], Awaitable[object]]
"""Delete the rows of all these batches in one transaction."""


class Published(msgspec.Struct, frozen=True):
    """A batch that is in the log."""

    part: Part
    number: int
    """Batches of a slot are numbered without gaps."""
    event_ids: tuple[str, str]
    """The least and the greatest. A row with an id of the batch but another event id is a new one: a sequence that was
    restarted under a running relay has given the id again."""


class Cleaner:
    """Of one relay. Deleting rows twice does no harm, so whoever wants them gone deletes them."""

    def __init__(self, delete: Delete) -> None:
        self._delete = delete
        self.open: tuple[Published, ...] = ()
        """Published, and perhaps still in the table."""
        self.trouble = ""
        """Why published rows are not deleted now. Their receipts grow, and at last publishing waits for the deletes."""
        self.on_clean: Callable[[], object] = _nothing
        """Called when there is nothing left."""
        self._wanted = anyio.Event()
        self._enough = anyio.Event()

    @property
    def rows(self) -> int:
        """How many they are."""
        return sum(len(batch.part.ids) for batch in self.open)

    @property
    def parts(self) -> list[Part]:
        """Their parts of a receipt."""
        return [batch.part for batch in self.open]

    def ids(self) -> list[int]:
        """In ascending order."""
        return sorted(chain.from_iterable(batch.part.ids for batch in self.open))

    def add(self, batch: Published) -> None:
        """These rows are in the log."""
        self.open = (*self.open, batch)
        self._wanted.set()
        if self.rows >= _ENOUGH_ROWS:
            self._enough.set()

    def hurry(self) -> None:
        """Nothing comes for now."""
        self._enough.set()

    def forget(self) -> None:
        """They are gone, or somebody else sees to them."""
        self.trouble = ""
        self.open = ()

    async def clean(self) -> None:
        """Return when none of them is in the table. Raises what the database raises."""
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
        """Clean whenever there is something, for ever."""
        while True:
            self._wanted = anyio.Event()
            self._enough = anyio.Event()
            if not self.open:
                await self._wanted.wait()
            if self.rows < _ENOUGH_ROWS:
                with anyio.move_on_after(_GATHER_SECONDS):  # few large deletes are better than many small ones
                    await self._enough.wait()
            try:
                await self._delete_open()
            except Exception as error:  # whoever publishes meets it too, and says it
                logger.debug("published rows were not deleted: %s", error)
                self.trouble = f"{type(error).__name__}: {error}".partition("\n")[0]
                await anyio.sleep(_AGAIN_SECONDS)
            if not self.open:
                self.on_clean()


def _nothing() -> None:
    """Nobody waits."""
