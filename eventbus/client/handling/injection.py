"""Dependencies of a handler (`Depends`), opened for each call and closed after it.

For a handler with dependencies this module generates a function that takes only the payload and the record, opens the
dependencies and calls the handler. It is the function that a programmer would write by hand, and as fast. A handler
without dependencies is called directly.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, Literal

import msgspec

from eventbus.client.handling.functions import Opening, hints_of, is_async, name_of, opening_of, own_function
from eventbus.errors import ConfigError
from eventbus.types import ConsumerRecord

Role = Literal["payload", "record", "transaction", "unit"]
"""The part of a call that a parameter receives."""

RoleOf = Callable[[Any], Role | None]
"""The role of a dependency's parameter, by its annotation; None: there is none."""

Overrides = Mapping[Callable[..., Any], Callable[..., Any]]
"""Maps a dependency's function to the function that replaces it."""


class Dependency(msgspec.Struct, frozen=True):
    """The marker that `Depends` puts into a signature."""

    dependency: Callable[..., Any] | None
    use_cache: bool = True


def Depends(dependency: Callable[..., Any] | None = None, *, use_cache: bool = True) -> Any:
    """Have a function provide a parameter of a handler: ``db: Database = Depends(open_database)``.

    ``db: Annotated[Database, Depends(open_database)]`` and FastAPI's own marker work too. The function is called for
    each record (or batch) before the handler. Its own parameters are dependencies in turn, or have a default, or are
    annotated with the handler's payload, `ConsumerRecord`, `Transaction` or the session that ``tx=`` opens. A function
    that several parameters depend on is called once, unless ``use_cache=False``. Without a function the parameter's
    class is called.

    The value that a generator yields (async or not) is the dependency; code after its ``yield`` runs when the handler
    has handled the record. It receives the handler's exception, and cannot suppress it.

    A plain function runs where the handler runs: for an ``async def`` that is the event loop, so it must not block.
    ``bus.dependency_overrides[open_database] = fake`` calls ``fake`` instead, from the bus's next start on.
    """
    return Dependency(dependency, use_cache)


class Injection:
    """The dependencies of one handler. Raises ConfigError for those that cannot be."""

    def __init__(self, function: Callable[..., Any], frame: FrameType | None, role_of: RoleOf, where: str) -> None:
        self._function = function
        self._frame = frame
        self._role_of = role_of
        self._where = where
        plan = self._plan({})
        self.roles = plan.roles
        """The parts of a call that the dependencies take, and their annotations."""
        self.calls = tuple(step.call for step in plan.steps)
        """The functions, each after those that it needs."""

    def around(self, names: Mapping[Role, str], leading: Sequence[str], overrides: Overrides) -> Callable[..., Any]:
        """Return the handler with its dependencies filled in, a function of ``leading`` and the other ``names``.

        ``names``: the parameter of each role. Raises ConfigError for overrides that cannot be.
        """
        plan = self._plan(overrides)
        if missing := plan.roles.keys() - names.keys():
            raise ConfigError(
                f"{self._where}: a function in dependency_overrides takes the {min(missing)}, and nothing that the "
                f"handler depends on does otherwise: let the handler take it too"
            )
        return _written(self._function, plan, names, leading)

    def _plan(self, overrides: Overrides) -> _Plan:
        plan = _Plan(is_async(self._function), self._frame, self._role_of, self._where, overrides)
        for name, mark in marked(
            self._function, hints_of(own_function(self._function), self._frame, self._where)
        ).items():
            plan.given[name] = plan.add(mark, (name,))
        return plan


class _Step(msgspec.Struct, frozen=True):
    """One call: ``value = opening opener(arguments)``, or ``with`` it."""

    call: Callable[..., Any]
    opening: Opening
    opener: Callable[..., Any]
    """``call``, or for a generator the function that makes a context manager of it."""
    arguments: dict[str, int | Role]
    """Maps each parameter's name to the number of the step that provides it, or to a role."""


class _Plan:
    """The calls that open a handler's dependencies, each after the calls that it needs itself."""

    def __init__(
        self, on_loop: bool, frame: FrameType | None, role_of: RoleOf, where: str, overrides: Overrides
    ) -> None:
        self._on_loop = on_loop
        self._frame = frame
        self._role_of = role_of
        self._where = where
        self._overrides = overrides
        self._numbers: dict[Any, int] = {}
        self._open: list[Any] = []
        self.steps: list[_Step] = []
        self.roles: dict[Role, Any] = {}
        """The parts of a call that the steps take, and their annotations."""
        self.given: dict[str, int] = {}
        """Maps a parameter of the handler to the step that provides it."""

    def add(self, mark: Dependency, path: tuple[str, ...]) -> int:
        """Return the number of the step that gives the value of ``mark``. ``path``: the parameters that lead to it."""
        where = f"{self._where}: parameter {' -> '.join(path)}"
        call = mark.dependency
        if not callable(call):
            raise ConfigError(
                f"{where}: Depends({call!r}): give the function itself, without parentheses: Depends(open_database)"
            )
        call = self._overrides.get(call, call)
        # As in FastAPI, a dependency that is needed twice in a call is opened once.
        if mark.use_cache and call in self._numbers:
            return self._numbers[call]
        if call in self._open:
            raise ConfigError(f"{where}: {name_of(call)} depends on itself")
        self._open.append(call)
        opening, opener = self._opening(call, where)
        step = _Step(call, opening, opener, self._arguments(call, path, where))
        self._open.pop()
        self.steps.append(step)
        number = len(self.steps) - 1
        if mark.use_cache:
            self._numbers[call] = number
        return number

    def _opening(self, call: Callable[..., Any], where: str) -> tuple[Opening, Callable[..., Any]]:
        opening, opener = opening_of(call)
        if opening.startswith("a") and not self._on_loop:
            raise ConfigError(
                f"{where}: {name_of(call)} is asynchronous, and the handler is a plain function: make the handler an "
                "`async def`"
            )
        return opening, opener

    def _arguments(self, call: Callable[..., Any], path: tuple[str, ...], where: str) -> dict[str, int | Role]:
        own = own_function(call)
        hints = hints_of(own.__init__ if inspect.isclass(own) else own, self._frame, where)
        marks = marked(call, hints)
        arguments: dict[str, int | Role] = {}
        for parameter in _parameters(call, where):
            name = parameter.name
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if name in marks:
                arguments[name] = self.add(marks[name], (*path, name))
                continue
            role = self._role_of(hints.get(name))
            if role is not None:
                arguments[name] = self._wanted(role, hints[name], where)
            elif parameter.default is parameter.empty:
                raise ConfigError(
                    f"{where}: {name_of(call)} takes {name!r}, and nothing says what that is: give it a default, "
                    "= Depends(...), or the annotation of the handler's payload, ConsumerRecord or Transaction"
                )
        return arguments

    def _wanted(self, role: Role, hint: Any, where: str) -> Role:
        annotation = _bare(hint)
        if self.roles.setdefault(role, annotation) is not annotation and role == "unit":
            raise ConfigError(
                f"{where}: a call has one database transaction, and it is asked for as {name_of(annotation)} and as "
                f"{name_of(self.roles[role])}: take one of them everywhere"
            )
        return role


def marked(function: Callable[..., Any], hints: Mapping[str, Any]) -> dict[str, Dependency]:
    """Return the parameters that `Depends` gives, from a default or from ``Annotated``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
        return {}
    marks: dict[str, Dependency] = {}
    for parameter in parameters:
        hint = hints.get(parameter.name)
        for given in (parameter.default, *getattr(hint, "__metadata__", ())):
            mark = _mark(given)
            if mark is not None:
                marks[parameter.name] = mark if mark.dependency is not None else Dependency(_bare(hint), mark.use_cache)
    return marks


def _mark(given: Any) -> Dependency | None:
    """Ours, or FastAPI's (and those of its kin), which are not imported for that."""
    if isinstance(given, Dependency):
        return given
    if type(given).__name__ in ("Depends", "Dependant") and hasattr(given, "dependency"):
        return Dependency(given.dependency, getattr(given, "use_cache", True))
    return None


def _parameters(call: Callable[..., Any], where: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # a builtin that does not tell
        return []
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"{where}: parameters are passed by name; leave out the '/' after {parameter.name!r} of {name_of(call)}"
            )
    return parameters


def _bare(hint: Any) -> Any:
    return hint.__origin__ if typing.get_origin(hint) in (typing.Annotated, ConsumerRecord) else hint


# the function that is called in the handler's place -------------------------------------------------------------------


def _written(
    function: Callable[..., Any], plan: _Plan, names: Mapping[Role, str], leading: Sequence[str]
) -> Callable[..., Any]:
    others = [name for name in names.values() if name not in leading]
    known: dict[str, Any] = {"__handler": function}
    lines = [f"{'async ' if is_async(function) else ''}def __call({', '.join([*leading, *others])}):"]
    indent = "    "
    for number, step in enumerate(plan.steps):
        known[f"__{number}"] = _managed(step)
        call = f"__{number}({_passed(step.arguments, names)})"
        if step.opening.endswith("with "):
            lines.append(f"{indent}{step.opening}{call} as __value{number}:")
            # Each context is nested in the one before it, so they are closed in reverse order, also after an error.
            indent += "    "
        else:
            lines.append(f"{indent}__value{number} = {step.opening}{call}")
    parameters = inspect.signature(function).parameters
    own: dict[str, int | Role] = {name: role for role, name in names.items() if name in parameters}
    lines += [indent + line for line in _calling(function, f"__handler({_passed({**own, **plan.given}, names)})")]
    # Generated once per handler. A loop over the steps would cost several microseconds in each call.
    exec(compile("\n".join(lines), f"<dependencies of {name_of(function)}>", "exec"), known)
    return known["__call"]


def _calling(function: Callable[..., Any], call: str) -> list[str]:
    """Return the call of the handler: what it opened stays open until all that it yields is taken."""
    own = own_function(function)
    if inspect.isasyncgenfunction(inspect.unwrap(own)):
        return [f"async for __value in {call}:", "    yield __value"]
    if inspect.isgeneratorfunction(inspect.unwrap(own)):
        return [f"yield from {call}"]
    if inspect.iscoroutinefunction(own):
        return [f"return await {call}"]
    if not is_async(function):
        return [f"return {call}"]
    # A plain decorator may hide that the function is async, so the result decides.
    return [f"__value = {call}", "return await __value if hasattr(__value, '__await__') else __value"]


def _passed(arguments: Mapping[str, int | Role], names: Mapping[Role, str]) -> str:
    return ", ".join(
        f"{name}={f'__value{source}' if isinstance(source, int) else names[source]}"
        for name, source in arguments.items()
    )


def _managed(step: _Step) -> Callable[..., Any]:
    """Return a generator's function as one of a context that lets every error out."""
    if not step.opening.endswith("with "):
        return step.opener
    kind, opener = _AsyncContext if step.opening == "async with " else _Context, step.opener

    def enter(**arguments: Any) -> Any:
        return kind(opener(**arguments))

    return enter


class _Context:
    """Around a context: that it caught an error is not passed on."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._inner.__exit__(kind, error, at)


class _AsyncContext:
    """An async context manager around ``inner`` that never suppresses the handler's exception."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aenter__(self) -> Any:
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, at)
