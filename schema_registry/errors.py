"""Refusals of a registry: Confluent's codes and texts, one function each."""

from __future__ import annotations

from eventbus.errors import RegistryError

# 404 -----------------------------------------------------------------------------------------------------------------


def subject_not_found(subject: str) -> RegistryError:
    return RegistryError(404, 40401, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RegistryError:
    return RegistryError(404, 40402, f"Version {version} not found.")


def schema_not_found(what: int | str | None = None) -> RegistryError:
    """``what``: the id or GUID that was asked for."""
    return RegistryError(404, 40403, "Schema not found" if what is None else f"Schema {what} not found")


def subject_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(404, 40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(404, 40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    text = f"Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently"
    return RegistryError(404, 40406, text)


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    text = f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    return RegistryError(404, 40407, text)


def no_subject_compatibility(subject: str) -> RegistryError:
    return RegistryError(404, 40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def no_subject_mode(subject: str) -> RegistryError:
    return RegistryError(404, 40409, f"Subject '{subject}' does not have subject-level mode configured")


def association_not_found(resource: str) -> RegistryError:
    return RegistryError(404, 40410, f"Association for '{resource}' not found.")


# 422 -----------------------------------------------------------------------------------------------------------------


def invalid_schema(reason: str) -> RegistryError:
    return RegistryError(422, 42201, reason)


def invalid_version(version: int | str) -> RegistryError:
    text = (
        f"The specified version '{version}' is not a valid version id. Allowed values are between [1, 2^31-1] and the "
        'string "latest"'
    )
    return RegistryError(422, 42202, text)


def invalid_compatibility(level: str | None) -> RegistryError:
    text = (
        f"Invalid compatibility level {level!r}. Valid values are none, backward, forward, full, "
        "backward_transitive, forward_transitive, and full_transitive"
    )
    return RegistryError(422, 42203, text)


def invalid_mode(mode: str | None) -> RegistryError:
    text = f"Invalid mode {mode!r}. Valid values are READWRITE, READONLY, READONLY_OVERRIDE, IMPORT, and FORWARD"
    return RegistryError(422, 42204, text)


def forward_mode_is_global() -> RegistryError:
    return RegistryError(422, 42204, "Forward mode only supported on global level")


def not_permitted(reason: str) -> RegistryError:
    return RegistryError(422, 42205, reason)


def reference_exists(subject: str, version: int) -> RegistryError:
    text = f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={subject},version={version}}}."
    return RegistryError(422, 42206, text)


def invalid_subject(subject: str) -> RegistryError:
    return RegistryError(422, 42208, f"The specified subject '{subject}' is not a valid.")


def schema_too_large(size: int, limit: int) -> RegistryError:
    text = f"Register operation failed because schema is too large: {size} bytes, {limit} are taken"
    return RegistryError(422, 42209, text)


def invalid_rule_set(reason: str) -> RegistryError:
    return RegistryError(422, 42210, reason)


def context_not_empty(context: str) -> RegistryError:
    return RegistryError(422, 42211, f"The specified context '{context}' is not empty.")


def unknown_format(format: str) -> RegistryError:
    return RegistryError(
        422, 422, f"Invalid format {format!r}. Valid values are resolved, serialized, and ignore_extensions"
    )


# 500 -----------------------------------------------------------------------------------------------------------------


def store_failed(what: str, error: BaseException) -> RegistryError:
    """The log refused or lost the write: its message says what to do."""
    return RegistryError(500, 50001, f"{what}: {error}")


def timed_out(what: str, timeout_ms: int) -> RegistryError:
    text = f"{what} operation timed out after {timeout_ms} ms. It may have been stored. Repeat the request to find out"
    return RegistryError(500, 50002, text)


def no_leader(reason: str) -> RegistryError:
    return RegistryError(500, 50004, f"Leader not known: {reason}")
