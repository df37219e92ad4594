"""Settings from outside of the program: environment variables and a file, beside the keywords. See docs/configuration.md."""
