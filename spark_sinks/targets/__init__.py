"""Where rows go: Parquet, Delta, Iceberg, SQL databases. Each commits rows and offsets in one step."""
