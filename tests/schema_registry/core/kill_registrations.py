"""Kill a process in which eight writers register schemas, again and again, and account for every id.

Run as a program: ``python -m tests.schema_registry.core.kill_registrations DIRECTORY TRIALS SEED``. Each trial forks a
child (so that imports are paid once) and kills it after a random time with SIGKILL; then the registry is opened here,
and: what was answered is there under its id, an id means one schema for ever, the same schema has the same id, and no
id is given again, not even one whose schema was deleted for good.
"""

from __future__ import annotations

import os
import random
import struct
import sys

import anyio

from eventbus import EventBus
from schema_registry import Registry, SchemaRequest
from schema_registry.entities import Schema
from tests.killed import told_by_killed

WRITERS = 8
TEXTS = 5_000
ANSWER = struct.Struct("<II")  # number of the schema, id


def text(number: int) -> str:
    return f'{{"type":"record","name":"R{number}","fields":[]}}'


async def write(url: str, seed: int, pipe: int) -> None:
    """The child: register until killed; some schemas are deleted for good at once."""
    chance = random.Random(seed)
    async with EventBus(url) as bus, Registry(bus) as registry:

        async def writer(which: int) -> None:
            while True:
                number = chance.randrange(TEXTS)
                subject = f"s{number}"
                schema = await registry.register(subject, SchemaRequest(schema=text(number)))
                os.write(pipe, ANSWER.pack(number, schema.id))
                if which == 0:
                    gone = await registry.register("gone", SchemaRequest(schema=text(TEXTS + number)), force=True)
                    os.write(pipe, ANSWER.pack(TEXTS + number, gone.id))
                    await registry.delete_subject("gone")
                    await registry.delete_subject("gone", permanent=True)

        async with anyio.create_task_group() as tasks:
            for which in range(WRITERS):
                tasks.start_soon(writer, which)


def run_child(url: str, seed: int, lifetime_seconds: float, after_bytes: int) -> list[tuple[int, int]]:
    """Fork, let it write, kill it. Return what was answered."""
    received = told_by_killed(lambda pipe: anyio.run(write, url, seed, pipe), lifetime_seconds, after_bytes)
    whole = len(received) // ANSWER.size * ANSWER.size
    return list(ANSWER.iter_unpack(received[:whole]))


class Checker:
    """What every id has meant since the first trial."""

    def __init__(self) -> None:
        self.meanings: dict[int, str] = {}
        self.answers = 0

    async def check(self, url: str, answered: list[tuple[int, int]]) -> list[str]:
        self.answers += len(answered)
        wrong = [found for number, id in answered if (found := self._means(id, text(number)))]
        async with EventBus(url) as bus, Registry(bus) as registry:
            ids: dict[str, int] = {}
            for version in (one for subject in registry.subjects(deleted=True) for one in _versions(registry, subject)):
                found = self._means(version.id, version.schema)
                if found:
                    wrong.append(found)
                if ids.setdefault(version.schema, version.id) != version.id:
                    wrong.append(f"{version.schema} has ids {ids[version.schema]} and {version.id}")
            for number, id in answered:
                if number < TEXTS and ids.get(text(number)) != id:
                    wrong.append(f"schema {number} was answered id {id}, and has {ids.get(text(number))}")
            new = await registry.register("check", SchemaRequest(schema=text(10**6 + len(self.meanings))), force=True)
            if new.id in self.meanings:
                wrong.append(f"id {new.id} is given again; it was {self.meanings[new.id]}")
            self.meanings[new.id] = new.schema
        return wrong

    def _means(self, id: int, schema: str) -> str:
        known = self.meanings.setdefault(id, schema)
        return "" if known == schema else f"id {id} was {known}, and is {schema}"


def _versions(registry: Registry, subject: str) -> list[Schema]:
    return [registry.version(subject, one, deleted=True) for one in registry.versions(subject, deleted=True)]


def main(directory: str, trials: int, seed: int) -> int:
    url = f"file://{directory}"
    chance = random.Random(seed)
    checker = Checker()
    failures = 0
    for trial in range(trials):
        # Every fourth lifetime begins with the process, the others with the first answer: a busy machine takes longer.
        after_bytes = ANSWER.size if trial % 4 else 0
        answered = run_child(url, chance.randrange(1 << 30), chance.uniform(0.02, 0.25), after_bytes)
        for wrong in anyio.run(checker.check, url, answered):
            failures += 1
            print(f"trial {trial}: {wrong}")
    print(f"{trials} kills, {checker.answers} answers, {len(checker.meanings)} ids, {failures} failures")
    return 1 if failures or not checker.answers else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
