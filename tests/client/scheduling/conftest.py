"""The fixtures of buses on each embedded storage."""

from __future__ import annotations

from tests.client.conftest import file_url, make_bus

__all__ = ["file_url", "make_bus"]
