"""Decides whether a module treats the rows of a batch one by one, by watching its first call."""
