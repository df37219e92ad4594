"""Where rows go: Parquet, Delta, Iceberg, SQL databases. Each commits rows and offsets in one step.

- ``target``: the interface, and the offsets at which a landing resumes
- ``founding``: the account of a table is created, checked and taken over
- ``parquet``, ``delta``, ``iceberg``, ``sql``, ``console``: one target each
- ``files``, ``parts``, ``stages``, ``beside``, ``logged``: what tables of files share
"""
