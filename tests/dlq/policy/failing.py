"""Records that fail repeatedly, and the decisions of a policy about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from dlq import Retry
from dlq.policy import Policy
from dlq.recovery import PolicyRecovery
from eventbus.recovery import Again, Handling, Move, Verdict, WaitHere
from eventbus.types import ConsumerRecord, TimestampType

HANDLING = Handling(handler="bill", group="billing", topics=("orders",))
FAR = 10**9


def record(offset: int = 128, value: bytes | None = b"v", headers: tuple[tuple[str, bytes | None], ...] = ()):
    return ConsumerRecord("orders", 3, offset, 1_700_000_000_000, TimestampType.CREATE_TIME, b"k", value, headers)


def at_work(
    policy: Retry, dead_letter: bool | str = True, *, handling: Handling = HANDLING, chance: float = 0.0
) -> PolicyRecovery:
    """Open a policy with a fixed ``chance`` for its jitter."""
    opened = Policy(policy, dead_letter).open(handling)
    assert isinstance(opened, PolicyRecovery)
    return PolicyRecovery(
        policy, handling, opened.order, opened.retry_topic, opened.dead_letter_topic, chance=lambda: chance
    )


class Runner:
    """Call a policy for one record as a runner does, with a fake clock."""

    def __init__(self, recovery: PolicyRecovery, one: ConsumerRecord | None = None, now_ms: int = 1_000) -> None:
        self.recovery = recovery
        self.record = record() if one is None else one
        self.now_ms = now_ms
        self.tries = 0

    def fails(self, error: Exception) -> Verdict:
        """Let the next call fail, then advance the clock to the call after it."""
        self.tries += 1
        verdict = self.recovery.decide(self.record, error, self.tries, self.now_ms)
        if isinstance(verdict, WaitHere):
            self.tries -= 1  # the runner does not count a call that asked to wait here
            self.now_ms += round(verdict.seconds * 1000)
        elif isinstance(verdict, Move) and verdict.kind == "retry":
            self.moved(verdict)
        return verdict

    def moved(self, verdict: Move) -> None:
        """Return the record from the retry topic when it is due, as if to another member."""
        self.tries = 0
        self.record = msgspec.structs.replace(self.record, headers=verdict.outgoing.record.headers)
        self.now_ms = max(self.now_ms, due_ms(verdict))

    def story(self, error: Callable[[], Exception], most: int = 100) -> Iterator[str]:
        """Yield the decisions in short form, up to the one that ends the record."""
        for _ in range(most):
            before = self.now_ms
            verdict = self.fails(error())
            yield told(verdict, before)
            if not isinstance(verdict, (Again, WaitHere)) and not (
                isinstance(verdict, Move) and verdict.kind == "retry"
            ):
                return


def told(verdict: Verdict, now_ms: int) -> str:
    if isinstance(verdict, Again):
        return "again"
    if isinstance(verdict, WaitHere):
        return f"here {verdict.seconds:g}"
    if isinstance(verdict, Move) and verdict.kind == "retry":
        return f"later {(due_ms(verdict) - now_ms) / 1000:g}"
    if isinstance(verdict, Move):
        return f"dead {header(verdict, 'eb-dlq-reason')} {header(verdict, '__dlq.errors.delivery.count')}"
    return type(verdict).__name__.lower()


def header(verdict: Verdict, name: str) -> str:
    assert isinstance(verdict, Move)
    return (dict(verdict.outgoing.record.headers)[name] or b"").decode()


def due_ms(verdict: Verdict) -> int:
    return int(header(verdict, "eb-retry-due"))
