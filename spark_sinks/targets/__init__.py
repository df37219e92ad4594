"""Targets of a landing: Parquet, Delta, Iceberg and SQL databases. Each commits rows and offsets atomically.

- ``target``: the interface, and the offsets at which a landing resumes
- ``table_creation``: create, check and take over the account of a table
- ``parquet``, ``delta``, ``iceberg``, ``sql``, ``console``: the targets
- ``files``, ``parts``, ``stages``, ``side_files``, ``logged``: code that tables of files share
"""
