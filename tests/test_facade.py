"""What is public: the names in each package's ``__all__``, frozen in public_names.txt.

A name that disappears breaks somebody's import; a name that appears is a promise. After a change that is meant, write
the file anew with ``python tests/test_facade.py`` and put the change into CHANGELOG.md.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

import eventbus.errors as errors
from eventbus.errors import KAFKA_ERRORS, EventBusError, KafkaError, error_for_code

PACKAGES = ["eventbus", "serdes", "outbox", "dlq", "schema_registry", "spark_sinks"]
SNAPSHOT = Path(__file__).with_name("public_names.txt")


def public_names() -> list[str]:
    return [
        f"{package}.{name}"
        for package in PACKAGES
        for name in sorted(getattr(importlib.import_module(package), "__all__", ()))
    ]


def test_public_names_are_the_frozen_ones() -> None:
    frozen, now = SNAPSHOT.read_text("ascii").splitlines(), public_names()
    gone, new = sorted(set(frozen) - set(now)), sorted(set(now) - set(frozen))
    assert now == frozen, f"gone: {gone}, new: {new}; if that is meant: python tests/test_facade.py"


@pytest.mark.system
def test_public_names_exist_and_have_docstrings() -> None:
    for name in public_names():
        package, _, attribute = name.rpartition(".")
        thing = getattr(importlib.import_module(package), attribute)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            own = thing.__doc__ if inspect.isroutine(thing) else thing.__dict__.get("__doc__")
            assert own, f"{name} has no docstring"


ERROR_CLASSES = [
    thing for thing in vars(errors).values() if inspect.isclass(thing) and issubclass(thing, EventBusError)
]
KAFKA_CLASSES = [cls for cls in ERROR_CLASSES if issubclass(cls, KafkaError)]


def test_every_error_has_in_its_first_line_what_the_caller_does_next() -> None:
    for cls in ERROR_CLASSES:
        first = (cls.__dict__.get("__doc__") or "").strip().partition("\n")[0]
        assert first.endswith((".", ":", ",")) and len(first.split()) >= 4, f"{cls.__name__}: {first!r}"


def test_every_kafka_error_has_a_row_and_agrees_with_it() -> None:
    for cls in KAFKA_CLASSES:
        row = KAFKA_ERRORS[cls.code]
        error = cls("what, where, how to fix it")
        assert (error.name, row.code) == (row.name, cls.code)


def test_every_code_finds_its_class() -> None:
    for code, row in KAFKA_ERRORS.items():
        error = error_for_code(code, "message")
        owners = [cls for cls in KAFKA_CLASSES if "code" in cls.__dict__ and cls.code == code and cls is not KafkaError]
        assert [type(error)] == owners or not owners
        assert (error.code, error.retriable or bool(owners)) == (code, row.retriable or bool(owners))
        assert "message" in str(error)


def test_no_two_classes_share_a_code_unless_one_inherits_it() -> None:
    declared = [cls.code for cls in KAFKA_CLASSES if "code" in cls.__dict__ and cls is not KafkaError]
    assert len(declared) == len(set(declared))


if __name__ == "__main__":
    SNAPSHOT.write_text("".join(f"{name}\n" for name in public_names()), "ascii")
