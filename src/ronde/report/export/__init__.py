"""Writes a run's records for other programs."""
