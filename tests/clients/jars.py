"""Kafka's jars, as `eventbus.testing.kafka_jars` fetches them; here they are kept in ``.venv/kafka``.

A machine without Java or Maven leaves out the tests that need them, with that reason, unless
``EVENTBUS_TEST_CLIENTS=require`` is set (as CI does).
"""

from __future__ import annotations

import os
from pathlib import Path

from eventbus.testing.kafka_jars import LATEST, NotAvailableError, class_path, home, java

__all__ = ["CACHE", "LATEST", "OLD", "ROOT", "NotAvailableError", "class_path", "java"]

ROOT = Path(__file__).resolve().parents[2]
os.environ.setdefault("EVENTBUS_KAFKA_HOME", str(ROOT / ".venv" / "kafka"))
CACHE = home()

OLD = "3.9.1"
"""The last line of Kafka that old clusters run, and whose tools still know ``--broker-list``."""
