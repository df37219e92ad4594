"""Schemas at development time: the lock file, the check of a program's types before they are merged, and its reports.

Pure: what is declared and what is known go in, problems come out. The commands of `schema_registry.cli` stand on it.
"""
