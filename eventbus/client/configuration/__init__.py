"""Settings from environment variables and a file, besides keywords (docs/reference/configuration.md)."""
