"""The parts of a run of a bus: checks at its start, signals, the watch over its health, and how it reports errors."""
