"""Checkpoints of a whole run: what an unmodified script did, and what it holds at one step."""
