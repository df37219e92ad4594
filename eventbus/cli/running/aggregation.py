"""Combine the health and metrics of several workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress

import anyio

from eventbus.backends.clock import RealTimers
from eventbus.client.health import BusHealth, BusStatus
from eventbus.client.metrics import Sample
from eventbus.errors import RequestTimedOut
from eventbus.web.probes import Standing, said_of
from eventbus.web.sources import settled

_PROBE_SECONDS = 0.8
_SCRAPE_SECONDS = 6.0
"""A little longer than a worker waits for an answer of its own bus."""
_WORST_FIRST: tuple[BusStatus, ...] = ("failed", "starting", "degraded", "ok")


def aggregate(standings: Mapping[int, Standing]) -> Standing:
    """Return the health of the service, which is that of its worst worker: failed, then closing, then starting."""
    reports = {worker: said_of(standing) for worker, standing in standings.items()}
    statuses = {status for status, _ in reports.values()}
    for phase in ("closing", "stopped"):
        if phase in statuses and "failed" not in statuses:
            return Standing(phase=phase)
    worst = min((place for place, status in enumerate(_WORST_FIRST) if status in statuses), default=1)
    status = _WORST_FIRST[worst]
    healths = [standing.health for standing in standings.values() if standing.health is not None]
    return Standing(
        phase="running",
        health=BusHealth(
            status=status,
            reason="; ".join(
                f"worker {worker}: {reason}" for worker, (its, reason) in reports.items() if its == status
            ),
            handlers=tuple(handler for health in healths for handler in health.handlers),
            parts=tuple(part for health in healths for part in health.parts),
        ),
    )


def with_worker_label(worker: int, samples: Iterable[Sample]) -> list[Sample]:
    """Add the label ``worker``, so that the samples of different workers are different series."""
    return [sample._replace(labels={**sample.labels, "worker": str(worker)}) for sample in samples]


class WorkersSource:
    """A `eventbus.web.sources.Source` that queries all workers. Their answers arrive in futures."""

    def __init__(
        self,
        ask_standings: Callable[[], dict[int, Future[Standing]]],
        ask_samples: Callable[[], dict[int, Future[list[Sample]]]],
    ) -> None:
        self._ask_standings = ask_standings
        self._ask_samples = ask_samples
        self._timers = RealTimers()
        self._silent_since: dict[int, float] = {}
        """Workers that do not answer at all, and since when."""

    async def standing(self) -> Standing:
        standings: dict[int, Standing] = {}

        async def receive(worker: int, future: Future[Standing]) -> None:
            now = self._timers.current_time()
            try:
                standings[worker] = await settled(future, _PROBE_SECONDS)
                self._silent_since.pop(worker, None)
            except RequestTimedOut:
                since = self._silent_since.setdefault(worker, now)
                unanswered_ms = int((self._timers.current_time() - since) * 1000)
                standings[worker] = Standing(phase="running", unanswered_ms=unanswered_ms)

        async with anyio.create_task_group() as tasks:
            for worker, future in self._ask_standings().items():
                tasks.start_soon(receive, worker, future)
        return aggregate(standings)

    async def samples(self) -> list[Sample]:
        asked = self._ask_samples()
        found: dict[int, list[Sample]] = {}

        async def receive(worker: int, future: Future[list[Sample]]) -> None:
            with suppress(RequestTimedOut):
                found[worker] = await settled(future, _SCRAPE_SECONDS)

        async with anyio.create_task_group() as tasks:
            for worker, future in asked.items():
                tasks.start_soon(receive, worker, future)
        if len(found) < len(asked):
            raise RequestTimedOut(f"of {len(asked)} workers {len(found)} have answered")
        return [sample for worker in sorted(found) for sample in with_worker_label(worker, found[worker])]
