"""May this schema follow those? Pure engines, one per format, and a policy for tables on top."""
