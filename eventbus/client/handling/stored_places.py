"""Where the partitions of a handler with ``tx=`` begin: where its database says."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from eventbus.backends.base import BackendConsumer
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.recovering import Recovering
from eventbus.errors import ConfigError
from eventbus.types import TopicPartition
from eventbus.units_of_work import OpenUnits, UnitsOfWork

logger = logging.getLogger("eventbus.runner")


class StoredPlaces:
    """Of one handler: the offsets in its database win over what its group says in the log.

    A record counts when its transaction is committed; the commit in the log comes later, or never. A partition without
    a stored offset begins where the group is, so a handler may be given a ``tx=`` at any time.
    """

    def __init__(
        self,
        handler: Handler[Any, Any],
        group: str,
        consumer: BackendConsumer,
        dispatch: Dispatch,
        recovering: Recovering | None,
    ) -> None:
        tx: UnitsOfWork = handler.spec.tx
        signature = handler.signature
        assert signature.unit_name is not None
        self._handler = handler
        self._consumer = consumer
        self._recovering = recovering
        self._units: OpenUnits = tx.open(handler.__name__, group, signature.unit_name, signature.unit)
        dispatch.in_units(self._units)
        if recovering is not None:
            recovering.on_passed = self._units.passed

    async def start(self) -> None:
        """Make the tables where they are missing. Raises ConfigError, and what the database raises."""
        await self._units.start()

    def stop(self) -> None:
        """Wait for no database any more."""
        self._units.stop()

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Before the first record of them is read. Raises ConfigError for an offset beyond the log's end."""
        recovering = self._recovering
        ours = [one for one in partitions if recovering is None or not recovering.is_retry(one.topic)]
        stored = await self._units.stored(ours)
        if not stored:
            return
        ends = await self._consumer.end_offsets(stored)
        committed = await self._consumer.committed(list(stored))
        for partition, offset in stored.items():
            end = ends.get(partition, offset)
            if offset > end:
                raise ConfigError(
                    f"handler {self._handler.__name__!r}: the database says that {partition} is handled up to offset "
                    f"{offset}, and the log ends at {end}: the topic was made anew, or the log is an older copy. Going "
                    "on would pass over new records as if they were known. To begin anew: await Inbox(...).forget("
                    "group, partition), or delete the row in the table of offsets"
                )
            self._consumer.seek(partition, offset)
            known = committed.get(partition)
            if known is None or known.offset <= offset:
                continue
            logger.info(
                "handler %r: %s begins at offset %d, as its database says; the group in the log is at %d",
                self._handler.__name__, partition, offset, known.offset,
            )  # fmt: skip
            if recovering is not None:
                # Somebody died between setting a record aside and saying so in the database, or the database was
                # restored from a backup: what is between the two may wait in the retry topic as well.
                self._units.doubt(partition, known.offset)


def places_of(
    handler: Handler[Any, Any],
    group: str,
    consumer: BackendConsumer,
    dispatch: Dispatch,
    recovering: Recovering | None,
) -> StoredPlaces | None:
    """None for a handler without ``tx=``."""
    return None if handler.spec.tx is None else StoredPlaces(handler, group, consumer, dispatch, recovering)
