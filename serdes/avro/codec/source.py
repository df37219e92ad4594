"""Python source that is put together, compiled, and that knows of each of its lines which field it is about.

So the generated code has nothing in it for the sake of errors: who catches one looks up the line it came from.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

_numbers = itertools.count(1)

Segment = str | tuple[str, str]
"""A part of a path: literal text, or how to compute the list index or map key from local variables:
``("count", list)``, ``("item", "list item")``, ``("key", name)``."""
Path = tuple[Segment, ...]


class _Function:
    def __init__(self, header: str) -> None:
        self.lines: list[tuple[str, Path]] = [(header, ())]
        self.indent = 1
        self.path: Path = ()


class Source:
    """Functions under construction. What they use from outside is given to `bind`."""

    def __init__(self, about: str) -> None:
        self.filename = f"<avro {about} {next(_numbers)}>"
        self._functions: list[_Function] = []
        self._open: list[_Function] = []
        self._names: dict[str, Any] = {}
        self._fresh = itertools.count(1)
        self.paths: dict[int, Path] = {}

    # writing ---------------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """One line of the function that is being written."""
        function = self._open[-1]
        function.lines.append((" " * function.indent + text, function.path))

    @contextmanager
    def block(self, header: str) -> Generator[None]:
        """Indent the lines written in this context below ``header``."""
        self.line(header)
        function = self._open[-1]
        function.indent += 1
        length = len(function.lines)
        yield
        if len(function.lines) == length:
            self.line("pass")
        function.indent -= 1

    @contextmanager
    def at(self, *segments: Segment) -> Generator[None]:
        """Attribute the lines written in this context to a part of the path."""
        with self.about((*self.path, *segments)):
            yield

    @property
    def path(self) -> Path:
        """Return the path that the code refers to at this point."""
        return self._open[-1].path

    @contextmanager
    def about(self, path: Path) -> Generator[None]:
        """Attribute the lines written in this context to ``path``."""
        function = self._open[-1]
        before, function.path = function.path, path
        yield
        function.path = before

    @contextmanager
    def function(self, header: str) -> Generator[None]:
        """Write the lines of this context as a separate function."""
        function = _Function(header)
        self._functions.append(function)
        self._open.append(function)
        yield
        self._open.pop()

    @property
    def indent(self) -> int:
        """How deep the code stands: Python bounds it."""
        return self._open[-1].indent

    @property
    def where(self) -> str:
        """The path of what is being written, for errors said while it is."""
        return "".join(one if isinstance(one, str) else "[]" for one in self._open[-1].path).lstrip(".")

    def fresh(self, prefix: str) -> str:
        return f"{prefix}{next(self._fresh)}"

    def bind(self, value: Any, name: str) -> str:
        """Make ``value`` a global of the generated code. Return its name there."""
        found = self._names.setdefault(name, value)
        if found is not value:
            name = self.fresh(name)
            self._names[name] = value
        return name

    def build(self) -> Mapping[str, Any]:
        """Compile: the functions by their names."""
        text: list[str] = []
        for function in self._functions:
            for line, path in function.lines:
                text.append(line)
                if path:
                    self.paths[len(text)] = path
        exec(compile("\n".join(text), self.filename, "exec"), self._names)
        return self._names

    # errors ----------------------------------------------------------------------------------------------------------

    def path_of(self, error: BaseException) -> str:
        """Return the field that the code was at when it raised."""
        found: list[str] = []
        at: TracebackType | None = error.__traceback__
        while at is not None:
            if at.tb_frame.f_code.co_filename == self.filename:
                variables = at.tb_frame.f_locals
                found += [_rendered(one, variables) for one in self.paths.get(at.tb_lineno, ())]
            at = at.tb_next
        return "".join(found).lstrip(".")


def _rendered(segment: Segment, variables: Mapping[str, Any]) -> str:
    if isinstance(segment, str):
        return segment
    kind, names = segment
    render: Callable[..., str] = {"count": _count, "item": _item, "key": _key}[kind]
    return render(*(variables.get(name) for name in names.split()))


def _count(items: Any) -> str:
    return f"[{len(items)}]" if items is not None else "[]"


def _item(items: Any, item: Any) -> str:
    at = next((index for index, one in enumerate(items or ()) if one is item), "")
    return f"[{at}]"


def _key(key: Any) -> str:
    return f"[{key!r:.40}]"
