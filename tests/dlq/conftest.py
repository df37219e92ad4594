"""Dead letters and retries on logs that do not wait for the disk."""

from __future__ import annotations

from tests.disks import nothing_waits_for_the_disk

__all__ = ["nothing_waits_for_the_disk"]
