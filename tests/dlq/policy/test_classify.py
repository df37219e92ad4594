"""Which errors are never retried, which are outages, and what the user says of it."""

from __future__ import annotations

from typing import Literal

import msgspec
import pydantic
import pytest

from dlq import Park, Reject, RetryLater
from dlq.classify import Kind, classifier, signal_of
from eventbus.client.handling.handler_errors import CallTimedOut
from eventbus.errors import (
    BufferExhausted,
    ConfigError,
    EventBusError,
    HandlerError,
    ProducerFenced,
    RequestTimedOut,
    SchemaNotReady,
    SchemaUnavailable,
    SerializationError,
    StorageFull,
    error_for_code,
)
from serdes import SchemaRegistryError

pytestmark = pytest.mark.system


class Order(pydantic.BaseModel):
    amount: int


def pydantics() -> Exception:
    with pytest.raises(pydantic.ValidationError) as raised:
        Order.model_validate({"amount": "much"})
    return raised.value


def msgspecs() -> Exception:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(b'"many"', type=int)
    return raised.value


KINDS: list[tuple[Exception, Kind]] = [
    (ConnectionError(), "outage"),
    (ConnectionResetError(), "outage"),
    (BrokenPipeError(), "outage"),
    (RequestTimedOut("x"), "outage"),
    (BufferExhausted("x"), "outage"),
    (StorageFull("x"), "outage"),
    (SchemaUnavailable("x"), "outage"),
    (SchemaNotReady("x", lambda: None), "outage"),
    (error_for_code(5, "a leader is elected"), "outage"),
    (SchemaRegistryError("nobody answered"), "outage"),
    (SchemaRegistryError("too many", status=429), "outage"),
    (SerializationError("x"), "unreadable"),
    (SchemaRegistryError("no such schema", status=404, error_code=40403), "unreadable"),
    (msgspecs(), "never"),
    (pydantics(), "never"),
    (TypeError(), "never"),
    (AttributeError(), "never"),
    (ConfigError("x"), "never"),
    (ValueError(), "retry"),
    (KeyError("customer"), "retry"),
    (LookupError(), "retry"),
    (TimeoutError(), "retry"),
    (CallTimedOut(3), "retry"),
    (OSError(), "outage"),
    (FileNotFoundError(), "retry"),
    (HandlerError("x"), "retry"),
    (EventBusError("x"), "retry"),
    (RuntimeError("CancelledError: something that it waited for was cancelled"), "retry"),
    (ProducerFenced("x"), "fatal"),
    (MemoryError(), "fatal"),
]


@pytest.mark.parametrize(("error", "kind"), KINDS, ids=[f"{type(error).__name__}-{kind}" for error, kind in KINDS])
def test_unless_said_otherwise(error: Exception, kind: Kind) -> None:
    assert classifier()(error) == kind


def test_what_the_user_says_goes_first() -> None:
    kind_of = classifier(on=[TypeError], never=[OSError], outages=[TimeoutError, KeyError])
    assert kind_of(TypeError()) == "retry"
    assert kind_of(ConnectionResetError()) == "never"  # an OSError, and that is what was said of those
    assert kind_of(TimeoutError()) == "outage"  # nearer than OSError
    assert kind_of(KeyError()) == "outage"


def test_only_these_are_retried_and_outages() -> None:
    kind_of = classifier(on=[TimeoutError])
    assert kind_of(TimeoutError()) == "retry"
    assert kind_of(ValueError()) == "never"
    assert kind_of(ConnectionError()) == "outage"
    assert kind_of(SerializationError("x")) == "unreadable"


def test_of_a_group_what_is_inside_counts() -> None:
    kind_of = classifier(outages=[TimeoutError])
    down, slow, bad, odd = ConnectionError(), TimeoutError(), TypeError(), ValueError()
    assert kind_of(ExceptionGroup("all down", [down, ExceptionGroup("inside", [slow])])) == "outage"
    assert kind_of(ExceptionGroup("one is odd", [down, odd])) == "retry"
    assert kind_of(ExceptionGroup("one is bad", [down, odd, bad])) == "never"
    assert kind_of(ExceptionGroup("fatal", [bad, MemoryError()])) == "fatal"
    assert classifier(never=[ExceptionGroup])(ExceptionGroup("said of the group", [down])) == "never"


def test_what_a_handler_says_is_found_in_its_task_group() -> None:
    said = Reject("no such customer")
    assert signal_of(said) is said
    assert signal_of(ExceptionGroup("tasks", [ExceptionGroup("more", [said])])) is said
    assert signal_of(ExceptionGroup("two", [said, Park()])) is None  # which of them?
    assert signal_of(ValueError()) is None


@pytest.mark.parametrize("where", ["here", "pydantic_core"])
def test_only_the_librarys_own_class_goes_by_its_name(where: Literal["here", "pydantic_core"]) -> None:
    namesake = type("ValidationError", (ValueError,), {"__module__": where})
    assert classifier()(namesake()) == ("never" if where == "pydantic_core" else "retry")


def test_two_signals_at_once_are_a_failure_that_is_tried_again() -> None:
    assert classifier()(ExceptionGroup("two", [RetryLater(), RetryLater()])) == "retry"
