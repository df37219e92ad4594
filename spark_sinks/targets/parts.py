"""The names of a table's data files: which commit wrote a file, and whether that commit counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from spark_sinks.partitions import partition_values

_NAME = re.compile(r"part-([0-9a-f]{8})-(\d{10})-(\d{6})-(\d{5})\.parquet")


class Part(NamedTuple):
    """The parts of a file's name: table, commit, landing, and the number within the commit.

    The epoch is in it so that a landing that lost its table cannot write over what its successor wrote.
    """

    id: str
    sequence: int
    epoch: int
    number: int

    @property
    def name(self) -> str:
        return f"part-{self.id}-{self.sequence:010d}-{self.epoch:06d}-{self.number:05d}.parquet"


def part_of(path: str) -> Part | None:
    """Return the parts of a file's name; None for a file that no landing wrote."""
    match = _NAME.fullmatch(PurePosixPath(path).name)
    return match and Part(match[1], int(match[2]), int(match[3]), int(match[4]))


def sorts_below(directory: str, before: str | None) -> bool:
    """Return True if the value of the first partition column sorts below ``before``; numbers sort as numbers."""
    if before is None:
        return True
    value = next(iter(partition_values(directory).values()), None)
    if value is None:
        return False
    try:
        return float(value) < float(before)
    except ValueError:
        return value < before


def join(directory: str, name: str) -> str:
    """Return a path below a table; the directory may be the table itself."""
    return f"{directory}/{name}" if directory else name


def parent(path: str) -> str:
    """Return the directory of a path below a table; ``""`` is the table itself."""
    return path.rpartition("/")[0]


class Epochs:
    """Which sequences the latest epochs were at when they began: a file beyond the end of its epoch never counted.

    Only the last `KEPT` are known: what a landing that lost its table so long ago left is not recognised.
    """

    KEPT = 64

    def __init__(self, begins: Mapping[int, int]) -> None:
        self.begins = dict(begins)

    def begun(self, epoch: int, sequence: int) -> Epochs:
        """Return these epochs and a new one."""
        kept = sorted(self.begins)[-self.KEPT + 1 :]
        return Epochs({**{each: self.begins[each] for each in kept}, epoch: sequence})

    def counts(self, part: Part, sequence: int) -> bool:
        """Return True if the commit of a file happened, in a table whose next commit is ``sequence``."""
        end = next((self.begins[each] for each in sorted(self.begins) if each > part.epoch), sequence)
        return part.sequence < min(end, sequence)
