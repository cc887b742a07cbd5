"""Clauses of the law, one file each: pure functions from records to a verdict."""
