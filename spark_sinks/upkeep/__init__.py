"""Maintain a table: its status, a check against its topic, compaction, and replays of its quarantine."""
