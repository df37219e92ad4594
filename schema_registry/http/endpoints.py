"""Every endpoint: method and path, which operation of `Registry` it is, what its query and body are.

Routing, the OpenAPI description and docs/reference/registry-endpoints.md are made from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from schema_registry.entities import (
    Association,
    CompatibilityAnswer,
    Config,
    ConfigUpdate,
    ContextId,
    Entity,
    Mode,
    RegisterAnswer,
    Schema,
    SchemaRequest,
    SchemaString,
    SubjectVersion,
)
from schema_registry.http.wire import boolean, integer

Kind: TypeAlias = Literal["flag", "number", "text", "texts"]

PARSERS: Mapping[Kind, Callable[[list[str]], Any]] = {
    "flag": lambda values: boolean(values[0]),
    "number": lambda values: integer(values[0]),
    "text": lambda values: values[0],
    "texts": tuple,
}


class ModeUpdate(Entity, frozen=True):
    """The body of PUT /mode."""

    mode: str | None = None


class Query(msgspec.Struct, frozen=True):
    """One parameter: ``name`` in the query, ``keyword`` of the operation."""

    name: str
    kind: Kind = "flag"

    @property
    def keyword(self) -> str:
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in self.name)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    does: str
    """A method of `Registry`, or of the app where it begins with an underscore."""
    summary: str
    arguments: tuple[str | None, ...] = ()
    """The positional arguments of the operation: a part of the path (other parts are keywords), ``body``, ``.member``
    of the body, ``=a constant``, or None."""
    query: tuple[Query, ...] = ()
    body: Any = None
    answers: Any = None
    form: Literal["json", "raw", "register", "empty"] = "json"
    """``raw``: the schema's own text; ``register``: a `Schema` without its subject; ``empty``: 204."""
    content_type: bytes = b""
    """Empty: one of Confluent's, as the request likes."""
    writes: bool = False
    prepared: str = ""
    """The method of `Registry` that does beforehand, in a worker thread, what takes long; with the same arguments."""


def _(name: str, kind: Kind = "flag") -> Query:
    return Query(name, kind)


_PAGE = (_("offset", "number"), _("limit", "number"))
_TEXTS = (_("format", "text"), _("referenceFormat", "text"))
_ONE_VERSION = (*_TEXTS, _("deleted"))
_VERSION = "/subjects/{subject}/versions/{version}"
_CHECK = "/compatibility/subjects/{subject}/versions"
_ASSOCIATED = (
    _("resourceType", "text"), _("associationType", "texts"), _("lifecycle", "text"), *_PAGE,
)  # fmt: skip
_OBJECT = dict[str, Any]


def _endpoint(line: str, does: str, summary: str, *arguments: str | None, **more: Any) -> Endpoint:
    method, path = line.split()
    return Endpoint(method=method, path=path, does=does, summary=summary, arguments=arguments, **more)


ENDPOINTS: tuple[Endpoint, ...] = (
    _endpoint("GET /", "_nothing", "an empty object, for probes", answers=_OBJECT),
    _endpoint("POST /", "_nothing", "an empty object, for probes", answers=_OBJECT),
    # schemas
    _endpoint(
        "GET /schemas", "schemas", "every schema, by subject and version", answers=list[Schema],
        query=(
            _("subjectPrefix", "text"), _("aliases"), _("deleted"), _("latestOnly"), _("ruleType", "text"), *_PAGE,
        ),
    ),
    _endpoint("GET /schemas/types", "schema_types", "the formats of schemas", answers=list[str]),
    _endpoint(
        "GET /schemas/ids/{id}", "schema_by_id", "the schema of an id", "id", answers=SchemaString,
        query=(_("subject", "text"), *_TEXTS, _("fetchMaxId")),
    ),
    _endpoint(
        "GET /schemas/ids/{id}/schema", "schema_by_id", "the text alone", "id", form="raw",
        query=(_("subject", "text"), _("format", "text")),
    ),
    _endpoint(
        "GET /schemas/ids/{id}/subjects", "subjects_of_id", "the subjects that have it", "id", answers=list[str],
        query=(_("subject", "text"), _("deleted"), *_PAGE),
    ),
    _endpoint(
        "GET /schemas/ids/{id}/versions", "versions_of_id", "subjects and versions that have it", "id",
        answers=list[SubjectVersion], query=(_("subject", "text"), _("deleted"), *_PAGE),
    ),
    _endpoint(
        "GET /schemas/guids/{guid}", "schema_by_guid", "the schema of a GUID", "guid", answers=SchemaString,
        query=(_("format", "text"),),
    ),
    _endpoint(
        "GET /schemas/guids/{guid}/ids", "ids_of_guid", "its id in every context", "guid", answers=list[ContextId],
    ),
    # subjects
    _endpoint(
        "GET /subjects", "subjects", "the subjects", answers=list[str],
        query=(_("subjectPrefix", "text"), _("deleted"), _("deletedOnly"), *_PAGE),
    ),
    _endpoint(
        "POST /subjects/{subject}", "lookup", "look up the version of a schema", "subject", "body",
        body=SchemaRequest, answers=Schema, prepared="prepare",
        query=(_("normalize"), _("format", "text"), _("deleted")),
    ),
    _endpoint(
        "DELETE /subjects/{subject}", "delete_subject", "delete a subject; returns its versions", "subject",
        answers=list[int], query=(_("permanent"),), writes=True,
    ),
    _endpoint(
        "GET /subjects/{subject}/metadata", "subject_metadata", "the latest version with these properties", "subject",
        answers=Schema, query=(_("key", "texts"), _("value", "texts"), _("format", "text"), _("deleted")),
    ),
    _endpoint(
        "GET /subjects/{subject}/versions", "versions", "the versions of a subject", "subject", answers=list[int],
        query=(_("deleted"), _("deletedOnly"), _("deletedAsNegative"), *_PAGE),
    ),
    _endpoint(
        "POST /subjects/{subject}/versions", "register", "register a schema", "subject", "body",
        body=SchemaRequest, answers=RegisterAnswer, form="register", writes=True,
        query=(_("normalize"), _("format", "text"), _("force")),
    ),
    _endpoint(
        f"GET {_VERSION}", "version", "a version", "subject", "version", answers=Schema, query=_ONE_VERSION,
    ),
    _endpoint(
        f"GET {_VERSION}/schema", "version", "the text alone", "subject", "version", form="raw",
        query=(_("format", "text"), _("deleted")),
    ),
    _endpoint(
        f"GET {_VERSION}/referencedby", "referenced_by", "ids of the schemas that refer to it", "subject", "version",
        answers=list[int], query=(_("deleted"), *_PAGE),
    ),
    _endpoint(
        f"DELETE {_VERSION}", "delete_version", "delete a version", "subject", "version", answers=int,
        query=(_("permanent"),), writes=True,
    ),
    # compatibility
    _endpoint(
        f"POST {_CHECK}/{{version}}", "check", "check a schema against a version",
        "subject", "version", "body", body=SchemaRequest, answers=CompatibilityAnswer,
        query=(_("normalize"), _("verbose")), prepared="prepare_check",
    ),
    _endpoint(
        f"POST {_CHECK}", "check", "check whether a schema may be registered", "subject", None, "body",
        body=SchemaRequest, answers=CompatibilityAnswer, query=(_("normalize"), _("verbose")), prepared="prepare_check",
    ),
    # config and mode
    _endpoint("GET /config", "config", "the configuration of all subjects", answers=Config),
    _endpoint(
        "PUT /config", "update_config", "change it", None, "body", body=ConfigUpdate, answers=ConfigUpdate, writes=True,
    ),
    _endpoint("DELETE /config", "delete_config", "restore the defaults", answers=Config, writes=True),
    _endpoint(
        "GET /config/{subject}", "config", "the configuration of a subject", "subject", answers=Config,
        query=(_("defaultToGlobal"),),
    ),
    _endpoint(
        "PUT /config/{subject}", "update_config", "change it", "subject", "body", body=ConfigUpdate,
        answers=ConfigUpdate, writes=True,
    ),
    _endpoint(
        "DELETE /config/{subject}", "delete_config", "delete it", "subject", answers=Config, writes=True,
    ),
    _endpoint("GET /mode", "mode", "the mode of all subjects", answers=Mode, query=(_("defaultToGlobal"),)),
    _endpoint(
        "PUT /mode", "update_mode", "change it", None, ".mode", body=ModeUpdate, answers=Mode, query=(_("force"),),
        writes=True,
    ),
    _endpoint(
        "DELETE /mode", "delete_mode", "restore READWRITE", answers=Mode, query=(_("recursive"),), writes=True,
    ),
    _endpoint(
        "GET /mode/{subject}", "mode", "the mode of a subject", "subject", answers=Mode,
        query=(_("defaultToGlobal"),),
    ),
    _endpoint(
        "PUT /mode/{subject}", "update_mode", "change it", "subject", ".mode", body=ModeUpdate, answers=Mode,
        query=(_("force"),), writes=True,
    ),
    _endpoint(
        "DELETE /mode/{subject}", "delete_mode", "delete it", "subject", answers=Mode, query=(_("recursive"),),
        writes=True,
    ),
    # contexts
    _endpoint(
        "GET /contexts", "contexts", "the contexts", answers=list[str], query=(_("contextPrefix", "text"), *_PAGE),
    ),
    _endpoint(
        "DELETE /contexts/{context}", "delete_context", "delete an empty context", "context", form="empty",
        writes=True,
    ),
    # associations: clients ask for them first, and fall back to the topic's name when there are none
    _endpoint(
        "GET /associations/subjects/{subject}", "associations", "topics that a subject belongs to",
        answers=list[Association], query=_ASSOCIATED,
    ),
    _endpoint(
        "GET /associations/resources/{resource_id}", "associations", "subjects of a resource, by its id",
        answers=list[Association], query=_ASSOCIATED,
    ),
    _endpoint(
        "GET /associations/resources/{resource_namespace}/{resource_name}", "associations",
        "subjects of a resource, by its name", answers=list[Association], query=_ASSOCIATED,
    ),
    _endpoint(
        "POST /associations", "change_associations", "refused: associations are not stored", "=create", "body",
        body=_OBJECT, writes=True,
    ),
    _endpoint(
        "PUT /associations", "change_associations", "refused: associations are not stored", "=upsert", "body",
        body=_OBJECT, writes=True,
    ),
    _endpoint(
        "POST /associations:batchMutate", "change_associations", "refused: associations are not stored", "=mutate",
        "body", body=_OBJECT, writes=True,
    ),
    _endpoint(
        "DELETE /associations/resources/{resource_id}", "_no_association", "no effect: associations are not stored",
        "resource_id", writes=True,
    ),
    # what tools probe
    _endpoint("GET /v1/metadata/id", "_metadata_id", "the cluster's id", answers=_OBJECT),
    _endpoint("GET /v1/metadata/version", "_metadata_version", "the version", answers=_OBJECT),
    _endpoint("GET /v1/metadata/deployment", "_metadata_deployment", "an empty object", answers=_OBJECT),
    # of our own
    _endpoint("GET /health/live", "_live", "200 while the process answers", answers=_OBJECT),
    _endpoint("GET /health/ready", "_ready", "200 when the registry has read its log; else 503", answers=_OBJECT),
    _endpoint(
        "GET /metrics", "_metrics", "counters for Prometheus", content_type=b"text/plain; version=0.0.4; charset=utf-8",
    ),
    _endpoint("GET /openapi.json", "_openapi", "this table as OpenAPI", answers=_OBJECT),
)  # fmt: skip
