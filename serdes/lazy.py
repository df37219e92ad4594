"""Import the names of a package when they are first used (PEP 562). Every package of the wheel uses this helper."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for True. `typing` would double the start of `eventbus --version`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


def lazy_names(
    package: dict[str, Any], homes: Mapping[str, Sequence[str]], also: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and the ``__dir__`` of a package, and set its ``__all__``.

    ``package``: its ``globals()``. ``homes``: the names that each of its modules defines. ``also``: public names that
    the package has imported itself. Type checkers read ``from module import name as name`` below TYPE_CHECKING.
    """
    path = package["__name__"]
    modules = {name: module for module, names in homes.items() for name in names}
    package["__all__"] = sorted((*modules, *also))

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {path!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(f"{path}.{modules[name]}"), name)
        return value

    return find, lambda: sorted({*package, *package["__all__"]})
