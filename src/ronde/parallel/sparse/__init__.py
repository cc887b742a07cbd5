"""Weights with rows spread over ranks, and their look-ups."""
