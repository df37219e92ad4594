"""A Spark session without an installed Java, and what it needs to start fast."""
