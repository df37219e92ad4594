"""What is public: the names in each package's ``__all__`` (public_names.txt), and the errors (errors.md).

A name that disappears breaks somebody's import; a name that appears is a promise. After an intended change, write both
files with ``python -m tests.test_facade`` and put the change into CHANGELOG.md.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_overloads

import pytest

import eventbus.errors as errors
from eventbus.errors import KAFKA_ERRORS, EventBusError, KafkaError, error_for_code
from tests.named import find_page

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
    assert now == frozen, f"gone: {gone}, new: {new}; if that is meant: python -m tests.test_facade"


@pytest.mark.system
def test_public_names_exist_and_have_docstrings() -> None:
    for name in public_names():
        package, _, attribute = name.rpartition(".")
        thing = getattr(importlib.import_module(package), attribute)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            own = thing.__doc__ if inspect.isroutine(thing) else thing.__dict__.get("__doc__")
            assert own, f"{name} has no docstring"


PAYLOADS = {
    "key", "value", "values", "partition_key", "initial", "fold",  # what is sent, received or folded
    "types", "type", "annotation", "returns", "schema",  # the type of it
    "function", "dependency",  # what a user's function returns
}  # fmt: skip
"""The parameters that may be annotated with Any."""


def signatures(thing: object) -> Iterator[tuple[str, inspect.Signature]]:
    """The signatures of a function, or of the public methods of a class: of its overloads, where it has any."""
    methods = inspect.getmembers(thing) if inspect.isclass(thing) else [("", thing)]
    for name, method in methods:
        function = method.fget if isinstance(method, property) else method
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
            for one in get_overloads(function) or [function]:
                yield name, inspect.signature(one)


@pytest.mark.system  # some of the names need extra libraries
def test_only_payloads_are_annotated_with_any() -> None:
    found: list[str] = []
    for name in public_names():
        package, _, attribute = name.rpartition(".")
        for method, signature in signatures(getattr(importlib.import_module(package), attribute)):
            for parameter in signature.parameters.values():
                annotation = str(parameter.annotation).replace("Coroutine[Any, Any, ", "")
                if re.search(r"\bAny\b", annotation) and parameter.name not in PAYLOADS:
                    found.append(f"{name}.{method}({parameter}): object, or the type")
    assert found == []


ROOTS = (EventBusError, errors.SchemaRegistryError)
ERROR_CLASSES = [thing for thing in vars(errors).values() if inspect.isclass(thing) and issubclass(thing, ROOTS)]
ERRORS_PAGE = find_page("errors.md")
ELSEWHERE = {
    "DatabaseMismatch": "the relay of an outbox catches it, and its health has the message",
    "FencedLeaderEpoch": "an answer of the server to a client's library",
    "InvalidSchema": "becomes a RegistryError",
    "LeaseLost": "the relay of an outbox catches it",
    "LockError": "of the command line",
    "NotAvailableError": "of a test that needs Kafka's jars",
    "Overtaken": "its writer opens the ledger again",
    "Refused": "the relay of an outbox catches it",
    "RecordsWithoutKey": "a part of InvalidRecord that the server answers with",
    "RegistryFailed": "of the command line",
    "StaleIndex": "the index is read again",
    "Superseded": "a ProducerFenced of the command `eventbus mirror`",
    "UnknownLeaderEpoch": "an answer of the server to a client's library",
    "UnknownSchemaType": "becomes a RegistryError",
    "UsageError": "of the command line",
}
"""Error classes outside of `eventbus.errors`, and why no user of the API catches them."""
KAFKA_CLASSES = [cls for cls in ERROR_CLASSES if issubclass(cls, KafkaError)]


def test_every_error_has_in_its_first_line_what_the_caller_does_next() -> None:
    for cls in ERROR_CLASSES:
        first = (cls.__dict__.get("__doc__") or "").strip().partition("\n")[0]
        assert first.endswith((".", ":", ",")) and len(first.split()) >= 4, f"{cls.__name__}: {first!r}"


def errors_page() -> str:
    """The reference of all errors: each with its nature, and the first paragraph of its docstring."""
    lines = [
        "# Errors",
        "",
        "Every error of the API, importable from `eventbus.errors`. `except EventBusError` catches all of them except",
        "`SchemaRegistryError`, which `serdes` raises alone too. `python -m tests.test_facade` writes this page.",
        "",
        "A *retriable* call may succeed later, unchanged. An *abortable* error ends the open transaction; the producer",
        "stays usable. After a *fatal* error, open the object again. Other base classes are in parentheses.",
    ]
    for title, default, classes in (
        ("Of the bus: `EventBusError`", EventBusError, [cls for cls in ERROR_CLASSES if cls not in KAFKA_CLASSES]),
        ("With a code of Kafka's protocol: `KafkaError`", KafkaError, KAFKA_CLASSES),
    ):
        lines += ["", f"## {title}", ""]
        for cls in sorted(classes, key=lambda cls: cls.__name__):
            bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__ if base not in (default, Exception))
            nature = ", ".join(word for word in ("retriable", "abortable", "fatal") if getattr(cls, word, False))
            advice = " ".join((cls.__doc__ or "").partition("\n\n")[0].split()).replace("``", "`")
            lines.append(f"- `{cls.__name__}`{bases and f' ({bases})'}{nature and f' *{nature}*'}: {advice}")
    return "\n".join(lines) + "\n"


def test_the_page_of_errors_lists_every_error_with_its_base_and_its_advice() -> None:
    assert ERRORS_PAGE.read_text("utf-8") == errors_page(), "write it with: python -m tests.test_facade"


def test_every_error_that_a_user_may_catch_is_in_one_module() -> None:
    names = {cls.__name__ for cls in ERROR_CLASSES}
    bases = "|".join(sorted({"EventBusError", *names}))
    elsewhere = {
        name
        for package in PACKAGES
        for path in Path(importlib.import_module(package).__path__[0]).rglob("*.py")
        for name in re.findall(rf"^class (\w+)\((?:{bases})\)", path.read_text("utf-8"), re.M)
    }
    assert elsewhere - names == set(ELSEWHERE), "move the class to eventbus.errors"


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
    ERRORS_PAGE.write_text(errors_page(), "utf-8")
