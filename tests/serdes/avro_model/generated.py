"""Generated source as a module."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

from serdes.avro.from_types import schema_of
from serdes.avro.schema import Schema


@contextmanager
def module_of(source: str) -> Iterator[types.ModuleType]:
    """Imported, as a file of this content would be."""
    module = types.ModuleType("generated_by_a_test")
    sys.modules[module.__name__] = module  # annotations are looked up there
    try:
        exec(compile(source, module.__name__, "exec"), module.__dict__)
        yield module
    finally:
        del sys.modules[module.__name__]


def schema_of_source(source: str) -> Schema:
    """The schema of the module's last type, which is the one that it was made of."""
    with module_of(source) as module:
        return schema_of(list(vars(module).values())[-1])
