"""The options of ``@consumer`` and ``@producer``: what they are, and which of them contradict each other."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from eventbus.backends.kafka.names import as_keyword
from eventbus.client.config import KAFKA_NAMES, is_client_setting, producer_settings, read_start
from eventbus.client.handling.functions import is_async, name_of, takes
from eventbus.client.handling.middleware import check_middleware
from eventbus.client.partitioner import PartitionFunction
from eventbus.durations import seconds, setting_ms
from eventbus.errors import ConfigError
from eventbus.recovery import policy_of
from eventbus.suggest import nearest, wrong_value
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
"""Records are committed behind their handling, before it, or with what it publishes."""
Ack = Literal["auto", "manual"]
"""A record is finished when its handler has returned, or when ``record.ack()`` was called."""

_NO_OPTIONS = ("topics", "client", "is_firing", "group_prefix")
_SHORT_FORMS = ("exactly_once", "dead_letter")
_CHOICES = {"on_error": OnError, "order": Order, "delivery": Delivery, "ack": Ack}
_CONSUMER_OPTIONS = (
    "start", "isolation_level", "group_instance_id", "partition_assignment_strategy", "session_timeout_ms",
    "max_poll_interval_ms",
)  # fmt: skip
_LEAST = {
    "concurrency": 1,
    "commit_every": 1,
    "commit_interval_ms": 1,
    "max_unfinished": 1,
    "transaction_records": 1,
    "transaction_timeout_ms": 1,
    "session_timeout_ms": 1,
    "max_poll_interval_ms": 1,
    "drain_timeout_ms": 0,
}
_ELSEWHERE = {
    **dict.fromkeys(("retries", "max_retries"), "the option is retry, as in retry=Retry(delays=['5s', '1m'])"),
    **dict.fromkeys(
        ("dlq", "dead_letters", "dead_letter_topic"), "the option is dead_letter: True, or the topic's name"
    ),
    "group_id": "the option is group",
    **dict.fromkeys(("session", "inbox", "transactional"), "the option is tx, as in tx=sessionmaker(engine)"),
    "auto_offset_reset": "the option is start",
    "isolation": "the option is isolation_level",
    **dict.fromkeys(("assignor", "assignors"), "the option is partition_assignment_strategy"),
    **dict.fromkeys(("workers", "max_workers"), "the option is concurrency"),
    **dict.fromkeys(("ack_policy", "auto_ack", "no_ack"), "the option is ack='auto' or 'manual'"),
    **dict.fromkeys(
        ("enable_auto_commit", "auto_commit", "auto_commit_interval_ms"),
        "offsets are committed as records finish: see delivery, commit_every, commit_interval_ms and ack",
    ),
    "max_poll_records": "batch=N hands the handler up to N records at once",
    **dict.fromkeys(("value_deserializer", "key_deserializer"), "annotate what the handler takes: order: Order"),
}
"""What people look for under a name that it does not have here."""


class ConsumerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``@consumer``."""

    topics: tuple[str, ...]
    pattern: str | None = None
    group: str | None = None
    start: Any = "earliest"
    """"earliest", "latest", "none", "by_duration:PT1H" or a timedelta."""
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    batch: bool | int = False
    on_error: OnError = "stop"
    retry: Any = None
    """A `FailurePolicy` that says what becomes of a failing record; where it says "stop", ``on_error`` decides."""
    tx: Any = None
    """`UnitsOfWork`: each call is a database transaction that holds the offset too."""
    name: str | None = None
    concurrency: int | None = None
    """Most records (or batches) at work at once in this bus. None: one per partition; plain functions: one."""
    order: Order = "partition"
    delivery: Guarantee = "at-least-once"
    timeout: float | None = None
    """Seconds a call may take."""
    ack: Ack = "auto"
    commit_every: int | None = None
    """Commit also as soon as so many records are finished."""
    commit_interval_ms: int = 100
    """How often finished offsets are committed; a crash makes a handler see this much again."""
    middleware: tuple[Callable[..., Any], ...] = ()
    """Around the handler's call, outermost first."""
    filter: Callable[[ConsumerRecord], bool] | None = None
    """False: the record is finished without the handler."""
    replies: bool = False
    """What the handler returns goes back to who asked, see `EventBus.request`."""
    max_unfinished: int = 10_000
    """How far a partition may run ahead of its first unfinished record (order "key" or "none", manual acks).

    Large records are also limited by their size, see `ways._FETCHES_AHEAD`."""
    transaction_records: int = 500
    """Records that share a transaction, at most."""
    transaction_timeout_ms: int = 60_000
    """A transaction open for longer is aborted by the log, and its records are handled again."""
    group_instance_id: str | None = None
    partition_assignment_strategy: tuple[Any, ...] | None = None
    session_timeout_ms: int | None = None
    max_poll_interval_ms: int | None = None
    client: dict[str, Any] = {}
    """Further settings of its consumer: ``heartbeat_interval_ms``, ``fetch_min_bytes``, ``client_rack``, ..."""
    drain_timeout_ms: int = 30_000
    """When a partition moves to another member: how long the record at work may take to finish."""
    is_firing: bool = False
    """Of ``@bus.every``: the function need not take the record."""
    group_prefix: str = ""
    """Comes before the function's name in the default group. Its router sets it."""

    @property
    def exactly_once(self) -> bool:
        """Records, what is published for them, and their offsets in one transaction."""
        return self.delivery == "exactly-once"

    @property
    def is_ordered(self) -> bool:
        """Records of a partition are handled one after the other."""
        return self.order in ("partition", "global")

    def reads(self, topic: str) -> bool:
        """True if ``topic`` is one of the topics, or matches the pattern."""
        return topic in self.topics or (self.pattern is not None and matches(self.pattern, topic))

    def consumer_options(self) -> dict[str, Any]:
        """What the handler's consumer is opened with; what was not said is left to its defaults."""
        options = {name: getattr(self, name) for name in _CONSUMER_OPTIONS}
        return {**self.client, **{name: value for name, value in options.items() if value is not None}}


class ProducerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``@producer``."""

    topic: str
    key: Callable[[Any], Any] | None = None
    partitioner: str | PartitionFunction | None = None
    config: dict[str, Any] = {}
    """Settings of a producer of its own."""


def producer_spec(
    topic: str,
    key: Callable[[Any], Any] | None,
    partitioner: str | PartitionFunction | None,
    config: Mapping[str, Any],
) -> ProducerSpec:
    """The options of ``@producer``, checked. Raises ConfigError."""
    if "transactional_id" in map(as_keyword, config):
        raise ConfigError(
            f"@producer({topic!r}): a transactional_id is for whoever begins and commits: `async with "
            "bus.transaction(id)`; with @consumer(exactly_once=True) above it, outputs are in a transaction anyway"
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
    options = _as_numbers(_without_dots(options, where), where)
    known = [*(field for field in ConsumerSpec.__struct_fields__ if field not in _NO_OPTIONS), *_SHORT_FORMS]
    foreign = {option for option in options if option not in known and option not in _ELSEWHERE}
    client = {option: options[option] for option in options if option in foreign and is_client_setting(option)}
    options = {option: value for option, value in options.items() if option not in client}
    for option in options:
        if option not in known:
            hint = f": {_ELSEWHERE[option]}" if option in _ELSEWHERE else nearest(option, known)
            raise ConfigError(f"@consumer has no option {option!r}{hint}; it has {', '.join(known)}")
    if options.get("delivery") in ("exactly-once", "exactly_once"):
        raise ConfigError(f"{where}: delivery={options['delivery']!r}: the option is exactly_once=True")
    _check_choices(options, where)
    options = _translated(options, where)
    options["client"] = {as_keyword(option): value for option, value in client.items()}
    read_start(options.get("start", "earliest"))
    try:
        spec = msgspec.convert({"topics": names, **options}, ConsumerSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {wrong_value(error, options)}") from None
    if bool(names) == (spec.pattern is not None):
        raise ConfigError('@consumer takes topics or pattern="...", one of the two')
    if spec.pattern is not None:
        check_pattern(spec.pattern, f"@consumer(pattern={spec.pattern!r})")
    if spec.group == "":
        raise ConfigError(f"{where}: group='': a name; without group= it is named after the bus and the function")
    if spec.batch is not False and spec.batch < 1:
        raise ConfigError(f"{where}: batch={spec.batch}: True for a whole fetch, or how many records at most")
    for name, smallest in _LEAST.items():
        value = getattr(spec, name)
        if value is not None and value < smallest:
            raise ConfigError(f"{where}: {name}={value}: at least {smallest}")
    _check_delivery(spec, options, where)
    _check_order(spec, where)
    _check_retry(spec, where)
    _check_tx(spec, where)
    _check_replies(spec, where)
    return spec


_TUNABLE = (*_LEAST, "timeout", "group_instance_id")
"""How much and how often; what a handler is (its topics, order, delivery, failures) stands in the program."""


def tuned(spec: ConsumerSpec, options: Mapping[str, Any], where: str) -> ConsumerSpec:
    """The same with options from outside of the program, in the words of `_TUNABLE`, and its consumer's settings.

    Raises ConfigError for other options, wrong values, and for what contradicts the handler's own options.
    """
    options = _as_numbers(dict(options), where)
    own = {name: value for name, value in options.items() if name in _TUNABLE}
    client = {name: value for name, value in options.items() if name not in own}
    for name in client:
        if not is_client_setting(name):
            known = [*_TUNABLE, *(field for field in ConsumerSpec.__struct_fields__ if field not in _NO_OPTIONS)]
            is_option = name in known or name in _SHORT_FORMS
            hint = "it says what the handler is, and stands in the program" if is_option else "no option of a handler"
            near = "" if is_option else nearest(name, _TUNABLE)
            raise ConfigError(f"{where}: {name}: {hint}{near}; here are {', '.join(_TUNABLE)}, and consumer settings")
    try:
        values = msgspec.convert({"topics": spec.topics, **own}, ConsumerSpec, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {wrong_value(error, own)}") from None
    for name in own:
        value = getattr(values, name)
        if name in _LEAST and value is not None and value < _LEAST[name]:
            raise ConfigError(f"{where}: {name}={value}: at least {_LEAST[name]}")
    changed = {name: getattr(values, name) for name in own}
    new = msgspec.structs.replace(spec, client={**spec.client, **client}, **changed)
    _check_delivery(new, dict(own), where)
    _check_order(new, where)
    _check_tx(new, where)
    return new


def _names(topics: Any) -> tuple[str, ...]:
    """One topic or several. Raises ConfigError for what is no topic's name."""
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


def _without_dots(options: dict[str, Any], where: str) -> dict[str, Any]:
    """Kafka's own names of options: ``group.id`` is ``group``, ``session.timeout.ms`` ``session_timeout_ms``."""
    found: dict[str, Any] = {}
    for option, value in options.items():
        name = KAFKA_NAMES.get(option) or (as_keyword(option) if "." in option else option)
        if name in found and found[name] != value:
            raise ConfigError(
                f"{where}: {name} is said twice, as {found[name]!r} and as {option!r}: {value!r}: say it once"
            )
        found[name] = value
    return found


def _as_numbers(options: dict[str, Any], where: str) -> dict[str, Any]:
    """The same options with their durations in milliseconds, and ``timeout`` in seconds."""
    options = {name: setting_ms(value) if name.endswith("_ms") else value for name, value in options.items()}
    timeout = options.get("timeout")
    if timeout is not None:
        options["timeout"] = seconds(timeout, f"{where}: timeout={timeout!r}", "; None for no limit")
    return options


def _translated(options: dict[str, Any], where: str) -> dict[str, Any]:
    """The same options in the form that the spec has them."""
    options = dict(options)
    chosen = options.get("partition_assignment_strategy")
    if isinstance(chosen, str):
        options["partition_assignment_strategy"] = tuple(name.strip() for name in chosen.split(","))
    elif chosen is not None and not isinstance(chosen, (tuple, list)):
        options["partition_assignment_strategy"] = (chosen,)
    isolation = options.get("isolation_level")
    if isinstance(isolation, str):
        if isolation.upper() not in IsolationLevel.__members__:
            raise ConfigError(f"{where}: isolation_level={isolation!r}: 'read_committed' or 'read_uncommitted'")
        options["isolation_level"] = IsolationLevel[isolation.upper()]
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
    asked = options.pop("exactly_once", False)
    if not isinstance(asked, bool):
        raise ConfigError(f"{where}: exactly_once={asked!r}: True or False")
    if not asked:
        return
    if "delivery" in options:
        raise ConfigError(
            f"{where}: exactly_once=True and delivery={options['delivery']!r} contradict each other: leave one of the "
            "two out"
        )
    options["delivery"] = "exactly-once"


def _check_choices(options: dict[str, Any], where: str) -> None:
    for name, choice in _CHOICES.items():
        words: tuple[str, ...] = typing.get_args(choice)
        given = options.get(name, words[0])
        if given not in words:
            listed = f"{', '.join(repr(word) for word in words[:-1])} or {words[-1]!r}"
            raise ConfigError(f"{where}: {name}={given!r}: {listed}{nearest(str(given), words)}")


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
        "exactly_once=True": (spec.exactly_once, "a reply is read at once, and what is aborted would be told"),
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
