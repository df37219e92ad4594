"""A Delta table, written with `deltalake`: no jar, no JVM."""
