"""Replace segments by a cleaned segment, so that neither a crash nor a reader finds a mixture.

::

    00000000000000000000.cleaned.log    being written; worth nothing until it is flushed
    00000000000000000000.swap.log       whole and flushed; the segments it replaces are being removed
    00000000000000000000.log            in place

Replacing a single segment is a rename, and a rename is atomic. Replacing several cannot be: ``.swap`` is the point of
no return. Until that name is on disk the old segments are untouched. From then on any process that finds it finishes
the swap: recovery on disk, a reader in another process only in its own view. The cleaned segment covers every offset of
the segments it replaces, with batches without records where nothing was left, so its content shows which they are.

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
    """Return the path of a segment's files, without suffix."""
    return f"{directory}/{base_offset:020d}"


def commit_swap(storage: Storage, cleaned: str, old: Sequence[str]) -> None:
    """Commit a cleaned segment in place of all ``old`` segments (stems). For a single segment this is the only step.

    An `OSError` before the rename leaves everything unchanged; a later `OSError` comes from flushing names.
    """
    target = old[0] if len(old) == 1 else old[0] + SWAP
    # The commit point: before this rename the old segments are valid, after it the new one.
    storage.rename(cleaned + ".log", target + ".log")
    _move_caches(storage, cleaned, target)


def finish_swap(storage: Storage, directory: str, first: str, others: Sequence[str]) -> None:
    """Complete a `commit_swap` of several segments: remove the rest, then rename the cleaned segment. Repeatable."""
    # The new name must be durable before the first old name goes. Otherwise a power cut could keep only the removals.
    storage.sync_dir(directory)
    for stem in others:
        remove_files(storage, stem)
    storage.sync_dir(directory)  # first: without a .swap next to it, a segment that is left over would count
    storage.rename(f"{first}{SWAP}.log", first + ".log")
    _move_caches(storage, first + SWAP, first)
    storage.sync_dir(directory)


def recover_swaps(storage: Storage, directory: str) -> None:
    """Finish the swaps that a crash interrupted, and remove uncommitted ones.

    Raises `Damage` if a committed segment is not complete: then nothing was changed.
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
    """The reason why it replaces nothing; empty if it is complete and has the offsets of the segments it replaces."""
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
        # The old segments may be gone already, so removing a damaged swap file could remove the only copy. A person
        # decides.
        raise Damage(f"{first}{SWAP}.log", swap.position, swap.end_offset, swap.damage)
    others = [stem_of(directory, offset) for offset in swap.offsets if base_offset < offset < swap.end_offset]
    finish_swap(storage, directory, first, others)


def _misfit(storage: Storage, directory: str, base_offset: int, end_offset: int, offsets: Sequence[int]) -> str:
    """Return why a swap file with these offsets cannot come from a compaction; empty if it can.

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
    """Remove a segment's files, the log first; missing files are ignored."""
    for suffix in (".log", *_CACHES):
        with contextlib.suppress(FileNotFoundError):
            storage.remove(stem + suffix)


def _move_caches(storage: Storage, source: str, target: str) -> None:
    """Move the index files with their log. An index that does not match its segment is detected and rebuilt."""
    for suffix in _CACHES:
        try:
            storage.rename(source + suffix, target + suffix)
        except OSError:
            with contextlib.suppress(OSError):
                storage.remove(target + suffix)
