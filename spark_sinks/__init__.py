"""Land topics in a warehouse through Spark, exactly once."""
