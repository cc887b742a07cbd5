"""A training that is killed again and again, and goes on from its checkpoints."""
