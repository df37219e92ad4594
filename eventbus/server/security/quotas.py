"""Quotas for the bytes per second that a client sends and receives, like Kafka's ``ClientQuotaManager`` (KIP-13,
KIP-55).

Requests are not refused: a client above the quota gets its answer with a throttle time, during which its connection is
not read (KIP-219), so that the rate over the last seconds falls to the quota.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from eventbus.coordinator.quotas import CLIENT_ID, USER, Entity

UNLIMITED = 1 << 62
PRODUCE = "producer_byte_rate"
FETCH = "consumer_byte_rate"


class Rate:
    """Bytes per second over the last ``samples`` windows, including the current one (Kafka's ``Rate``)."""

    __slots__ = ("_samples", "_sum", "_window_ms", "_windows", "used_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._samples = samples
        self._window_ms = window_ms
        self._windows: deque[tuple[int, int]] = deque()
        """The start and the bytes of each window."""
        self._sum = 0
        self.used_ms = 0

    def record(self, amount: int, now_ms: int) -> None:
        """Count ``amount`` bytes; a negative amount cancels what was counted just before."""
        self.used_ms = now_ms
        windows = self._windows
        if windows and now_ms - windows[-1][0] < self._window_ms:
            began_ms, total = windows[-1]
            windows[-1] = (began_ms, total + amount)
        else:
            windows.append((now_ms, amount))
        self._sum += amount

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return how long to wait until the rate is back at ``limit`` bytes per second; 0 if it is not above."""
        if self.is_zero(now_ms):
            return 0
        elapsed_ms = now_ms - self._windows[0][0]
        missing = self._samples - 1 - elapsed_ms // self._window_ms
        if missing > 0:  # a burst counts as if it had been spread over all windows
            elapsed_ms += missing * self._window_ms
        rate = self._sum * 1_000 / elapsed_ms if elapsed_ms else float(self._sum)
        return round((rate - limit) / limit * elapsed_ms) if rate > limit else 0

    def is_zero(self, now_ms: int) -> bool:
        """True if the windows count no bytes."""
        windows = self._windows
        while windows and now_ms - windows[0][0] >= self._samples * self._window_ms:
            self._sum -= windows.popleft()[1]
        return not self._sum


class Quotas:
    """Finds the quota for each client, and measures rates. ``values`` is the live table of quotas."""

    def __init__(self, values: Mapping[Entity, Mapping[str, float]], samples: int = 11, window_ms: int = 1_000) -> None:
        self._values = values
        self._samples = samples
        self._window_ms = window_ms
        self._rates: dict[tuple[str, str, str], Rate] = {}
        self._next_sweep_ms = 0

    def produced(self, principal: str, client_id: str, size: int, now_ms: int) -> int:
        """Count a produce request of ``size`` bytes; return its throttle time in milliseconds."""
        found = self._rate(PRODUCE, principal, client_id, now_ms) if self._values else None
        if found is None:
            return 0
        limit, rate = found
        rate.record(size, now_ms)
        return rate.throttle_ms(limit, now_ms)

    def fetched(self, principal: str, client_id: str, size: int, now_ms: int) -> int:
        """Count a fetch answer of ``size`` bytes; return its throttle time in milliseconds.

        Above 0 the answer must not be sent, and was not counted: send an empty answer with that throttle time. The
        first answer after a while is always sent: a batch may be larger than all that the quota allows at once.
        """
        found = self._rate(FETCH, principal, client_id, now_ms) if self._values else None
        if found is None:
            return 0
        limit, rate = found
        is_first = rate.is_zero(now_ms)
        rate.record(size, now_ms)
        throttle_ms = 0 if is_first else rate.throttle_ms(limit, now_ms)
        if throttle_ms:
            rate.record(-size, now_ms)
        return throttle_ms

    def fetch_limit_bytes(self, principal: str, client_id: str) -> int:
        """Return the most that an answer may hold: what the quota allows in all of its windows."""
        if not self._values:
            return UNLIMITED
        found = self._find(FETCH, _user(principal), client_id)
        return UNLIMITED if found is None else int(found[0] * (self._samples - 1) * self._window_ms / 1_000)

    def _rate(self, key: str, principal: str, client_id: str, now_ms: int) -> tuple[float, Rate] | None:
        """Return the quota that applies, and the rate to compare with it."""
        found = self._find(key, _user(principal), client_id)
        if found is None:
            return None
        limit, user, client = found
        rate = self._rates.get((key, user, client))
        if rate is None:
            self._sweep(now_ms)
            rate = self._rates[key, user, client] = Rate(self._samples, self._window_ms)
        return limit, rate

    def _find(self, key: str, user: str, client_id: str) -> tuple[float, str, str] | None:
        """Return the quota that applies, and its rate's user and client: a user's quota covers all of its clients
        together.

        The order is Kafka's: specific entities take precedence over defaults, and users over clients.
        """
        for entity, rate_user, rate_client in (
            (((CLIENT_ID, client_id), (USER, user)), user, client_id),
            (((CLIENT_ID, None), (USER, user)), user, client_id),
            (((USER, user),), user, ""),
            (((CLIENT_ID, client_id), (USER, None)), user, client_id),
            (((CLIENT_ID, None), (USER, None)), user, client_id),
            (((USER, None),), user, ""),
            (((CLIENT_ID, client_id),), "", client_id),
            (((CLIENT_ID, None),), "", client_id),
        ):
            limit = self._values.get(entity, {}).get(key)
            if limit is not None:
                return limit, rate_user, rate_client
        return None

    def _sweep(self, now_ms: int) -> None:
        """Remove rates that have become zero: client ids are free text, and some clients generate one per process."""
        if now_ms < self._next_sweep_ms:
            return
        kept_ms = self._samples * self._window_ms
        self._next_sweep_ms = now_ms + kept_ms
        idle = [key for key, rate in self._rates.items() if now_ms - rate.used_ms >= kept_ms]
        for key in idle:
            del self._rates[key]


def _user(principal: str) -> str:
    return principal.partition(":")[2]
