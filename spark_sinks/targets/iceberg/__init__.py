"""An Iceberg table, written with `pyiceberg`: no jar, no JVM."""
