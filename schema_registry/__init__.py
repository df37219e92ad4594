"""A schema registry in a log: Confluent's operations and record bytes, in this process or over HTTP.

``Registry(bus)`` is the registry itself; ``schema_registry.http`` serves it, ``schema_registry.client`` asks one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schema_registry.entities import ConfigUpdate, SchemaRequest
    from schema_registry.errors import IncompatibleSchema, RegistryError, RegistryRefused
    from schema_registry.http import create_app
    from schema_registry.registry import Registry

__all__ = [
    "ConfigUpdate",
    "IncompatibleSchema",
    "Registry",
    "RegistryError",
    "RegistryRefused",
    "SchemaRequest",
    "create_app",
]

_HOMES = {
    "ConfigUpdate": "entities",
    "IncompatibleSchema": "errors",
    "Registry": "registry",
    "RegistryError": "errors",
    "RegistryRefused": "errors",
    "SchemaRequest": "entities",
    "create_app": "http",
}


def __getattr__(name: str) -> Any:
    """Each is imported when it is asked for: a client of the HTTP face needs no registry."""
    if name not in _HOMES:
        raise AttributeError(f"module 'schema_registry' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"schema_registry.{_HOMES[name]}"), name)
