"""What a running bus tells the world: metrics for Prometheus, spans for OpenTelemetry, log lines with their record."""
