"""From texts to parsed schemas, with what they refer to; the last ones are remembered."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from threading import Lock
from typing import Any

import msgspec

from eventbus.errors import ConfigError
from schema_registry import errors, formats, names
from schema_registry.digest import digest
from schema_registry.entities import Metadata, RuleSet
from schema_registry.formats import InvalidSchema, ParsedSchema, UnknownSchemaType, Verdict
from schema_registry.state import Content, State, Version
from serdes.registry import Reference, SchemaText

_REMEMBERED = 2_000
_REMEMBERED_CHARACTERS = 4_000_000
_LONGEST_SPELLING = 20_000
"""Characters; of a longer one its digest is remembered."""
_VERDICTS = 10_000
_VERDICT_CHARACTERS = 4_000_000

_Key = tuple[str, str, str, tuple[Reference, ...]]


class Schemas:
    """Parses, for one registry. May be asked from several threads."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[_Key, tuple[ParsedSchema, bool]] = OrderedDict()
        """Parsed schemas by the stored text, and whether the rules for new schemas were applied."""
        self._spellings: OrderedDict[_Key, _Key] = OrderedDict()
        """Other texts of the same schemas, as clients send them."""
        self._characters = 0
        self._verdicts: OrderedDict[Hashable, Verdict] = OrderedDict()
        """Cached results of comparing a schema with an earlier version."""
        self._verdict_characters = 0
        self._lock = Lock()

    def parse(self, state: State, subject: str, text: SchemaText, *, is_new: bool = True) -> ParsedSchema:
        """Return a schema of ``subject``. Raises 42201 with the reason.

        A new one is held to the specification, and may not refer to what is deleted; older registries took more.
        """
        context = names.context_of(subject) if text.references else ""
        key = (context, text.schema_type, text.schema, text.references)
        try:
            if is_new:
                for reference in text.references:
                    _resolved(state, subject, reference, is_new=True)
            found = self._known(key, is_new)
            if found is not None:
                return found
            parsed = formats.parse(
                text, lambda reference: _resolved(state, subject, reference, is_new=False), is_new=is_new
            )
        except UnknownSchemaType as error:
            raise errors.invalid_schema(f"Invalid schema type {error.schema_type}: {error}") from error
        except (InvalidSchema, ConfigError) as error:  # or the format's library is not installed
            raise errors.invalid_schema(f"Invalid schema of type {text.schema_type}, details: {error}") from error
        self._remember(key, parsed, is_new)
        return parsed

    def parse_content(self, state: State, subject: str, content: Content) -> ParsedSchema:
        """Return a schema that is registered."""
        return self.parse(state, subject, content.as_text(), is_new=False)

    def _known(self, key: _Key, is_new: bool) -> ParsedSchema | None:
        with self._lock:
            key = self._spellings.get(_spelling(key), key)
            found, is_strict = self._parsed.get(key, (None, False))
            if found is None or (is_new and not is_strict):
                return None
            self._parsed.move_to_end(key)
            return found

    def _remember(self, key: _Key, parsed: ParsedSchema, is_strict: bool) -> None:
        """Cache a parsed schema by its stored text: the next version of the subject is compared with it."""
        stored = (key[0], key[1], parsed.canonical, tuple(parsed.references))
        with self._lock:
            if stored != key:
                self._spellings[_spelling(key)] = stored
                while len(self._spellings) > _REMEMBERED:
                    self._spellings.popitem(last=False)
            if stored not in self._parsed:
                self._characters += len(stored[2])
            self._parsed[stored] = parsed, is_strict
            while len(self._parsed) > _REMEMBERED or self._characters > _REMEMBERED_CHARACTERS:
                oldest, _ = self._parsed.popitem(last=False)
                self._characters -= len(oldest[2])

    def verdict(
        self, state: State, level: str, new: ParsedSchema, existing: Sequence[Version], **options: Any
    ) -> Verdict:
        """May a schema follow these versions of its subject (oldest first)? The newest that refuses says why."""
        made_of = digest(new.canonical, new.references, None, None)
        for old in reversed(existing):
            key = (names.context_of(old.subject), level, *options.items(), new.schema_type, made_of, old.version)
            found = self._verdict(state, (*key, old.content.guid), level, new, old, options)
            if not found.is_compatible:
                return found
        return Verdict(True)

    def _verdict(
        self, state: State, key: Hashable, level: str, new: ParsedSchema, old: Version, options: dict[str, Any]
    ) -> Verdict:
        """Each pair is compared once: by a worker thread, so that a decision finds it done."""
        with self._lock:
            found = self._verdicts.get(key)
        if found is not None:
            return found
        parsed = self.parse_content(state, old.subject, old.content)
        found = formats.check(level, new, [(old.version, parsed)], **options)
        with self._lock:
            if key not in self._verdicts:
                self._verdicts[key] = found
                self._verdict_characters += _length(found)
            while len(self._verdicts) > _VERDICTS or self._verdict_characters > _VERDICT_CHARACTERS:
                self._verdict_characters -= _length(self._verdicts.popitem(last=False)[1])
        return found

    def forget(self) -> None:
        """Forget schemas that refer to a permanently deleted version: its number may be assigned to another schema."""
        with self._lock:
            self._parsed.clear()
            self._spellings.clear()
            self._verdicts.clear()
            self._characters = self._verdict_characters = 0


def _spelling(key: _Key) -> _Key:
    text = key[2]
    if len(text) > _LONGEST_SPELLING:
        text = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return key[0], key[1], text, key[3]


def _length(verdict: Verdict) -> int:
    return sum(map(len, verdict.messages))


def content_of(
    parsed: ParsedSchema, metadata: Metadata | None, rule_set: RuleSet | None, *, normalize: bool
) -> Content:
    """Return the stored form of a parsed schema."""
    text, references = parsed.canonical, tuple(parsed.references)
    if normalize:
        normal = parsed.normalized()
        text, references = normal.schema, tuple(normal.references)
    return Content(
        text, parsed.schema_type, references, metadata, rule_set, digest(text, references, metadata, rule_set)
    )


def _resolved(state: State, subject: str, reference: Reference, *, is_new: bool) -> SchemaText:
    where = names.within(subject, reference.subject)
    found = state.version((where, reference.version))
    if found is None or (is_new and found.deleted):
        gone = " (it is deleted)" if found is not None else ""
        raise errors.invalid_schema(
            f'No schema reference found for subject "{where}" and version {reference.version}{gone}: register what '
            f"{reference.name!r} refers to first"
        )
    return SchemaText(found.content.text, found.content.schema_type, qualified(where, found.content.references))


def pinned(state: State, subject: str, reference: Reference) -> Reference:
    """A reference to the latest version (-1) is one to the version that is the latest now."""
    newest = state.latest(names.within(subject, reference.subject)) if reference.version == -1 else None
    return reference if newest is None else msgspec.structs.replace(reference, version=newest.version)


def qualified(parent: str, references: Sequence[Reference]) -> tuple[Reference, ...]:
    """References as they read outside of their context."""
    if names.context_of(parent) == names.DEFAULT_CONTEXT:
        return tuple(references)
    return tuple(msgspec.structs.replace(one, subject=names.within(parent, one.subject)) for one in references)
