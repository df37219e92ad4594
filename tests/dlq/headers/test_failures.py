"""The description of errors, including errors that cannot be printed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import anyio
import pytest

from dlq.failures import Failure, class_of, failure_of
from eventbus.client.running.single_error import SingleError

HERE = "test_failures.py"


class Mute(Exception):
    """An error whose text raises."""

    def __str__(self) -> str:
        raise RuntimeError("not today")


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("held", threading.Lock())

    def __reduce__(self) -> str:
        raise TypeError("cannot pickle it")


def raised(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it does not fail")


def fails() -> None:
    raise ValueError("bad order")


def line_of(function: Callable[..., object], text: str) -> int:
    first = function.__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()
    return next(number for number in range(first, len(lines) + 1) if text in lines[number - 1])


def test_an_error_in_the_users_code() -> None:
    failure = failure_of(raised(fails))
    assert failure[:2] == ("ValueError", "bad order")
    assert failure.top_frame == f"{HERE}:fails:{line_of(fails, 'raise')}"
    assert failure.stack.startswith("Traceback (most recent call last):\n")
    assert failure.stack.endswith('    raise ValueError("bad order")\nValueError: bad order\n')


def test_a_class_is_named_with_its_module() -> None:
    assert class_of(Mute()) == f"{__name__}.Mute"
    assert class_of(json.JSONDecodeError("x", "y", 0)) == "json.decoder.JSONDecodeError"
    assert class_of(KeyError()) == "KeyError"


def test_the_innermost_frame_of_the_user_is_above_those_of_libraries() -> None:
    def handler() -> None:
        json.loads("{")

    assert failure_of(raised(handler)).top_frame.startswith(f"{HERE}:handler:")

    async def task() -> None:
        async with SingleError(), anyio.create_task_group():
            handler()

    assert failure_of(raised(lambda: asyncio.run(task()))).top_frame.startswith(f"{HERE}:handler:")


def module_at(path: Path, name: str, source: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def called_by_eventbus(tmp_path: Path, call: Callable[[], object]) -> Exception:
    runner = module_at(tmp_path / "eventbus" / "run.py", "eventbus.run", "def run(call): call()")
    error = raised(lambda: runner.run(call))
    frame = error.__traceback__
    while frame is not None and not frame.tb_frame.f_code.co_filename.endswith("run.py"):
        frame = frame.tb_next
    return error.with_traceback(frame)


def test_a_service_that_is_installed_itself(tmp_path: Path) -> None:
    """Its frames lie where those of libraries do: the package that was called first is the service's."""
    installed = tmp_path / "lib" / "site-packages"
    driver = module_at(installed / "driver" / "wire.py", "driver.wire", "def send():\n    raise OSError('gone')")
    service = module_at(
        installed / "billing" / "pay.py", "billing.pay", "def book(send):\n    send()\ndef pay(send):\n    book(send)"
    )
    error = called_by_eventbus(tmp_path, lambda: service.pay(driver.send))
    frame = error.__traceback__
    assert frame is not None and frame.tb_next is not None
    without_this_file = frame.tb_next.tb_next
    assert failure_of(error.with_traceback(without_this_file)).top_frame == "pay.py:book:2"


def test_with_frames_of_eventbus_alone_the_innermost_is_named(tmp_path: Path) -> None:
    runner = module_at(tmp_path / "eventbus" / "run.py", "eventbus.run", "def decode():\n    raise ValueError('no')")
    error = raised(runner.decode)
    assert error.__traceback__ is not None
    assert failure_of(error.with_traceback(error.__traceback__.tb_next)).top_frame == "run.py:decode:2"


def test_an_error_that_was_never_raised() -> None:
    assert failure_of(KeyError("k")) == Failure("KeyError", "'k'", "KeyError: 'k'\n", "")
    assert failure_of(KeyError()).stack == "KeyError\n"


def test_a_text_that_cannot_be_had() -> None:
    failure = failure_of(Mute())
    assert failure.message == "<str() of it raised RuntimeError>"
    assert failure.stack == f"{__name__}.Mute: <str() of it raised RuntimeError>\n"

    def no_text(error: Exception) -> None: ...

    wordless = type("Wordless", (Exception,), {"__str__": no_text})
    assert failure_of(wordless()).message == "<str() of it raised TypeError>"


def test_what_cannot_be_pickled_need_not_be() -> None:
    assert failure_of(raised(lambda: (_ for _ in ()).throw(Unpicklable()))).message.startswith("('held', ")


def test_megabytes_of_text_are_cut_to_their_ends() -> None:
    failure = failure_of(ValueError("begin " + "x" * 20_000_000 + " end"))
    assert len(failure.message) < 70_000 and len(failure.stack) < 70_000
    assert failure.message.startswith("begin x") and failure.message.endswith("x end")


def test_causes_come_first_as_python_prints_them() -> None:
    def handler() -> None:
        try:
            fails()
        except ValueError as error:
            raise KeyError("k") from error

    error = raised(handler)
    failure = failure_of(error)
    assert failure.error_class == "KeyError"
    cause, link, last = failure.stack.partition(
        "\nThe above exception was the direct cause of the following exception:\n\n"
    )
    assert cause.endswith("ValueError: bad order\n") and link and last.endswith("KeyError: 'k'\n")


def test_what_was_handled_meanwhile_is_shown() -> None:
    def handler() -> None:
        try:
            fails()
        finally:
            raise KeyError("k")

    assert "During handling of the above exception" in failure_of(raised(handler)).stack


def test_what_is_raised_from_none_hides_what_was_handled() -> None:
    def handler() -> None:
        try:
            fails()
        except ValueError:
            raise KeyError("k") from None

    assert "ValueError:" not in failure_of(raised(handler)).stack


def test_a_chain_without_an_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert failure_of(first).stack.count("ValueError") == 2


def test_a_chain_of_a_thousand_causes() -> None:
    error = ValueError("0")
    for number in range(1, 1000):
        after = ValueError(str(number))
        after.__cause__, error = error, after
    stack = failure_of(error).stack
    assert stack.count("ValueError") == 10 and stack.endswith("ValueError: 999\n")


def test_a_stack_of_a_thousand_calls() -> None:
    def deeper(left: int) -> None:
        if not left:
            fails()
        deeper(left - 1)

    failure = failure_of(raised(lambda: deeper(900)))
    assert failure.top_frame.startswith(f"{HERE}:fails:")
    assert failure.stack.count("  File ") <= 40


def test_a_group_of_one_stands_for_that_one() -> None:
    failure = failure_of(ExceptionGroup("outer", [ExceptionGroup("inner", [raised(fails)])]))
    assert failure[:2] == ("ValueError", "bad order")
    assert failure.top_frame.startswith(f"{HERE}:fails:")
    assert "ExceptionGroup: outer (1 sub-exception)" in failure.stack and "ValueError: bad order" in failure.stack


def test_a_group_of_several_names_them() -> None:
    failure = failure_of(ExceptionGroup("tasks", [ValueError("a"), Mute(), *[KeyError(n) for n in range(100)]]))
    assert failure.error_class == "ExceptionGroup"
    assert failure.message.startswith("tasks (102 sub-exceptions): ValueError: a; ")
    assert "Mute: <str() of it raised RuntimeError>; KeyError: 0" in failure.message
    assert failure.stack.count("of the group") == 8


def test_groups_in_groups_without_an_end() -> None:
    group = ExceptionGroup("0", [ValueError(), ValueError()])
    for number in range(1, 500):
        group = ExceptionGroup(str(number), [group, ValueError()])
    assert len(failure_of(group).stack) < 10_000


@pytest.mark.parametrize("notes", [["seen in the night", "\ud800"], "no list", [b"no text", 7]])
def test_notes(notes: object) -> None:
    error = ValueError("bad order")
    vars(error)["__notes__"] = notes
    assert ("seen in the night\n" in failure_of(error).stack) == (notes == ["seen in the night", "\ud800"])
