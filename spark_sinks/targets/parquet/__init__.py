"""A directory of Parquet files that any reader of such directories reads, each record once."""
