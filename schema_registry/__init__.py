"""A schema registry in a log: Confluent's operations and record bytes, in this process or over HTTP.

``Registry(bus)`` is the registry itself; ``schema_registry.http`` serves it, ``schema_registry.client`` asks one.

- ``registry``, ``reading``, ``registering``, ``deleting``, ``settings``, ``effective_settings``: the operations
- ``state``, ``ledger``, ``records``, ``follower``, ``writer``: the topic ``_schemas``
- ``formats``: Avro, JSON Schema and Protobuf; ``compatibility``: which changes are allowed
- ``http``, ``client``, ``embedded``, ``log_directory``, ``backup``: access
- ``tools``, ``cli``: the lock file, ``eventbus schema check``
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventbus.errors import IncompatibleSchema as IncompatibleSchema
from eventbus.errors import RegistryError as RegistryError
from eventbus.errors import RegistryRefused as RegistryRefused
from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from schema_registry.entities import ConfigUpdate as ConfigUpdate
    from schema_registry.entities import SchemaRequest as SchemaRequest
    from schema_registry.http import create_app as create_app
    from schema_registry.registry import Registry as Registry

_HOMES = {
    "entities": ("ConfigUpdate", "SchemaRequest"),
    "http": ("create_app",),
    "registry": ("Registry",),
}  # a client of the registry over HTTP imports no registry
__getattr__, __dir__ = lazy_names(
    globals(),
    _HOMES,
    also=(
        "IncompatibleSchema",
        "RegistryError",
        "RegistryRefused",
    ),
)
