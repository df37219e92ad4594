"""Read a handler's signature: which parameter receives the payload, the record or a transaction."""

from __future__ import annotations

import inspect
import itertools
import types
import typing
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import FrameType
from typing import Any

import msgspec

from eventbus.client.handling.functions import RAW_RECORD, hints_of, is_async, name_of, own_function
from eventbus.client.handling.injection import Depends, Injection, Overrides, Role, marked
from eventbus.client.handling.options import ConsumerSpec
from eventbus.client.transaction import Transaction
from eventbus.errors import ConfigError
from eventbus.types import ConsumerRecord
from serdes.choose import serde_named, split_optional
from serdes.json_engine import Survey

_BY_POSITION: tuple[Role, ...] = ("payload", "record", "transaction")


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a handler: its payload's type, and the names of the other parameters."""

    payload: Any
    """The annotation of the payload, or of one item of a batch; a batch may be of ConsumerRecord."""
    payload_name: str | None
    record_name: str | None
    transaction_name: str | None
    unit_name: str | None
    """The parameter that gets the open database transaction of ``tx=``, and its annotation."""
    unit: Any
    is_async: bool
    """Called on the event loop, not in a worker thread."""
    is_direct: bool
    """An ``async def`` with the payload first: may be called by position, and what it returns awaited unseen."""
    leading: tuple[str, ...]
    """Payload, record and transaction, as far as they are the first parameters and may be passed by position."""
    injection: Injection | None = None
    """Provides the parameters that `Depends` marks, if there are any."""

    @property
    def takes_payload_alone(self) -> bool:
        return self.record_name is None and self.transaction_name is None and self.unit_name is None

    def filled(self, function: Callable[..., Any], overrides: Overrides) -> Callable[..., Any]:
        """Return the handler ``function`` with what it depends on. Raises ConfigError for overrides that cannot be."""
        if self.injection is None:
            return function
        names: dict[Role, str | None] = {
            "payload": self.payload_name,
            "record": self.record_name,
            "transaction": self.transaction_name,
            "unit": self.unit_name,
        }
        there: dict[Role, str] = {role: name for role, name in names.items() if name is not None}
        return self.injection.around(there, self.leading, overrides)


_OF_RECORD = {*ConsumerRecord.__struct_fields__}
_EXAMPLE = "async def handle(order: Order, record: ConsumerRecord) -> None"


def read_signature(function: Callable[..., Any], spec: ConsumerSpec, frame: FrameType | None) -> Signature:
    """Return the signature of a handler. Raises ConfigError that shows a correct signature."""
    where = f"handler {name_of(function)!r} of {', '.join(spec.topics) or spec.pattern}"
    own = own_function(function)
    parameters = inspect.signature(function).parameters
    hints = hints_of(own, frame, where)
    dependent = marked(function, hints)
    _check_records(hints, where)
    hints = _meant(hints)
    named = _roles(function, spec, hints, dependent, where)
    payload = hints.get(named.get("payload", ""))
    annotations: dict[Role, Any] = {role: hints[name] for role, name in named.items()}
    injection = None
    if dependent:
        injection = Injection(function, frame, partial(_role_of_dependency, spec, annotations, where), where)
        for role, annotation in injection.roles.items():
            named.setdefault(role, f"__{role}")
            annotations.setdefault(role, annotation)
    payload_name, record_name, transaction_name = (named.get(role) for role in _BY_POSITION)
    if payload_name is None and record_name is None and not spec.is_firing:
        raise ConfigError(f"{where} takes no parameter for the record; write e.g. {_EXAMPLE}")
    if payload == list[ConsumerRecord] and not spec.batch:
        raise ConfigError(f"{where} takes a list of records, and gets one: @bus.consumer(..., batch=True)")
    if spec.batch:
        payload = _batch_item(payload, record_name, where)
    if spec.ack == "manual":
        _check_manual(spec, payload, record_name, where)
    runs_on_loop = is_async(function)
    if transaction_name is not None:
        _check_transaction(spec, runs_on_loop, where)
    if spec.tx is not None:
        _check_unit(spec, named.get("unit"), runs_on_loop, where)
    passed = (payload_name, record_name, transaction_name)
    leading = tuple(
        parameter.name
        for parameter in itertools.takewhile(
            lambda parameter: parameter.name in passed and parameter.kind is parameter.POSITIONAL_OR_KEYWORD,
            parameters.values(),
        )
    )
    return Signature(
        payload=payload,
        payload_name=payload_name,
        record_name=record_name,
        transaction_name=transaction_name,
        unit_name=named.get("unit"),
        unit=annotations.get("unit"),
        is_async=runs_on_loop,
        is_direct=inspect.iscoroutinefunction(own) and leading[:1] == (payload_name,),
        leading=leading,
        injection=injection,
    )


def _roles(
    function: Callable[..., Any], spec: ConsumerSpec, hints: Mapping[str, Any], dependent: Collection[str], where: str
) -> dict[Role, str]:
    """Which of its parameters gets what of a call."""
    named: dict[Role, str] = {}
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise ConfigError(f"{where}: {stars}{parameter.name} says nothing about the payload; write e.g. {_EXAMPLE}")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"{where}: parameters are passed by name; leave out the '/' after {parameter.name!r}")
        if parameter.name in dependent:
            continue
        if parameter.default is Depends:
            raise ConfigError(
                f"{where}: {parameter.name!r} would be Depends itself: call it with the function that gives the value, "
                f"{parameter.name} = Depends(get_it)"
            )
        annotation = hints.get(parameter.name)
        if annotation is None:
            if parameter.default is not parameter.empty:
                continue
            raise ConfigError(_without_annotation(parameter.name, position, named, where))
        if not _is_type(annotation):
            raise ConfigError(
                f"{where}: {parameter.name!r} is annotated {annotation!r}, no type; write e.g. {_EXAMPLE}"
            )
        role = None if _is_bus(annotation) else _role_of(annotation, spec, named)
        if role is not None:
            named[role] = parameter.name
        elif parameter.default is parameter.empty:
            raise ConfigError(_too_many(annotation, parameter.name, named, where))
    return named


def _without_annotation(name: str, position: int, named: Mapping[Role, str], where: str) -> str:
    if name == "self" and position == 0:
        return (
            f"{where} is a method, and 'self' is not bound to an object yet. Decorate the method of an object, as in "
            "bus.consumer('orders', group='billing')(shop.handle)"
        )
    if "payload" in named:
        return (
            f"{where}: parameter {name!r} has no annotation, so nothing says what it gets; the record, with its key, "
            f"headers and offset, goes to a ConsumerRecord: {_EXAMPLE}"
        )
    return (
        f"{where}: parameter {name!r} has no annotation, so its payload's type is unknown; "
        f"write e.g. {_EXAMPLE} (bytes takes every value unchanged)"
    )


def _is_type(annotation: Any) -> bool:
    """It may be one: 5 and [Order] are not."""
    return not isinstance(annotation, (int, float, bytes, list, tuple, dict, set)) and not inspect.isroutine(annotation)


def _is_bus(annotation: Any) -> bool:
    """An `EventBus`, whose module imports this one: no payload."""
    return getattr(annotation, "__module__", "") == "eventbus.client.bus"


def _role_of_dependency(
    spec: ConsumerSpec, annotations: Mapping[Role, Any], where: str, annotation: Any
) -> Role | None:
    """Return the role of a dependency's parameter with this annotation. ``annotations``: those of the handler."""
    if annotation is None:
        return None
    annotation = _bare(annotation)
    if annotation is ConsumerRecord:
        if spec.batch:
            raise ConfigError(f"{where}: a dependency takes the ConsumerRecord, and a batch has many: take the list")
        return "record"
    if annotation is Transaction:
        return "transaction"
    if spec.tx is not None and spec.tx.fills(annotation):
        if annotations.get("unit", annotation) is not annotation:
            raise ConfigError(
                f"{where}: a call has one database transaction: the handler takes it as a "
                f"{annotations['unit'].__name__}, and a dependency as a {annotation.__name__}: take one of them"
            )
        return "unit"
    return "payload" if annotation == _bare(annotations.get("payload")) else None


def _check_manual(spec: ConsumerSpec, payload: Any, record_name: str | None, where: str) -> None:
    if spec.batch and payload is not ConsumerRecord:
        raise ConfigError(
            f"{where}: ack='manual' finishes records by record.ack(), so its batch is one of records: "
            "async def handle(records: list[ConsumerRecord]) -> None"
        )
    if not spec.batch and record_name is None:
        raise ConfigError(
            f"{where}: ack='manual' finishes a record by record.ack(), so the handler takes the record: {_EXAMPLE}"
        )


def _check_transaction(spec: ConsumerSpec, runs_on_loop: bool, where: str) -> None:
    if not spec.exactly_once:
        raise ConfigError(
            f"{where}: a Transaction is there only with exactly_once=True: @bus.consumer(..., exactly_once=True)"
        )
    if not runs_on_loop:
        raise ConfigError(f"{where}: a handler that takes a Transaction is an `async def`: its sends are awaited")


def _check_unit(spec: ConsumerSpec, unit_name: str | None, runs_on_loop: bool, where: str) -> None:
    if unit_name is None:
        raise ConfigError(
            f"{where}: tx= opens a database transaction, and no parameter takes it: add one annotated as in "
            f"{spec.tx.example()}"
        )
    if spec.tx.is_async and not runs_on_loop:
        raise ConfigError(
            f"{where}: tx= is asynchronous, and its handler is a plain function: make it an `async def`, or give tx= a "
            "plain sessionmaker(engine)"
        )
    if runs_on_loop and not spec.tx.is_async:
        raise ConfigError(
            f"{where}: tx= blocks its thread, which would be the event loop's in an `async def`: make the handler a "
            "plain function (it runs in a worker thread), or give tx= an async_sessionmaker(engine)"
        )


def _role_of(annotation: Any, spec: ConsumerSpec, named: Collection[Role]) -> Role | None:
    """Return the role of a parameter with this annotation; None if it has no role, or another parameter has it."""
    if annotation is ConsumerRecord:
        return None if "record" in named else "record"
    if annotation is Transaction:
        return "transaction"
    if spec.tx is not None and "unit" not in named and spec.tx.fills(annotation):
        return "unit"
    return None if "payload" in named or _is_of_database(annotation) else "payload"


def _is_of_database(annotation: Any) -> bool:
    """A session or a connection: no payload, whatever else it may be."""
    return getattr(annotation, "__module__", "").startswith("sqlalchemy.")


def _too_many(annotation: Any, name: str, named: Mapping[Role, str], where: str) -> str:
    if _is_of_database(annotation):
        return (
            f"{where}: parameter {name!r} is a {annotation.__name__}, which tx= gives: tx=sessionmaker(engine) for "
            "a Session or a Connection in a plain function, tx=async_sessionmaker(engine) for an AsyncSession or an "
            "AsyncConnection in an `async def`; one parameter takes it"
        )
    if _is_bus(annotation):
        return (
            f"{where}: {name!r} is a bus, which a handler is not given: use the one that it is declared on, by its "
            f"name, or have it by Depends: {name}: EventBus = Depends(get_bus)"
        )
    if annotation is ConsumerRecord:
        return f"{where}: {name!r} is a second ConsumerRecord ({named['record']!r} is the first); a call has one"
    if name in _OF_RECORD:
        return (
            f"{where}: {name!r} would be a second payload ({named['payload']!r} is the first); the record has it: "
            f"take record: ConsumerRecord, and use record.{name}"
        )
    return (
        f"{where}: {name!r} is a second payload ({named['payload']!r} is the first); a handler takes one payload and, "
        f"if it wants, the record: {_EXAMPLE}; anything else by Depends: {name}: {_spelt(annotation)} = Depends(get_it)"
    )


def _spelt(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _batch_item(payload: Any, record_name: str | None, where: str) -> Any:
    items = typing.get_args(payload)
    if typing.get_origin(payload) is not list or len(items) != 1 or record_name is not None:
        raise ConfigError(
            f"{where}: a batch handler takes one list: async def handle(orders: list[Order]) -> None; "
            "list[ConsumerRecord] gives the records"
        )
    return items[0]


def _meant(hints: Mapping[str, Any]) -> dict[str, Any]:
    """Annotations without what is not for us."""
    return {name: hint if _names_serde(hint) or _has_rule(hint) else _bare(hint) for name, hint in hints.items()}


def _has_rule(hint: Any) -> bool:
    """True if a mark of ``Annotated`` constrains the value: whoever decodes the payload checks it."""
    if typing.get_origin(hint) is not typing.Annotated:
        return False
    marks = Survey(hint, only_marks=True)
    return bool(marks.rules or marks.metas)


def _names_serde(hint: Any) -> bool:
    """It, or what a batch is a list of, says which serde to read it with."""
    inner = typing.get_args(hint) if typing.get_origin(hint) in (list, typing.Union, types.UnionType) else (hint,)
    return any(serde_named(one) is not None for one in inner)


def _bare(hint: Any) -> Any:
    """Return the annotation without marks for others. ``ConsumerRecord[K, V] | None`` is a ConsumerRecord here."""
    inner = _present(hint)
    kind = typing.get_origin(inner) or inner
    if kind in (ConsumerRecord, Transaction):
        return kind
    if kind is list and (typing.get_origin(item := _item(inner)) or item) is ConsumerRecord:
        return list[ConsumerRecord]
    return hint.__origin__ if typing.get_origin(hint) is typing.Annotated else hint


def _present(hint: Any) -> Any:
    """Return the annotation of a value that is not None, without ``Annotated``."""
    inner = split_optional(hint)[0]
    return _present(inner.__origin__) if typing.get_origin(inner) is typing.Annotated else inner


def _item(hint: Any) -> Any:
    """Return the annotation of an item of a list, without ``Annotated`` and None; of anything else, return it."""
    items = typing.get_args(hint) if typing.get_origin(hint) is list else ()
    return _present(items[0]) if items else hint


def _check_records(hints: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for a ``ConsumerRecord[str, Order]``: a type checker would believe it."""
    for name, hint in hints.items():
        record = _item(_present(hint))
        if typing.get_origin(record) is ConsumerRecord and any(
            split_optional(part)[0] not in (bytes, Any) for part in typing.get_args(record)
        ):
            raise ConfigError(f"{where}: {name!r} is annotated {hint!r}; {RAW_RECORD}")
