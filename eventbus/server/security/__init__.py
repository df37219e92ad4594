"""Authentication, authorization and quotas of connections."""
