"""Settings of users, clients and addresses: quotas (KIP-546) and SCRAM credentials (KIP-554)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eventbus.cli.ask import ask, raise_error
from eventbus.cli.configs import QUOTA_ENTITIES, Entity
from eventbus.cli.output import Output
from eventbus.cli.parser import UsageError
from eventbus.coordinator.credentials import ScramMechanism, salt_password
from eventbus.errors import InvalidRequest
from eventbus.protocol import messages as m

if TYPE_CHECKING:
    from eventbus.backends.base import Backend

_MECHANISMS = {one.title: one for one in ScramMechanism if one is not ScramMechanism.UNKNOWN}
_ITERATIONS = 4_096
_SALT_BYTES = 24
_PASSWORD = re.compile(r"(?:iterations=(?P<first>\d+),)?password=(?P<password>.+?)(?:,iterations=(?P<last>\d+))?")
_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
_RESOURCE_NOT_FOUND = 91

_Component = m.DescribeClientQuotasRequest.ComponentData


async def describe_users(backend: Backend, entities: Sequence[Entity], out: Output) -> None:
    """Quotas of the entities; of users alone, their credentials too. Passwords are not to be had."""
    quotas = await _quotas(backend, entities)
    users = await _credentials(backend, entities[0].name) if [one.type for one in entities] == ["users"] else {}
    if out.json:
        shown = [{"entity": dict(entity), "quotas": values} for entity, values in quotas]
        out.data({"quotas": shown, "scram": users} if users or entities[0].type == "users" else {"quotas": shown})
        return
    for entity, values in quotas:
        who = ", ".join(f"{_title(kind)} '{name}'" if name else f"the default {_title(kind)}" for kind, name in entity)
        out.line(f"Quota configs for {who} are {', '.join(f'{key}={value}' for key, value in values.items())}")
    for user, infos in users.items():
        shown = ", ".join(f"{name}=iterations={iterations}" for name, iterations in infos.items())
        out.line(f"SCRAM credential configs for user-principal '{user}' are {shown}")


def _title(kind: str) -> str:
    return "user-principal" if kind == "user" else kind


async def _quotas(
    backend: Backend, entities: Sequence[Entity]
) -> list[tuple[list[tuple[str, str | None]], dict[str, float]]]:
    components = [
        _Component(
            entity_type=QUOTA_ENTITIES[one.type],
            match_type=_SPECIFIED if one.name is None else _EXACT if one.name else _DEFAULT,
            match=one.name or None,
        )
        for one in entities
    ]
    answer: m.DescribeClientQuotasResponse = await ask(
        backend, m.DescribeClientQuotasRequest(components=components, strict=True)
    )
    found = [
        (
            [(part.entity_type, part.entity_name) for part in entry.entity],
            {one.key: one.value for one in sorted(entry.values, key=lambda one: one.key)},
        )
        for entry in answer.entries or []
    ]
    return sorted(found, key=lambda one: [(kind, name or "") for kind, name in one[0]])


async def _credentials(backend: Backend, user: str | None) -> dict[str, dict[str, int]]:
    """Iterations by mechanism, of one user or of all."""
    names = [] if not user else [m.DescribeUserScramCredentialsRequest.UserName(name=user)]
    if user == "":
        return {}
    answer: m.DescribeUserScramCredentialsResponse = await ask(
        backend, m.DescribeUserScramCredentialsRequest(users=names or None)
    )
    found: dict[str, dict[str, int]] = {}
    for result in answer.results:
        if result.error_code == _RESOURCE_NOT_FOUND:
            continue
        raise_error(result)
        found[result.user] = {ScramMechanism(one.mechanism).title: one.iterations for one in result.credential_infos}
    return found


async def alter_users(
    backend: Backend, entities: Sequence[Entity], added: Mapping[str, str], deleted: Sequence[str]
) -> None:
    """Set quotas and passwords, or take them away. Raises UsageError for what an entity cannot have."""
    scram = [name for name in (*added, *deleted) if name in _MECHANISMS]
    if scram and ([one.type for one in entities] != ["users"] or not entities[0].name):
        raise UsageError(f"{scram[0]} is a credential of one user: --entity-type users --entity-name NAME, and no more")
    upsertions = [
        upsertion(entities[0].name or "", _MECHANISMS[name], value)
        for name, value in added.items()
        if name in _MECHANISMS
    ]
    values: dict[str, float | None] = {name: _number(name, value) for name, value in added.items() if name not in scram}
    values |= {name: None for name in deleted if name not in scram}
    if values:
        await _alter_quotas(backend, entities, values)
    if scram:
        deletions = [
            m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(
                name=entities[0].name or "", mechanism=_MECHANISMS[name]
            )
            for name in deleted
            if name in _MECHANISMS
        ]
        answer: m.AlterUserScramCredentialsResponse = await ask(
            backend, m.AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
        )
        for result in answer.results:
            raise_error(result)


async def _alter_quotas(backend: Backend, entities: Sequence[Entity], values: Mapping[str, float | None]) -> None:
    change = m.AlterClientQuotasRequest
    entry = change.EntryData(
        entity=[
            change.EntityData(entity_type=QUOTA_ENTITIES[one.type], entity_name=one.name or None) for one in entities
        ],
        ops=[change.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
    )
    answer: m.AlterClientQuotasResponse = await ask(backend, change(entries=[entry]))
    for one in answer.entries:
        raise_error(one)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"quota {name}={text!r} is no number") from None


def upsertion(user: str, mechanism: ScramMechanism, text: str) -> Any:
    """Of ``iterations=8192,password=...``: the password is salted here, and does not leave this process."""
    found = _PASSWORD.fullmatch(text)
    if found is None:
        raise UsageError(f"{mechanism.title}: write {mechanism.title}=[iterations={_ITERATIONS},password=SECRET]")
    password, iterations = found["password"], int(found["first"] or found["last"] or _ITERATIONS)
    salt = secrets.token_bytes(_SALT_BYTES)
    return m.AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=user,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salt_password(mechanism, password, salt, iterations),
    )
