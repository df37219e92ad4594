"""Find calls in a function's source that would block the event loop."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

_BLOCKING = {
    "time": {"sleep"},
    "requests": {"get", "post", "put", "patch", "delete", "head", "request", "Session"},
    "subprocess": {"run", "call", "check_call", "check_output"},
    "urllib.request": {"urlopen"},
    "socket": {"create_connection", "gethostbyname", "getaddrinfo"},
    "sqlite3": {"connect"},
    "os": {"system", "waitpid"},
    "httpx": {"get", "post", "put", "patch", "delete", "head", "request"},
}
"""Functions that block, by module."""


def blocking_calls(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return calls in the form ``time.sleep (line 12)``. Also empty if the source is not available."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ()
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):  # a lambda within a line, or a function that was typed interactively
        return ()
    names: dict[str, Any] = getattr(function, "__globals__", {})
    found = ((_blocking(call, names), first + call.lineno - 1) for call in _calls(tree))
    return tuple(f"{name} (line {line})" for name, line in found if name)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of the function itself, not of nested functions, which may run in a thread."""
    outermost = next(
        (node for node in ast.walk(tree) if isinstance(node, (ast.AsyncFunctionDef, ast.FunctionDef))), tree
    )
    waiting = list(ast.iter_child_nodes(outermost))
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Call):
            yield node
        waiting[:0] = ast.iter_child_nodes(node)


def _blocking(call: ast.Call, names: dict[str, Any]) -> str:
    """Return the name of the called function if it blocks, or an empty string."""
    dotted = ast.unparse(call.func) if isinstance(call.func, (ast.Attribute, ast.Name)) else ""
    first, *rest = dotted.split(".")
    target = names.get(first)
    for part in rest:
        target = getattr(target, part, None) if isinstance(target, ModuleType) else None
    module = str(getattr(target, "__module__", ""))
    name = str(getattr(target, "__name__", ""))
    for known, functions in _BLOCKING.items():
        if name in functions and (module == known or module.split(".")[0] == known or module == f"_{known}"):
            return f"{known}.{name}"
    return ""
