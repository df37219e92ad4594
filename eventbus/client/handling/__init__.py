"""Hops 5 to 7: records to handlers, what they publish to its topics, and then, only then, their offsets."""
