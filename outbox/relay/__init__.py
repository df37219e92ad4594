"""The relay: publishes committed events from the outbox's table, exactly once and in the order of each key."""
