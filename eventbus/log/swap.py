"""Putting a cleaned segment in the place of those it was made from, so that no crash and no reader meets a mixture.

::

    00000000000000000000.cleaned.log    being written; worth nothing until it is flushed
    00000000000000000000.swap.log       whole and flushed; those it stands for are being removed
    00000000000000000000.log            in place

One segment for one is a single rename, and a rename is atomic. One for several cannot be: ``.swap`` is the point of
no return. Until that name is on disk the old segments are untouched; from then on whoever finds it finishes the swap,
recovery as well as, for its own eyes, a reader in another process. The cleaned segment takes every offset of those it
stands for, with batches without records where nothing was left, so its own content says which ones those are.

Segments are cleaned oldest first, each swap durable before the next begins: a tombstone must never be gone while a
value it deletes is still there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from eventbus.log.leftovers import is_own_file, remove_file
from eventbus.log.segment import Damage, Segment
from eventbus.log.storage import Storage

CLEANED = ".cleaned"
SWAP = ".swap"
_CACHES = (".index", ".timeindex")


def stem_of(directory: str, base_offset: int) -> str:
    """The path of a segment's files, up to their suffix."""
    return f"{directory}/{base_offset:020d}"


def commit_swap(storage: Storage, cleaned: str, old: Sequence[str]) -> None:
    """The cleaned segment takes over for the ``old`` ones (stems, all of them): the first step, and for one the last.

    An `OSError` before the rename leaves everything as it was; one after it is that of a flush of names.
    """
    target = old[0] if len(old) == 1 else old[0] + SWAP
    storage.rename(cleaned + ".log", target + ".log")
    _move_caches(storage, cleaned, target)


def finish_swap(storage: Storage, directory: str, first: str, others: Sequence[str]) -> None:
    """After `commit_swap` of several: remove the others, then give the cleaned one its name. Can be done twice."""
    storage.sync_dir(directory)
    for stem in others:
        remove_files(storage, stem)
    storage.sync_dir(directory)  # first: without a .swap beside it, a segment that is left over would count
    storage.rename(f"{first}{SWAP}.log", first + ".log")
    _move_caches(storage, first + SWAP, first)
    storage.sync_dir(directory)


def recover_swaps(storage: Storage, directory: str) -> None:
    """Finish the swaps that a crash interrupted, and remove what was never committed.

    Raises `Damage` when a committed segment is not whole: then nothing was changed.
    """
    if not storage.exists(directory):
        return
    names = storage.listdir(directory)
    for name in names:
        stem, _, suffix = name.partition(".")
        if suffix.startswith("cleaned.") and is_own_file(name):
            remove_file(storage, f"{directory}/{name}")
        elif suffix == "swap.log" and is_own_file(name):
            _recover(storage, directory, int(stem), names)
    for name in names:
        if is_own_file(name) and name.partition(".")[2] in ("swap.index", "swap.timeindex"):
            with contextlib.suppress(FileNotFoundError):
                storage.remove(f"{directory}/{name}")


class Swap(NamedTuple):
    """A swap file that was found."""

    position: int
    end_offset: int
    damage: str
    """Why it replaces nothing; empty when it is whole and has the offsets of the segments it replaces."""
    offsets: list[int]
    """Base offsets of the segments in the directory."""


def examine_swap(storage: Storage, directory: str, base_offset: int, names: Sequence[str]) -> Swap:
    """Read a swap file and compare it with the segments among ``names``."""
    segment = Segment(storage, stem_of(directory, base_offset) + SWAP, base_offset, 0, 4096, create=False)
    try:
        scan = segment.scan(0, base_offset, check_crcs=True, index=False)
    finally:
        segment.close()
    offsets = sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdecimal())
    damage = scan.damage or _misfit(storage, directory, base_offset, scan.next_offset, offsets)
    return Swap(scan.position, scan.next_offset, damage, offsets)


def _recover(storage: Storage, directory: str, base_offset: int, names: Sequence[str]) -> None:
    first = stem_of(directory, base_offset)
    swap = examine_swap(storage, directory, base_offset, names)
    if swap.damage:
        raise Damage(f"{first}{SWAP}.log", swap.position, swap.end_offset, swap.damage)
    others = [stem_of(directory, offset) for offset in swap.offsets if base_offset < offset < swap.end_offset]
    finish_swap(storage, directory, first, others)


def _misfit(storage: Storage, directory: str, base_offset: int, end_offset: int, offsets: Sequence[int]) -> str:
    """Why a swap file with these offsets is not what compaction left there; empty when it is.

    A committed swap has all offsets of the segments it replaces. The first of these keeps its name until the very end,
    and the segment that follows begins where the swap file ends. That one may be missing only if a crash took its name;
    then the last segment that is still there must not reach beyond the swap file.
    """
    following = [offset for offset in offsets if offset >= end_offset]
    fits = base_offset in offsets and base_offset < end_offset
    if fits and following:
        fits = following[0] == end_offset
    elif fits:
        last = Segment(storage, stem_of(directory, offsets[-1]), offsets[-1], 0, 4096, create=False)
        try:
            fits = last.scan(0, offsets[-1], check_crcs=False, gaps=True, index=False).next_offset <= end_offset
        finally:
            last.close()
    if fits:
        return ""
    return f"offsets {base_offset} to {end_offset - 1} are not those of the segments it would replace"


def remove_files(storage: Storage, stem: str) -> None:
    """Remove a segment's files, the log first; those that are not there are no matter."""
    for suffix in (".log", *_CACHES):
        with contextlib.suppress(FileNotFoundError):
            storage.remove(stem + suffix)


def _move_caches(storage: Storage, source: str, target: str) -> None:
    """The indexes follow their log. Whoever meets one of them with the other's sees that it lies, and makes it anew."""
    for suffix in _CACHES:
        try:
            storage.rename(source + suffix, target + suffix)
        except OSError:
            with contextlib.suppress(OSError):
                storage.remove(target + suffix)
