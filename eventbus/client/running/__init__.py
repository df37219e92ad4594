"""The parts of a run of a bus: start checks, signals, health monitoring, and error reporting."""
