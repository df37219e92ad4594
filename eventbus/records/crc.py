"""CRC-32C (Castagnoli), in hardware if possible: ``crc32c(data, value=0) -> int``.

The wheel's package looks up its own version on import, which loads e-mail and zip modules and takes 30 ms, a fifth of
``import eventbus``. The extension inside needs none of that, so only the extension is loaded.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["crc32c"]

_EXTENSION = "crc32c._crc32c"


def _load() -> Callable[..., int]:
    package = PathFinder.find_spec("crc32c")
    spec = PathFinder.find_spec(_EXTENSION, package.submodule_search_locations) if package is not None else None
    if _EXTENSION in sys.modules or spec is None or spec.loader is None:
        from crc32c import crc32c

        return crc32c
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.crc32c


if TYPE_CHECKING:
    from crc32c import crc32c
else:
    crc32c = _load()
