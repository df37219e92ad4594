"""The options of ``@consumer`` and ``@producer``: what they are, and which of them contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Literal, cast

import msgspec

from eventbus.client.config import assignor_names, producer_settings, read_isolation, read_start
from eventbus.client.handling.functions import is_async, name_of, takes
from eventbus.client.handling.middleware import check_middleware
from eventbus.client.partitioner import PartitionFunction
from eventbus.durations import seconds
from eventbus.errors import ConfigError
from eventbus.recovery import policy_of
from eventbus.settings.setting import Setting, as_keyword
from eventbus.settings.table import OF_A_CONSUMER, OF_A_HANDLER, advice, find, known, read, rows
from eventbus.suggest import nearest
from eventbus.topic_patterns import check_pattern, matches
from eventbus.types import ConsumerRecord, IsolationLevel
from eventbus.units_of_work import units_of

OnError = Literal["stop", "skip", "crash"]
"""A handler raised: stop that partition loudly, log and go on, or end the whole bus."""
Order = Literal["partition", "key", "none", "global"]
"""Which records wait for each other: those of a partition, of a key, none, or all of the topic."""
Delivery = Literal["at-least-once", "at-most-once"]
"""Records are committed after their handling, or before it."""
Guarantee = Literal["at-least-once", "at-most-once", "exactly-once"]
"""Offsets are committed after a record is handled, before it, or in one transaction with its outputs."""
Ack = Literal["auto", "manual"]
"""A record is finished when its handler has returned, or when ``record.ack()`` was called."""

_CONSUMER_OPTIONS = (
    "start", "isolation_level", "group_instance_id", "partition_assignment_strategy", "session_timeout_ms",
    "max_poll_interval_ms",
)  # fmt: skip


@cache
def _options() -> Mapping[str, Setting]:
    """Return the options of a handler by each name that is accepted; those of its consumer are among them."""
    return {**known(*OF_A_CONSUMER), **known("librdkafka consumer", own=True), **known(*OF_A_HANDLER)}


class ConsumerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``@consumer``, described by `eventbus.settings.handlers`."""

    topics: tuple[str, ...]
    pattern: str | None = None
    group: str | None = None
    start: Any = "earliest"
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    batch: bool | int = False
    on_error: OnError = "stop"
    retry: Any = None
    """A `FailurePolicy` that says what becomes of a failing record; where it says "stop", ``on_error`` decides."""
    tx: Any = None
    """`UnitsOfWork`: each call is a database transaction that holds the offset too."""
    name: str | None = None
    concurrency: int | None = None
    order: Order = "partition"
    delivery: Guarantee = "at-least-once"
    timeout: float | None = None
    """Seconds a call may take."""
    ack: Ack = "auto"
    commit_every: int | None = None
    commit_interval_ms: int = 100
    middleware: tuple[Callable[..., Any], ...] = ()
    filter: Callable[[ConsumerRecord], bool] | None = None
    replies: bool = False
    max_unfinished: int = 10_000
    transaction_records: int = 500
    transaction_timeout_ms: int = 60_000
    group_instance_id: str | None = None
    partition_assignment_strategy: tuple[Any, ...] | None = None
    session_timeout_ms: int | None = None
    max_poll_interval_ms: int | None = None
    client: dict[str, Any] = {}
    """Further settings of its consumer: ``heartbeat_interval_ms``, ``fetch_min_bytes``, ``client_rack``, ..."""
    drain_timeout_ms: int = 30_000
    is_firing: bool = False
    """The handler was declared with ``@bus.every``, so it need not take the record."""
    group_prefix: str = ""
    """Comes before the function's name in the default group. Its router sets it."""

    @property
    def exactly_once(self) -> bool:
        """Records, what is published for them, and their offsets in one transaction."""
        return self.delivery == "exactly-once"

    @property
    def is_ordered(self) -> bool:
        """True if the records of a partition are handled in sequence."""
        return self.order in ("partition", "global")

    def reads(self, topic: str) -> bool:
        """True if ``topic`` is one of the topics, or matches the pattern."""
        return topic in self.topics or (self.pattern is not None and matches(self.pattern, topic))

    def consumer_options(self) -> dict[str, Any]:
        """Return the options of the handler's consumer; options that were not given keep their defaults."""
        options = {name: getattr(self, name) for name in _CONSUMER_OPTIONS}
        return {**self.client, **{name: value for name, value in options.items() if value is not None}}


class ProducerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``@producer``."""

    topic: str
    key: Callable[[Any], Any] | None = None
    partitioner: str | PartitionFunction | None = None
    config: dict[str, Any] = {}
    """Settings of the function's separate producer; empty if it uses the bus's."""


def producer_spec(
    topic: str,
    key: Callable[[Any], Any] | None,
    partitioner: str | PartitionFunction | None,
    config: Mapping[str, Any],
) -> ProducerSpec:
    """Return the options of ``@producer``, checked. Raises ConfigError."""
    if "transactional_id" in map(as_keyword, config):
        raise ConfigError(
            f"@producer({topic!r}) takes no transactional_id, because it does not begin or commit transactions. Use "
            "`async with bus.transaction(id)`; under @consumer(exactly_once=True) outputs are in a transaction anyway"
        )
    if key is not None and (not callable(key) or is_async(key) or not takes(key, 1)):
        raise ConfigError(
            f"@producer({topic!r}): key={key!r}: a plain function of the value: key=lambda order: order.id"
        )
    producer_settings(config)
    return ProducerSpec(topic=topic, key=key, partitioner=partitioner, config=dict(config))


def consumer_spec(topics: str | Sequence[str], options: dict[str, Any]) -> ConsumerSpec:
    """The options of ``@consumer``, checked. Raises ConfigError naming what is wrong and the nearest right name."""
    names = _names(topics)
    where = f"@consumer({', '.join(map(repr, names))})"
    for option in options:
        if find(option, _options()) is None:
            of_handlers = rows(*OF_A_HANDLER)
            hint = advice(option, _options())
            hint = f": {hint}" if hint else nearest(option, of_handlers)
            raise ConfigError(f"@consumer has no option {option!r}{hint}; it has {', '.join(of_handlers)}")
    if options.get("delivery") in ("exactly-once", "exactly_once"):
        raise ConfigError(f"{where}: delivery={options['delivery']!r}: the option is exactly_once=True")
    own, client = _read(options, where)
    own = _translated(own, where)
    read_start(own.get("start", "earliest"))
    spec = ConsumerSpec(topics=names, client=client, **own)
    if bool(names) == (spec.pattern is not None):
        raise ConfigError('@consumer takes topics or pattern="...", one of the two')
    if spec.pattern is not None:
        check_pattern(spec.pattern, f"@consumer(pattern={spec.pattern!r})")
    if spec.group == "":
        raise ConfigError(f"{where}: group='': a name; without group= it is named after the bus and the function")
    if spec.batch is not False and (not isinstance(cast(object, spec.batch), int) or spec.batch < 1):
        raise ConfigError(f"{where}: batch={spec.batch!r}: True for a whole fetch, or how many records at most")
    _check_delivery(spec, own, where)
    _check_order(spec, where)
    _check_retry(spec, where)
    _check_tx(spec, where)
    _check_replies(spec, where)
    return spec


def _read(options: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the handler's own options, and the settings of its consumer."""
    given, passed = read(options, _options(), "handler", where)
    fields = ("exactly_once", "dead_letter", *ConsumerSpec.__struct_fields__)
    values = {name: value for name, value in given.items() if name in fields}
    client: dict[str, Any] = {name: value for name, value in given.items() if name not in fields}
    client |= {as_keyword(name): value for name, value in passed.items()}
    if values.get("timeout") is not None:
        values["timeout"] = seconds(values["timeout"], f"{where}: timeout={values['timeout']!r}", "; None for no limit")
    assignors = values.get("partition_assignment_strategy")
    if assignors is not None:
        values["partition_assignment_strategy"] = assignor_names(assignors)
    return values, client


def tuned(spec: ConsumerSpec, options: Mapping[str, Any], where: str) -> ConsumerSpec:
    """Return the options of a handler, changed by settings from outside of the program.

    Only limits, intervals and consumer settings may be changed. The topics, order, delivery and failure policy of a
    handler are part of the program. Raises ConfigError for other options, wrong values, and contradictions.
    """
    for name in options:
        row = find(name, _options())
        if row is None or (row.scope in OF_A_HANDLER and row.name not in _tunable()):
            hint = "no option of a handler" if row is None else "it defines the handler, and is set in the program"
            near = nearest(name, _tunable()) if row is None else ""
            here = ", ".join(_tunable())
            raise ConfigError(f"{where}: {name}: {hint}{near}; here are {here}, and consumer settings")
    own, client = _read(options, where)
    new = msgspec.structs.replace(spec, client={**spec.client, **client}, **own)
    _check_delivery(new, own, where)
    _check_order(new, where)
    _check_tx(new, where)
    return new


def _tunable() -> list[str]:
    """Return the numbers among the options, and those that concern one process."""
    numbers = [row.name for row in rows(*OF_A_HANDLER).values() if row.kind in ("int", "long")]
    return [*numbers, "timeout", "group_instance_id", "client_id"]


def _names(topics: Any) -> tuple[str, ...]:
    """Return the topic or topics as a tuple. Raises ConfigError for an invalid topic name."""
    example = '@consumer("orders", group="billing"), or a list of names'
    if isinstance(topics, str):
        topics = (topics,)
    if not isinstance(topics, Collection) or isinstance(topics, (bytes, Mapping)):
        raise ConfigError(f"@consumer takes the topic, not {topics!r}: {example}")
    names = tuple(cast("Collection[Any]", topics))
    for name in names:
        if not isinstance(name, str) or not name or names.count(name) > 1:
            is_name = isinstance(name, str) and name
            what = f"names {name!r} twice" if is_name else f"takes the topic's name, not {name!r}"
            raise ConfigError(f"@consumer {what}: {example}")
    return cast("tuple[str, ...]", names)


def _translated(options: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the same options in the form that the spec has them."""
    options = dict(options)
    if "isolation_level" in options:
        options["isolation_level"] = read_isolation(options["isolation_level"], f"{where}: ")
    _translate_exactly_once(options, where)
    if "retry" in options or "dead_letter" in options:
        options["retry"] = policy_of(options.get("retry"), options.pop("dead_letter", None), where)
    if options.get("tx") is not None:
        options["tx"] = units_of(options["tx"], where)
    if "middleware" in options:
        options["middleware"] = check_middleware(options["middleware"], where)
    chosen = options.get("filter")
    if chosen is not None and (not callable(chosen) or is_async(chosen) or not takes(chosen, 1)):
        what = f"{chosen!r} is not a function"
        if callable(chosen):
            what = f"{name_of(chosen)!r} {'is an async function' if is_async(chosen) else 'takes other arguments'}"
        raise ConfigError(
            f"{where}: filter {what}: it takes the record and says at once whether the handler is to see it, "
            "filter=lambda record: record.key is not None; what has to wait belongs into a middleware"
        )
    return options


def _translate_exactly_once(options: dict[str, Any], where: str) -> None:
    """Put ``exactly_once=True`` into ``delivery``, which holds all three guarantees in the spec."""
    if not options.pop("exactly_once", False):
        return
    if "delivery" in options:
        raise ConfigError(
            f"{where}: exactly_once=True and delivery={options['delivery']!r} contradict each other: leave one of the "
            "two out"
        )
    options["delivery"] = "exactly-once"


def _check_delivery(spec: ConsumerSpec, options: dict[str, Any], where: str) -> None:
    if not spec.exactly_once:
        return
    if spec.isolation_level is not IsolationLevel.READ_COMMITTED:
        raise ConfigError(
            f"{where}: exactly_once=True reads what is committed; with isolation_level='read_uncommitted' it would "
            "publish results of records that never were: leave isolation_level out"
        )
    for name in ("commit_every", "commit_interval_ms"):
        if name in options:
            raise ConfigError(
                f"{where}: {name} and exactly_once=True contradict each other: its transactions commit, each of "
                "up to transaction_records= records"
            )


def _check_retry(spec: ConsumerSpec, where: str) -> None:
    if spec.retry is None:
        return
    if spec.delivery == "at-most-once":
        raise ConfigError(
            f"{where}: retry= (or dead_letter=) and delivery='at-most-once' contradict each other: a record that "
            "counts as finished before it is handled is not tried again; leave one of the two out"
        )


def _check_tx(spec: ConsumerSpec, where: str) -> None:
    """A database transaction finishes its records in their order, by committing."""
    if spec.tx is None:
        return
    contradictions = {
        _given_delivery(spec): (
            spec.delivery != "at-least-once",
            "the offset is in the database's transaction, so each record counts once there; to publish with it, use an "
            "Outbox in the same transaction",
        ),
        f"order={spec.order!r}": (
            not spec.is_ordered,
            "the stored offset says that everything before it is done; partitions are handled side by side",
        ),
        "ack='manual'": (spec.ack == "manual", "a record is finished when its transaction is committed"),
        f"timeout={spec.timeout}": (
            spec.timeout is not None,
            "whether a call that is cancelled has committed cannot be known; limit it inside, with anyio.fail_after() "
            "or the database's statement timeout: then it is rolled back like any failure",
        ),
    }
    for what, (is_there, reason) in contradictions.items():
        if is_there:
            raise ConfigError(f"{where}: tx= and {what} contradict each other: {reason}")


def _given_delivery(spec: ConsumerSpec) -> str:
    return "exactly_once=True" if spec.exactly_once else f"delivery={spec.delivery!r}"


def _check_replies(spec: ConsumerSpec, where: str) -> None:
    contradictions = {
        "batch": (spec.batch, "a batch holds requests of several"),
        "exactly_once=True": (spec.exactly_once, "a reply is read at once, even if the transaction is aborted later"),
    }
    for what, (is_there, reason) in contradictions.items():
        if spec.replies and is_there:
            raise ConfigError(
                f"{where}: replies=True and {what} contradict each other: {reason}; leave one of the two out"
            )


def _check_order(spec: ConsumerSpec, where: str) -> None:
    loose = None if spec.is_ordered else f"order={spec.order!r}"
    manual = None if spec.ack == "auto" else "ack='manual'"
    if spec.delivery != "at-least-once" and (loose or manual):
        reasons = {
            "exactly-once": "a transaction commits the records of a partition in their order, all that it holds",
            "at-most-once": "a record counts as finished before it is handled",
        }
        raise ConfigError(
            f"{where}: {loose or manual} and {_given_delivery(spec)} contradict each other: "
            f"{reasons[spec.delivery]}; leave one of the two out"
        )
    if spec.batch and loose:
        raise ConfigError(
            f"{where}: batch and {loose} contradict each other: a batch is a run of records of one partition, in "
            "their order; leave one of the two out"
        )
    if spec.order == "key" and (spec.concurrency is None or spec.concurrency < 2):
        raise ConfigError(
            f"{where}: order='key' handles keys side by side, and concurrency={spec.concurrency} has no room for two: "
            "say how many, concurrency=32 (or leave order out: partitions side by side)"
        )
