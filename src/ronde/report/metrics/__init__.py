"""Metrics of a run for Prometheus, read from its directory by the launcher's process."""
