"""The registry beside a model of a page: lists of versions, and ids that only ever go up."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.schema_registry.core.lab import Lab, record, refused

pytestmark = pytest.mark.system

SUBJECTS = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from([record(f"R{number}") for number in range(4)])


class Entry(msgspec.Struct):
    version: int
    text: str
    id: int
    deleted: bool = False


class Model(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.lab = Lab()
        self.lab.configure(compatibility="NONE")
        self.subjects: dict[str, list[Entry]] = {}
        self.highest = 0

    def entries(self, subject: str) -> list[Entry]:
        return self.subjects.setdefault(subject, [])

    def id_of(self, text: str) -> int | None:
        return next((one.id for entries in self.subjects.values() for one in entries if one.text == text), None)

    @rule(subject=SUBJECTS, text=TEXTS)
    def register(self, subject: str, text: str) -> None:
        schema = self.lab.register(subject, text)
        entries = self.entries(subject)
        same = [one for one in entries if one.text == text and not one.deleted]
        if same:
            assert (schema.version, schema.id) == (same[-1].version, same[-1].id)
            return
        id = self.id_of(text)
        if id is None:
            id = self.highest = self.highest + 1
        version = entries[-1].version + 1 if entries else 1
        assert (schema.version, schema.id, schema.schema) == (version, id, text)
        kept = [one for one in entries if not (one.deleted and one.id == id)]
        self.subjects[subject] = [*kept, Entry(version, text, id)]

    @rule(subject=SUBJECTS)
    def delete_softly(self, subject: str) -> None:
        alive = [one for one in self.entries(subject) if not one.deleted]
        if not alive:
            with refused(404, 40404 if self.entries(subject) else 40401):
                self.lab.delete_subject(subject)
            return
        assert self.lab.delete_subject(subject) == [one.version for one in alive]
        for one in alive:
            one.deleted = True

    @rule(subject=SUBJECTS)
    def delete_for_good(self, subject: str) -> None:
        entries = self.entries(subject)
        if any(not one.deleted for one in entries):
            with refused(404, 40405):
                self.lab.delete_subject(subject, permanent=True)
        elif entries:
            assert self.lab.delete_subject(subject, permanent=True) == [one.version for one in entries]
            self.subjects[subject] = []

    @rule(subject=SUBJECTS, index=st.integers(0, 3), permanent=st.booleans())
    def delete_version(self, subject: str, index: int, permanent: bool) -> None:
        entries = self.entries(subject)
        if index >= len(entries):
            return
        one = entries[index]
        if one.deleted != permanent:
            with refused(404, 40407 if permanent else 40406):
                self.lab.delete_version(subject, one.version, permanent=permanent)
            return
        assert self.lab.delete_version(subject, one.version, permanent=permanent) == one.version
        if permanent:
            entries.remove(one)
        else:
            one.deleted = True

    @rule(compacted=st.booleans())
    def restart(self, compacted: bool) -> None:
        self.lab = Lab(self.lab.compacted() if compacted else self.lab.log)

    @invariant()
    def all_is_as_it_should_be(self) -> None:
        if not hasattr(self, "lab"):
            return
        for subject, entries in self.subjects.items():
            found = [(one.version, one.id, one.content.text, one.deleted) for one in self.lab.state.versions(subject)]
            assert found == [(one.version, one.id, one.text, one.deleted) for one in entries]
        assert self.lab.state.max_ids.get(".", 0) == self.highest


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
