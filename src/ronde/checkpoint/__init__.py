"""Checkpoints of a whole run: journal of an unmodified script, and its state."""
