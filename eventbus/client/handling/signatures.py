"""What a handler's signature means: which parameter gets the payload, the record, a transaction."""

from __future__ import annotations

import inspect
import itertools
import types
import typing
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, Literal

import msgspec

from eventbus.client.handling.functions import is_async, name_of, own_function
from eventbus.client.handling.options import ConsumerSpec
from eventbus.client.transaction import Transaction
from eventbus.errors import ConfigError
from eventbus.types import ConsumerRecord
from serdes import serde_named

_Role = Literal["payload", "record", "transaction", "unit"]
_BY_POSITION: tuple[_Role, ...] = ("payload", "record", "transaction")


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler takes: its payload's type, and where else a record is passed."""

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

    @property
    def takes_payload_alone(self) -> bool:
        return self.record_name is None and self.transaction_name is None and self.unit_name is None


_EXAMPLE = "async def handle(order: Order, record: ConsumerRecord) -> None"


def read_signature(function: Callable[..., Any], spec: ConsumerSpec, frame: FrameType | None) -> Signature:
    """What the handler takes. Raises ConfigError showing the right signature."""
    where = f"handler {name_of(function)!r} of {', '.join(spec.topics) or spec.pattern}"
    own = own_function(function)
    hints = _hints(own, frame, where)
    parameters = inspect.signature(function).parameters
    payload: Any = None
    named: dict[_Role, str] = {}
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"{where}: *{parameter.name} says nothing about the payload; write e.g. {_EXAMPLE}")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"{where}: parameters are passed by name; leave out the '/' after {parameter.name!r}")
        annotation = hints.get(parameter.name)
        if annotation is None:
            if parameter.default is not parameter.empty:
                continue
            raise ConfigError(
                f"{where}: parameter {parameter.name!r} has no annotation, so its payload's type is unknown; "
                f"write e.g. {_EXAMPLE} (bytes takes every value, as it is)"
            )
        role = _role_of(annotation, spec, named)
        if role is None:
            if parameter.default is parameter.empty:
                raise ConfigError(_too_many(annotation, parameter.name, named.get("payload"), where))
            continue
        named[role] = parameter.name
        if role == "payload":
            payload = annotation
    payload_name, record_name, transaction_name = (named.get(role) for role in _BY_POSITION)
    if payload_name is None and record_name is None:
        raise ConfigError(f"{where} takes no parameter for the record; write e.g. {_EXAMPLE}")
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
        unit=hints.get(named.get("unit", "")),
        is_async=runs_on_loop,
        is_direct=inspect.iscoroutinefunction(own) and leading[:1] == (payload_name,),
        leading=leading,
    )


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


def _role_of(annotation: Any, spec: ConsumerSpec, named: Collection[_Role]) -> _Role | None:
    """What a parameter of this annotation is for; None: nothing that another one is not for already."""
    if annotation is ConsumerRecord and "record" not in named:
        return "record"
    if annotation is Transaction:
        return "transaction"
    if spec.tx is not None and "unit" not in named and spec.tx.fills(annotation):
        return "unit"
    return None if "payload" in named or _is_of_database(annotation) else "payload"


def _is_of_database(annotation: Any) -> bool:
    """A session or a connection: no payload, whatever else it may be."""
    return getattr(annotation, "__module__", "").startswith("sqlalchemy.")


def _too_many(annotation: Any, name: str, payload_name: str | None, where: str) -> str:
    if _is_of_database(annotation):
        return (
            f"{where}: parameter {name!r} is a {annotation.__name__}, which tx= gives: tx=sessionmaker(engine) for "
            "a Session or a Connection in a plain function, tx=async_sessionmaker(engine) for an AsyncSession or an "
            "AsyncConnection in an `async def`; one parameter takes it"
        )
    return (
        f"{where}: {name!r} is a second payload ({payload_name!r} is the first); a handler takes one payload and, if "
        f"it wants, the record: {_EXAMPLE}"
    )


def _batch_item(payload: Any, record_name: str | None, where: str) -> Any:
    items = typing.get_args(payload)
    if typing.get_origin(payload) is not list or len(items) != 1 or record_name is not None:
        raise ConfigError(
            f"{where}: a batch handler takes one list: async def handle(orders: list[Order]) -> None; "
            "list[ConsumerRecord] gives the records"
        )
    return items[0]


def _hints(function: Callable[..., Any], frame: FrameType | None, where: str) -> dict[str, Any]:
    try:
        # Names of the function the decorator stands in too: types are often local to a test.
        local = {**frame.f_globals, **frame.f_locals} if frame is not None else None
        hints = typing.get_type_hints(function, localns=local, include_extras=True)
    except NameError as error:
        raise ConfigError(f"{where}: annotation {error.name!r} is not known where the handler is defined") from error
    except TypeError:
        hints = {}
    hints.pop("return", None)
    return {name: hint if _names_serde(hint) else _bare(hint) for name, hint in hints.items()}


def _names_serde(hint: Any) -> bool:
    """It, or what a batch is a list of, says which serde to read it with."""
    inner = typing.get_args(hint) if typing.get_origin(hint) in (list, typing.Union, types.UnionType) else (hint,)
    return any(serde_named(one) is not None for one in inner)


def _bare(hint: Any) -> Any:
    return hint.__origin__ if typing.get_origin(hint) is typing.Annotated else hint
