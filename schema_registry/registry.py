"""A schema registry in the process: Confluent's operations on a topic of the bus's log, without HTTP.

Reads answer from memory and never wait; writes return when their records are stored. Keywords are Confluent's query
parameters. All raise `RegistryError` with Confluent's status, code and text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from schema_registry.entities import (
    Association,
    CompatibilityAnswer,
    Config,
    ConfigUpdate,
    ContextId,
    Exported,
    Mode,
    Schema,
    SchemaRequest,
    SchemaString,
    SubjectVersion,
    TagRequest,
)

if TYPE_CHECKING:
    from eventbus import EventBus
    from serdes.registry import SchemaClient

TOPIC = "_schemas"
Version = int | str
"""1 to 2^31-1, or ``"latest"`` (-1 is the same)."""


class Registry:
    """The registry kept in a log. One per bus and topic; several processes may each have one on the same log.

    ::

        async with EventBus("file://./data") as bus, Registry(bus) as registry:
            schema = await registry.register("orders-value", SchemaRequest(schema='"string"'))
            registry.schema_by_id(schema.id)

    ``compatibility`` holds where none is configured. ``read_only`` refuses every write. ``timeout_ms``: how long a write
    may take before its caller is told 50002; it may be stored then, and the same request again tells.
    Instead of ``async with``, ``bus.include(Registry())`` starts and stops it with the bus.
    """

    def __init__(
        self,
        bus: EventBus | None = None,
        *,
        topic: str = TOPIC,
        compatibility: str = "BACKWARD",
        replication_factor: int | None = None,
        read_only: bool = False,
        timeout_ms: int = 30_000,
        max_schema_bytes: int = 1_000_000,
    ) -> None: ...

    # life ------------------------------------------------------------------------------------------------------------

    async def start(self, bus: EventBus | None = None) -> None:
        """Make or check the topic, read it to its end. Raises RegistryRefused when ids would be in danger."""
        ...

    async def aclose(self) -> None: ...
    async def __aenter__(self) -> Registry: ...
    async def __aexit__(self, *_: object) -> None: ...

    async def catch_up(self) -> bool:
        """Read what others have written since; whether there was anything.

        What a read does not find may have been written by another process a moment ago: ask once more after this.
        """
        ...

    @property
    def is_ready(self) -> bool:
        """Started, read to the end, and not refused since."""
        ...

    def client(self) -> SchemaClient:
        """The same registry for serdes: synchronous, for worker threads."""
        ...

    # schemas by id and GUID ------------------------------------------------------------------------------------------

    def schema_by_id(
        self,
        id: int,
        *,
        subject: str | None = None,
        format: str = "",
        reference_format: str = "",
        find_tags: Sequence[str] = (),
        fetch_max_id: bool = False,
    ) -> SchemaString:
        """GET /schemas/ids/{id}; with ``subject`` its subject and version too. Its ``schema`` is .../schema's answer."""
        ...

    def subjects_of_id(
        self, id: int, *, subject: str | None = None, deleted: bool = False, offset: int = 0, limit: int = -1
    ) -> list[str]:
        """GET /schemas/ids/{id}/subjects"""
        ...

    def versions_of_id(
        self, id: int, *, subject: str | None = None, deleted: bool = False, offset: int = 0, limit: int = -1
    ) -> list[SubjectVersion]:
        """GET /schemas/ids/{id}/versions"""
        ...

    def schema_by_guid(self, guid: str, *, format: str = "") -> SchemaString:
        """GET /schemas/guids/{guid}"""
        ...

    def ids_of_guid(self, guid: str) -> list[ContextId]:
        """GET /schemas/guids/{guid}/ids"""
        ...

    def schema_types(self) -> list[str]:
        """GET /schemas/types"""
        ...

    def schemas(
        self,
        *,
        subject_prefix: str = ":*:",
        aliases: bool = False,
        deleted: bool = False,
        latest_only: bool = False,
        rule_type: str | None = None,
        offset: int = 0,
        limit: int = -1,
    ) -> list[Schema]:
        """GET /schemas: in the order of subject and version, 1,000 at most unless ``limit`` says less."""
        ...

    # subjects and versions -------------------------------------------------------------------------------------------

    def subjects(
        self,
        *,
        subject_prefix: str = ":*:",
        deleted: bool = False,
        deleted_only: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[str]:
        """GET /subjects"""
        ...

    def versions(
        self,
        subject: str,
        *,
        deleted: bool = False,
        deleted_only: bool = False,
        deleted_as_negative: bool = False,
        offset: int = 0,
        limit: int = -1,
    ) -> list[int]:
        """GET /subjects/{subject}/versions"""
        ...

    def version(
        self,
        subject: str,
        version: Version,
        *,
        format: str = "",
        reference_format: str = "",
        deleted: bool = False,
        find_tags: Sequence[str] = (),
    ) -> Schema:
        """GET /subjects/{subject}/versions/{version}; its ``schema`` is .../schema's answer"""
        ...

    def referenced_by(
        self, subject: str, version: Version, *, deleted: bool = False, offset: int = 0, limit: int = -1
    ) -> list[int]:
        """GET /subjects/{subject}/versions/{version}/referencedby: ids of schemas"""
        ...

    def subject_metadata(
        self,
        subject: str,
        *,
        key: Sequence[str] = (),
        value: Sequence[str] = (),
        format: str = "",
        deleted: bool = False,
    ) -> Schema:
        """GET /subjects/{subject}/metadata: the latest version whose properties have all these values"""
        ...

    def lookup(
        self,
        subject: str,
        request: SchemaRequest,
        *,
        normalize: bool = False,
        format: str = "",
        deleted: bool = False,
    ) -> Schema:
        """POST /subjects/{subject}: the version that has this schema"""
        ...

    async def register(
        self,
        subject: str,
        request: SchemaRequest,
        *,
        normalize: bool = False,
        format: str = "",
        force: bool = False,
    ) -> Schema:
        """POST /subjects/{subject}/versions. HTTP answers with ``.answer()`` of it."""
        ...

    async def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """DELETE /subjects/{subject}"""
        ...

    async def delete_version(self, subject: str, version: Version, *, permanent: bool = False) -> int:
        """DELETE /subjects/{subject}/versions/{version}"""
        ...

    async def modify_tags(self, subject: str, version: Version, request: TagRequest) -> Schema:
        """POST /subjects/{subject}/versions/{version}/tags"""
        ...

    # compatibility ---------------------------------------------------------------------------------------------------

    def check(
        self,
        subject: str,
        version: Version | None,
        request: SchemaRequest,
        *,
        normalize: bool = False,
        verbose: bool = False,
    ) -> CompatibilityAnswer:
        """POST /compatibility/subjects/{subject}/versions/{version}; without ``version`` against all that count"""
        ...

    # config and mode -------------------------------------------------------------------------------------------------

    def config(self, subject: str | None = None, *, default_to_global: bool = False) -> Config:
        """GET /config, /config/{subject}"""
        ...

    async def update_config(self, subject: str | None, update: ConfigUpdate) -> ConfigUpdate:
        """PUT /config, /config/{subject}: what holds then"""
        ...

    async def delete_config(self, subject: str | None = None) -> Config:
        """DELETE /config, /config/{subject}: what held before"""
        ...

    def mode(self, subject: str | None = None, *, default_to_global: bool = False) -> Mode:
        """GET /mode, /mode/{subject}"""
        ...

    async def update_mode(self, subject: str | None, mode: str | None, *, force: bool = False) -> Mode:
        """PUT /mode, /mode/{subject}"""
        ...

    async def delete_mode(self, subject: str | None = None, *, recursive: bool = False) -> Mode:
        """DELETE /mode/{subject}: what held before"""
        ...

    # contexts --------------------------------------------------------------------------------------------------------

    def contexts(self, *, context_prefix: str = "", offset: int = 0, limit: int = -1) -> list[str]:
        """GET /contexts"""
        ...

    async def delete_context(self, context: str) -> None:
        """DELETE /contexts/{context}"""
        ...

    # associations ----------------------------------------------------------------------------------------------------

    def associations(
        self,
        *,
        subject: str | None = None,
        resource_name: str | None = None,
        resource_namespace: str | None = None,
        resource_id: str | None = None,
        resource_type: str | None = None,
        association_type: Sequence[str] = (),
        lifecycle: str | None = None,
        offset: int = 0,
        limit: int = -1,
    ) -> list[Association]:
        """The three GETs of /associations. None is an empty list: clients fall back to the topic's name then."""
        ...

    async def change_associations(
        self, operation: Literal["create", "upsert", "delete", "mutate"], body: Mapping[str, object]
    ) -> None:
        """The writes of /associations are refused (42205): this registry keeps none of its own."""
        ...

    # backup ----------------------------------------------------------------------------------------------------------

    def export(self, *, subject_prefix: str = ":*:", deleted: bool = True) -> Exported:
        """Everything, with ids, GUIDs, deleted flags, configs and modes."""
        ...

    async def restore(self, exported: Exported) -> int:
        """Take an export in, ids as they are; how many schemas are new. Twice is as once. Raises 42205 on conflicts."""
        ...
