"""Reversible replacement of functions of torch and Python, and origins of calls."""
