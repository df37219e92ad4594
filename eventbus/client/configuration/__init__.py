"""Settings from environment variables and a file, in addition to keyword arguments (docs/reference/configuration.md)."""
