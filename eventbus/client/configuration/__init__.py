"""Settings from outside of the program: environment variables and a file, beside keywords (docs/configuration.md)."""
