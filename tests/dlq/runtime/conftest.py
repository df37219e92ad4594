"""Rewrites assertions in the modules with promises."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.dlq.runtime.ladder", "tests.dlq.runtime.orders", "tests.dlq.runtime.restarts")
