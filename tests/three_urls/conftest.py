"""A disk that does not wait."""

from __future__ import annotations

from tests.disks import nothing_waits_for_the_disk

__all__ = ["nothing_waits_for_the_disk"]
