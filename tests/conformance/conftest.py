"""The kit's asserts say more when pytest has rewritten them, which must be asked for before the kit is imported."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("eventbus.testing.conformance")
