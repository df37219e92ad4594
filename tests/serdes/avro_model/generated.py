"""Generated source as a module."""

from __future__ import annotations

import sys
import types

from serdes.avro.from_types import schema_of
from serdes.avro.schema import Schema


def module_of(source: str) -> types.ModuleType:
    """Imported, as a file of this content would be."""
    module = types.ModuleType("generated_by_a_test")
    sys.modules[module.__name__] = module  # annotations are looked up there
    exec(compile(source, module.__name__, "exec"), module.__dict__)
    return module


def schema_of_source(source: str) -> Schema:
    """The schema of the module's last type, which is the one that it was made of."""
    try:
        return schema_of(list(vars(module_of(source)).values())[-1])
    finally:
        del sys.modules["generated_by_a_test"]
