"""Sets of offsets against Python's own."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from spark_sinks.upkeep.offsets import WINDOW, OffsetSet, Ranges, RangesBuilder

pytestmark = pytest.mark.system


@pytest.mark.parametrize("seed", range(20))
def test_a_set_is_a_set_and_tells_what_came_again(seed: int) -> None:
    random, ours, theirs = Random(seed), OffsetSet(), set[int]()
    for _ in range(10):
        spread = random.choice((50, WINDOW, 5 * WINDOW))
        batch = [random.randrange(spread) for _ in range(random.randrange(60))]
        if random.random() < 0.5:
            batch.sort()
        again = {each for each in batch if each in theirs or batch.count(each) > 1}
        assert ours.add(np.array(batch, np.int64)).tolist() == sorted(again)
        theirs |= set(batch)
    assert ours.count == len(theirs)
    found = {n * WINDOW + place for n in ours.windows() for place in np.flatnonzero(ours.window(n)).tolist()}
    assert found == theirs
    asked = np.array([random.randrange(6 * WINDOW) for _ in range(100)] + list(theirs)[:50], np.int64)
    assert ours.has(asked).tolist() == [each in theirs for each in asked.tolist()]


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_those_of_neighbours(seed: int) -> None:
    random = Random(seed)
    offsets = sorted(random.sample(range(60), random.randrange(60)))
    builder = RangesBuilder()
    while offsets_left := offsets[:]:
        cut = random.randrange(1, len(offsets_left) + 1)
        builder.add(np.array(offsets_left[:cut], np.int64))
        offsets = offsets_left[cut:]
    built = builder.build()
    assert all(last + 1 < first for (_, last), (first, _) in zip(built.ranges, built.ranges[1:], strict=False))
    assert built.count == sum(last - first + 1 for first, last in built.ranges)


def test_only_the_first_ranges_are_kept_and_all_are_counted() -> None:
    builder = RangesBuilder()
    for start in range(0, 1_000, 100):
        builder.add(np.arange(start, start + 100, 2))
    built = builder.build()
    assert built.count == 500
    assert len(built.ranges) == 100
    assert str(built.head(2)) == "0, 2, ..."
    assert str(Ranges(4, [(0, 0), (7, 9)])) == "0, 7..9"
