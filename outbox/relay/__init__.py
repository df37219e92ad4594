"""The relay: takes committed events from the outbox's table and publishes them, exactly once and in order of keys."""
