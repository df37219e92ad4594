"""Who connects, what they may do, and how fast."""
