"""The bus, its decorators, explicit clients and the runner."""
