"""Reduction of local gradients to the update that one device would make."""
